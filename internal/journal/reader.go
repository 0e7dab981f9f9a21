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

// Query selects the entries that meet every condition that is set.
type Query struct {
	IDs      []string  // one of these IDs: event.Event.ShownID, with or without the part of a group
	Sequence uint64    // of the producer's message
	Category string    // the category and everything below it
	Title    string    // part of the title, in any letter case
	Result   Result    // "": every result of events
	Since    time.Time // entries published at or after this time
}

// Matches reports whether the entry may be about a selected event. An aggregated entry has only the first and the last ID and sequence.
// It matches one of these two IDs, every sequence in between, and every title.
func (q *Query) Matches(e *Entry) bool {
	switch {
	case q.Result == "" && !e.Result.ofEvents(), q.Result != "" && e.Result != q.Result:
		return false
	case q.Category != "" && !event.IsBelow(e.Category, q.Category) && (!e.Below || !event.IsBelow(q.Category, e.Category)):
		return false
	case len(q.IDs) > 0 && !slices.ContainsFunc(q.IDs, e.mayBe):
		return false
	case q.Sequence != 0 && !e.mayHold(q.Sequence):
		return false
	}
	return q.Title == "" || e.Count > 0 || strings.Contains(strings.ToLower(e.Title), strings.ToLower(q.Title))
}

// mayBe reports whether the entry's event, or the first or last event of an aggregated entry, has an ID.
func (e *Entry) mayBe(id string) bool {
	return e.isShown(e.ID, id) || e.Count > 0 && e.isShown(e.LastID, id)
}

// isShown reports whether people see an ID of the entry's category in this form.
func (e *Entry) isShown(shown, id string) bool {
	return isOf(shown, id) || strings.HasPrefix(shown, e.Category+"/") && isOf(shown[len(e.Category)+1:], id) ||
		strings.HasPrefix(shown, hashPrefix) && isOf(shown, event.OverHTTP(e.Category, id))
}

// hashPrefix begins an ID that replaces a long one. Entries do not hold the producer's long ID.
const hashPrefix = "sha256:"

// isOf reports whether a shown ID is the given ID or a part of that group.
func isOf(shown, id string) bool { return shown == id || strings.HasPrefix(shown, id+"/") }

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
}

// ErrNoJournal means that the journal's stream does not exist.
var ErrNoJournal = errors.New("there is no journal")

const fetchBatch = 256

// Read reports what a search has read.
type Read struct {
	Begins     time.Time // when the oldest message was published; zero: there was none
	Counted    int       // aggregated events that the query may mean although their entries do not match
	Unreadable int       // messages that cannot be decoded
	Forged     int       // ignored messages that no worker wrote
	Lost       []Entry   // with Result Lost: the gaps in the journal
}

// Search reads what the stream holds at the time of the call. It calls take for each entry that matches, with the number of its query,
// roughly in the order of the decisions. It returns a Read for each query.
func (r Reader) Search(ctx context.Context, queries []Query, take func(query int, e Entry)) ([]Read, error) {
	begins, err := r.begins(ctx)
	if err != nil {
		return nil, err
	}
	reads := make([]Read, len(queries))
	for i := range reads {
		reads[i].Begins = begins
	}
	wanted := linesOf(queries)
	err = r.each(ctx, queries, func(message jetstream.Msg) {
		metadata, err := message.Metadata()
		if err != nil {
			return // not a message of the stream
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

// begins returns when the oldest message of the stream was published. A search cannot return it: it reads a part of the stream.
func (r Reader) begins(ctx context.Context) (time.Time, error) {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := r.JetStream.Stream(asking, r.Names.Stream)
	if err != nil {
		return time.Time{}, r.explain(err)
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return time.Time{}, nil
	}
	return state.FirstTime, nil
}

// Categories lists the categories in the stream, sorted. With an error, it returns the categories found until then.
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

// mayMean reports whether the query may mean an event of an aggregated entry, judged by what the entry has of all its events.
func (q *Query) mayMean(e *Entry) bool {
	ofAll := Query{Sequence: q.Sequence, Category: q.Category, Result: q.Result}
	return ofAll.Matches(e)
}

// fewTexts is the largest number of texts that Search looks for in a line before it decodes the line.
const fewTexts = 8

// linesOf returns a filter for decode that selects lines of aggregated entries and of entries that may match a query; nil: every line.
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
	mayBeEscaped := func(text []byte) bool { // a quote at the beginning belongs to the line's syntax
		return bytes.ContainsFunc(bytes.TrimPrefix(text, []byte(`"`)), func(c rune) bool { return c < ' ' || c > '~' || c == '"' || c == '\\' })
	}
	if len(texts) > fewTexts || slices.ContainsFunc(texts, mayBeEscaped) {
		return nil
	}
	return func(line []byte) bool {
		return bytes.Contains(line, []byte(`"count":`)) ||
			slices.ContainsFunc(texts, func(text []byte) bool { return bytes.Contains(line, text) })
	}
}

// subjectsOf lists the subjects of entries that may match. nil means all subjects.
func (r Reader) subjectsOf(queries []Query) []string {
	subjects := []string{r.Names.SubjectOf(event.NoLevel)} // without a category, or aggregated over all categories
	for _, q := range queries {
		if q.Result == Digest { // has no category
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

func (r Reader) each(ctx context.Context, queries []Query, take func(jetstream.Msg)) error {
	asking, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	config := jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: r.subjectsOf(queries), InactiveThreshold: inactiveReader,
	}
	oldest := slices.MinFunc(queries, func(a, b Query) int { return a.Since.Compare(b.Since) })
	if since := oldest.Since; !since.IsZero() {
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
			return r.explain(err)
		}
		take(message)
		left--
		if metadata, err := message.Metadata(); err == nil {
			left = min(left, metadata.NumPending) // messages may have expired during the search
		}
	}
	return nil
}

// open creates one consumer that reads the stream in order. Every Fetch would create another, and the server bounds their number.
func (r Reader) open(ctx context.Context, config jetstream.OrderedConsumerConfig) (jetstream.Consumer, jetstream.MessagesContext, error) {
	consumer, err := r.JetStream.OrderedConsumer(ctx, r.Names.Stream, config)
	if err != nil {
		return nil, nil, r.explain(err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(fetchBatch))
	if err != nil {
		return nil, nil, r.explain(err)
	}
	return consumer, messages, nil
}

// explain names the stream in an error, and turns that of a missing stream into ErrNoJournal.
func (r Reader) explain(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: stream %q does not exist", ErrNoJournal, r.Names.Stream)
	}
	return fmt.Errorf("reading stream %q: %w", r.Names.Stream, err)
}

func nextWithin(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	waiting, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	message, err := messages.Next(jetstream.NextContext(waiting))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return message, err
}
