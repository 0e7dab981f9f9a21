package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Query says which entries are looked for: those that meet every condition that is set.
type Query struct {
	ID       string    // of the event, as ShownID or without the part of a group
	Sequence uint64    // of the producer's message
	Category string    // and everything below it
	Title    string    // part of the title, in any letter case
	Result   Result    // "": every result but Told
	Since    time.Time // when the entries were published
	Newest   int       // at most so many entries, the newest; 0 for all
}

// Matches tells whether the entry may be of an event that is looked for. An entry that counts events matches if it has a range of
// sequences around the one that is looked for. An ID matches the first and the last of the counted events, whose IDs alone are known.
// A title matches any entry that counts.
func (q Query) Matches(e Entry) bool {
	switch {
	case q.Result == "" && e.Result == Told, q.Result != "" && e.Result != q.Result:
		return false
	case q.Category != "" && !isBelow(e.Category, q.Category) && !e.Holds(q.Category):
		return false
	case q.ID != "" && !e.mayBe(q.ID):
		return false
	case q.Sequence != 0 && !e.mayHold(q.Sequence):
		return false
	}
	return q.Title == "" || e.Count > 0 || strings.Contains(strings.ToLower(e.Title), strings.ToLower(q.Title))
}

// mayBe tells whether an event of the entry has an ID. Of a counted one nobody knows.
func (e Entry) mayBe(id string) bool {
	return isOf(e.ID, id) || e.Count > 0 && isOf(e.LastID, id)
}

// isOf tells whether a shown ID is the given one, or that of a part of its group.
func isOf(shown, id string) bool { return shown == id || strings.HasPrefix(shown, id+"/") }

// mayHold tells whether the entry may tell of the message with a sequence.
func (e Entry) mayHold(sequence uint64) bool {
	if e.Count == 0 {
		return e.Sequence == sequence
	}
	first, last := min(e.Sequence, e.LastSequence), max(e.Sequence, e.LastSequence)
	return first <= sequence && sequence <= last
}

// Reader finds entries. Its methods may be called at once.
type Reader struct {
	JetStream jetstream.JetStream
	Names     Names
}

// ErrNoJournal means that the journal's stream does not exist.
var ErrNoJournal = errors.New("there is no journal")

// fetchBatch is how many messages one request asks for.
const fetchBatch = 256

// Read says what a search has read.
type Read struct {
	Begins     time.Time // when the oldest message was published; zero: there was none
	Counted    int       // events of which the journal has only a count, and which may be meant although their entries do not match
	Unreadable int       // messages that cannot be decoded
}

// Find returns the entries that match, in the order in which they were decided. It reads what the stream holds when it is called. A
// message that cannot be decoded is passed over, and counted in unreadable.
func (r Reader) Find(ctx context.Context, q Query) (found []Entry, unreadable int, err error) {
	read, err := r.Search(ctx, q, func(e Entry) { found = append(found, e) })
	slices.SortStableFunc(found, func(a, b Entry) int { return a.Decided.Compare(b.Decided) })
	if q.Newest > 0 && len(found) > q.Newest {
		found = found[len(found)-q.Newest:]
	}
	return found, read.Unreadable, err
}

// Search hands over the entries that match, about in the order in which they were decided. It keeps none of them.
func (r Reader) Search(ctx context.Context, q Query, take func(Entry)) (read Read, err error) {
	wanted := q.lines()
	err = r.each(ctx, q, func(message jetstream.Msg) {
		if metadata, err := message.Metadata(); err == nil && read.Begins.IsZero() {
			read.Begins = metadata.Timestamp
		}
		entries, err := decode(message.Headers(), message.Data(), wanted)
		if err != nil {
			read.Unreadable++
		}
		for _, entry := range entries {
			if q.Matches(entry) {
				take(entry)
			} else if entry.Count > 0 && entry.Result != Told && q.mayMean(entry) {
				read.Counted += entry.Count
			}
		}
	})
	return read, err
}

// mayMean tells whether an event of an entry that counts may be looked for, by what such an entry has of all its events.
func (q Query) mayMean(e Entry) bool {
	q.ID, q.Title = "", ""
	return q.Matches(e)
}

// lines returns what tells whether a line may hold an entry that matches, without decoding it; nil: every line may. Lines of entries
// that count are always decoded.
func (q Query) lines() func(line []byte) bool {
	text := []byte(q.ID)
	if q.ID == "" && q.Sequence != 0 {
		text = strconv.AppendUint(nil, q.Sequence, 10)
	}
	isEscaped := func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }
	if len(text) == 0 || bytes.ContainsFunc(text, isEscaped) {
		return nil
	}
	return func(line []byte) bool { return bytes.Contains(line, text) || bytes.Contains(line, []byte(`"count":`)) }
}

// each hands over every message that may hold what is looked for.
func (r Reader) each(ctx context.Context, q Query, take func(jetstream.Msg)) error {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy}
	if !q.Since.IsZero() {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &q.Since
	}
	switch {
	case q.Result == Told: // of no category
		config.FilterSubjects = []string{r.Names.SubjectOf(event.NoLevel)}
	case q.Category != "":
		config.FilterSubjects = []string{r.Names.SubjectOf(event.FirstLevel(q.Category)), r.Names.SubjectOf(event.NoLevel)}
	}
	consumer, err := r.JetStream.OrderedConsumer(asking, r.Names.Stream, config)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: stream %q does not exist", ErrNoJournal, r.Names.Stream)
	}
	if err != nil {
		return fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
	}
	for {
		batch, err := consumer.FetchNoWait(fetchBatch)
		if err != nil {
			return fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
		}
		read := 0
		for message := range batch.Messages() {
			read++
			take(message)
		}
		switch err := batch.Error(); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !errors.Is(err, jetstream.ErrNoMessages):
			return fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
		case read == 0:
			return nil
		}
	}
}
