package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Query says which entries are looked for: those that meet every condition that is set.
type Query struct {
	IDs      []string  // of the event, one of these: as ShownID or without the part of a group
	Sequence uint64    // of the producer's message
	Category string    // and everything below it
	Title    string    // part of the title, in any letter case
	Result   Result    // "": every result of events
	Since    time.Time // when the entries were published
}

// Matches tells whether the entry may be of an event that is looked for. An entry that counts events matches if it has a range of
// sequences around the one that is looked for. An ID matches the first and the last of the counted events, whose IDs alone are known.
// A title matches any entry that counts.
func (q *Query) Matches(e *Entry) bool {
	switch {
	case q.Result == "" && !e.Result.ofEvents(), q.Result != "" && e.Result != q.Result:
		return false
	case q.Category != "" && !isBelow(e.Category, q.Category) && !e.holds(q.Category):
		return false
	case len(q.IDs) > 0 && !slices.ContainsFunc(q.IDs, e.mayBe):
		return false
	case q.Sequence != 0 && !e.mayHold(q.Sequence):
		return false
	}
	return q.Title == "" || e.Count > 0 || strings.Contains(strings.ToLower(e.Title), strings.ToLower(q.Title))
}

// mayBe tells whether an event of the entry has an ID. Of a counted one nobody knows.
func (e *Entry) mayBe(id string) bool {
	return e.isShown(e.ID, id) || e.Count > 0 && e.isShown(e.LastID, id)
}

// isShown tells whether an event of the entry's category with an ID is shown so.
func (e *Entry) isShown(shown, id string) bool {
	return isOf(shown, id) || strings.HasPrefix(shown, e.Category+"/") && isOf(shown[len(e.Category)+1:], id) ||
		strings.HasPrefix(shown, hashPrefix) && isOf(shown, event.OverHTTP(e.Category, id))
}

// hashPrefix begins an ID that replaces a longer one. The producer's stands in no entry then.
const hashPrefix = "sha256:"

// isOf tells whether a shown ID is the given one, or that of a part of its group.
func isOf(shown, id string) bool { return shown == id || strings.HasPrefix(shown, id+"/") }

// mayHold tells whether the entry may tell of the message with a sequence.
func (e *Entry) mayHold(sequence uint64) bool {
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
	Forged    func(n int) // called when Follow ignores messages that no worker wrote; nil: nobody counts them
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
	Forged     int       // messages that no worker wrote, which are ignored
	Lost       []Entry   // say which entries the journal lacks
}

// Search reads what the stream holds when it is called. It hands over the entries that match, each with the number of its query, about in
// the order in which they were decided, and keeps none of them. It returns what each query has read.
func (r Reader) Search(ctx context.Context, queries []Query, take func(query int, e Entry)) ([]Read, error) {
	reads := make([]Read, len(queries))
	wanted := linesOf(queries)
	err := r.each(ctx, queries, func(message jetstream.Msg) {
		metadata, err := message.Metadata()
		if err != nil {
			return // it is none of the stream
		}
		isForged := !trusted.IsMarked(message.Headers())
		var entries []Entry
		if !isForged {
			entries, err = decode(message.Headers(), message.Data(), wanted)
		}
		for i := range queries {
			if metadata.Timestamp.Before(queries[i].Since) {
				continue
			}
			if isForged {
				reads[i].Forged++
				continue
			}
			if reads[i].Begins.IsZero() {
				reads[i].Begins = metadata.Timestamp
			}
			if err != nil {
				reads[i].Unreadable++
			}
			for j := range entries {
				switch entry := &entries[j]; {
				case entry.Result == Lost:
					reads[i].Lost = append(reads[i].Lost, *entry)
				case queries[i].Matches(entry):
					take(i, *entry)
				case entry.Count > 0 && entry.Result.ofEvents() && queries[i].mayMean(entry):
					reads[i].Counted += entry.Count
				}
			}
		}
	})
	return reads, err
}

// Categories lists the categories of the entries that the stream holds when it is called, sorted. Beside an error it returns those found.
func (r Reader) Categories(ctx context.Context) ([]string, error) {
	found := make(map[string]bool)
	err := r.each(ctx, []Query{{}}, func(message jetstream.Msg) {
		for category := range categoriesOf(message.Data()) {
			if len(found) < maxCategories {
				found[category] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found)), err
}

// maxCategories bounds a list of categories: producers choose them.
const maxCategories = 100_000

// mayMean tells whether an event of an entry that counts may be looked for, by what such an entry has of all its events.
func (q *Query) mayMean(e *Entry) bool {
	ofAll := Query{Sequence: q.Sequence, Category: q.Category, Result: q.Result}
	return ofAll.Matches(e)
}

// fewTexts is up to how many texts of queries a line is searched for before it is decoded.
const fewTexts = 8

// linesOf returns what tells whether a line may hold an entry that matches a query, without decoding it; nil: every line may. Lines of
// entries that count are always decoded.
func linesOf(queries []Query) func(line []byte) bool {
	var texts [][]byte
	for _, q := range queries {
		switch {
		case len(q.IDs) > 0:
			for _, id := range q.IDs {
				texts = append(texts, []byte(id))
			}
			texts = append(texts, []byte(`"`+hashPrefix))
		case q.Sequence != 0:
			texts = append(texts, strconv.AppendUint(nil, q.Sequence, 10))
		default:
			return nil
		}
	}
	if len(texts) > fewTexts || slices.ContainsFunc(texts, hasEscaped) {
		return nil
	}
	return func(line []byte) bool {
		return bytes.Contains(line, []byte(`"count":`)) ||
			slices.ContainsFunc(texts, func(text []byte) bool { return bytes.Contains(line, text) })
	}
}

// hasEscaped tells whether a line may have a text in another form. A quote at its beginning is that of the line.
func hasEscaped(text []byte) bool {
	return bytes.ContainsFunc(bytes.TrimPrefix(text, []byte(`"`)), isEscaped)
}

// subjectsOf lists the subjects of entries that may match; nil for all.
func (r Reader) subjectsOf(queries []Query) []string {
	subjects := []string{r.Names.SubjectOf(event.NoLevel)} // of no category, and counts of many
	for _, q := range queries {
		if q.Result == Told { // of no category
			continue
		}
		if q.Category == "" {
			return nil
		}
		subjects = append(subjects, r.Names.SubjectOf(event.FirstLevel(q.Category)))
	}
	slices.Sort(subjects)
	return slices.Compact(subjects)
}

// oldest is since when entries are looked for.
func oldest(queries []Query) time.Time {
	return slices.MinFunc(queries, func(a, b Query) int { return a.Since.Compare(b.Since) }).Since
}

// each hands over every message that may hold what is looked for.
func (r Reader) each(ctx context.Context, queries []Query, take func(jetstream.Msg)) error {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: r.subjectsOf(queries), InactiveThreshold: inactiveReader,
	}
	if since := oldest(queries); !since.IsZero() {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	consumer, messages, err := r.open(asking, config)
	if err != nil {
		return err
	}
	defer messages.Stop()
	for left := consumer.CachedInfo().NumPending; left > 0; {
		message, err := nextWithin(ctx, messages)
		if err != nil {
			return fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
		}
		take(message)
		left--
		if metadata, err := message.Metadata(); err == nil {
			left = min(left, metadata.NumPending) // older ones may have gone meanwhile
		}
	}
	return nil
}

// open makes a consumer that reads the stream in order. One consumer reads everything: fetches from an ordered consumer make a new one
// each, and the server takes a bounded number.
func (r Reader) open(ctx context.Context, config jetstream.OrderedConsumerConfig) (jetstream.Consumer, jetstream.MessagesContext, error) {
	consumer, err := r.JetStream.OrderedConsumer(ctx, r.Names.Stream, config)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, fmt.Errorf("%w: stream %q does not exist", ErrNoJournal, r.Names.Stream)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(fetchBatch))
	if err != nil {
		return nil, nil, fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
	}
	return consumer, messages, nil
}

// nextWithin waits for a message as long as for an answer.
func nextWithin(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	waiting, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	message, err := messages.Next(jetstream.NextContext(waiting))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return message, err
}
