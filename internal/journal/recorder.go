package journal

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// Up to these many entries of a second are stored individually. The rest is aggregated. A producer may publish in one first-level category
// alone, so singlesPerFirst keeps it from using up singlesPerWorker.
const (
	SinglesPerCategory = 100 // and result
	singlesPerFirst    = 500 // first-level category and result
	singlesPerWorker   = 5000
)

// maxKinds is the maximum number of aggregated entries per second. The rest is merged per first level. Beyond maxKinds first levels, it is
// merged into one entry for all categories.
const maxKinds = 1000

const publishEvery = time.Second

const (
	publishTimeout   = 2 * time.Second // of one message
	provisionTimeout = 5 * time.Second // a cluster with too few servers is asked for replicas several times (package replicas)
)

// maxUnpublished is the maximum number of entries that stay in memory after publishing failed.
const maxUnpublished = 20_000

// maxBatch is the maximum number of entries in a message, and fullBatch the size from which a message takes no more, in bytes before
// compression. A server may take far less than the usual 1 MiB.
const (
	maxBatch  = 500
	fullBatch = 64 << 10
)

// Publisher stores messages. [jetstream.JetStream] implements it.
type Publisher interface {
	PublishMsg(ctx context.Context, message *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Metrics counts lost entries. Its methods may be called concurrently.
type Metrics interface {
	JournalLost(entries int)
}

// Options of a Recorder.
type Options struct {
	Publisher Publisher
	Names     Names
	Provision func(ctx context.Context) error // creates the stream if it is absent; nil: the recorder does not create it
	Instance  string                          // unique name of this start of the worker
	Logger    *slog.Logger
	Metrics   Metrics
}

// Recorder gathers the entries of a worker. A nil Recorder records nothing.
type Recorder struct {
	o Options

	mu     sync.Mutex
	second *second

	health Health

	writing *oplog.Condition
	losses  *oplog.Repeated[string]

	// Only Run uses these fields.
	unpublished []pile // with messages
	number      int    // of the newest message
	lost        Entry  // what was lost and is not yet in the journal; a count of 0: nothing
}

// Health reports how far a worker has written the journal. The zero value means: everything but the last second.
type Health struct {
	Error    string    `json:"error,omitempty"`         // why entries cannot be written; empty: they can
	Complete time.Time `json:"complete_until,omitzero"` // every entry of a result before this time is written
	Kept     int       `json:"kept_entries,omitempty"`  // in memory, to be written later
	Lost     int       `json:"lost_entries,omitempty"`  // since the worker started
}

// Health reports how far the journal is written.
func (r *Recorder) Health() Health {
	if r == nil {
		return Health{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.health
}

// NewRecorder returns a recorder. Its Run publishes the entries.
func NewRecorder(o Options) *Recorder {
	logger := o.Logger.With("stream", o.Names.Stream)
	return &Recorder{
		o: o, second: newSecond(),
		writing: oplog.NewCondition(logger, "cannot write the journal: notifier why will not know present results", "writing the journal again"),
		losses: oplog.NewRepeated(func(_ string, entries int, between []any) {
			logger.Warn("lost journal entries; notifier why cannot report these events", append(between, "entries", entries)...)
		}),
	}
}

// Detail is how much of an entry a recorder needs.
type Detail int

// Details of an entry.
const (
	Place Detail = iota // the message's sequence
	Brief               // the ID, too, and the message's time
	Full
)

// Record records the result of n events of a category, in the order of their sequences. Level is the level that denied them, or empty.
// Entry returns the entry of event i, from 0 to n-1. Record calls entry for a sample only. The function must not call the recorder.
func (r *Recorder) Record(category string, result Result, level string, n int, entry func(i int, d Detail) Entry) {
	if r == nil || n == 0 {
		return
	}
	k := kind{category: category, result: result, level: level}
	r.mu.Lock()
	singles := r.second.take(category, result, n)
	r.mu.Unlock()
	for i := range singles {
		e := k.entry(entry(i, Full)) // without the lock, since a large body takes a while
		r.mu.Lock()
		r.second.add(&e)
		r.mu.Unlock()
	}
	if singles == n {
		return
	}
	first, last := entry(singles, Place).Sequence, entry(n-1, Brief)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.second.count(k, n-singles, first, last, func() Entry { return k.entry(entry(singles, Full)) })
}

type second struct {
	piles   map[string]*pile // by first levels
	full    []pile
	singles map[kind]int // individual entries, by category and by first level (kind.below)
	counted map[kind]*Entry
	taken   int // individual entries
}

// pile holds the entries of one message as lines.
type pile struct {
	first   string // first level of the categories
	lines   []byte
	n       int
	from    time.Time // first decision
	to      time.Time // last decision
	message *nats.Msg // of the lines, once no more are added
}

// kind identifies an aggregated entry. Without a level, it is the subject of a bound.
type kind struct {
	category string
	result   Result
	level    string
	below    bool // at and below the category
}

func (k kind) entry(e Entry) Entry {
	e.Category, e.Result, e.Level, e.Title = k.category, k.result, k.level, plain.Title(e.Title)
	return e
}

func newSecond() *second {
	return &second{piles: make(map[string]*pile), singles: make(map[kind]int), counted: make(map[kind]*Entry)}
}

// take returns how many of n entries may be stored individually.
func (s *second) take(category string, result Result, n int) int {
	own := kind{category: category, result: result}
	first := kind{category: event.FirstLevel(category), result: result, below: true}
	free := min(n, SinglesPerCategory-s.singles[own], singlesPerFirst-s.singles[first], singlesPerWorker-s.taken)
	if free <= 0 {
		return 0 // without adding kinds to the map
	}
	s.singles[own] += free
	s.singles[first] += free
	s.taken += free
	return free
}

func (s *second) add(e *Entry) {
	first := event.FirstLevel(e.Category)
	p := s.piles[first]
	if p == nil {
		p = &pile{first: first}
		s.piles[first] = p
	}
	p.lines = appendLine(p.lines, *e)
	if p.from.IsZero() || e.Decided.Before(p.from) {
		p.from = e.Decided
	}
	if e.Decided.After(p.to) {
		p.to = e.Decided
	}
	if p.n++; p.n == maxBatch || len(p.lines) >= fullBatch {
		s.full = append(s.full, *p)
		*p = pile{first: first}
	}
}

// count aggregates n events of a kind, from the first sequence to the last event. The function inFull returns the complete first entry.
func (s *second) count(k kind, n int, first uint64, last Entry, inFull func() Entry) {
	if !s.mayCount(k) {
		k.category, k.below = event.FirstLevel(k.category), true
	}
	if !s.mayCount(k) {
		k.category = ""
	}
	counted := s.counted[k]
	if counted == nil {
		counted = &Entry{Sequence: first + 1}
		s.counted[k] = counted
	}
	so := *counted
	if first < counted.Sequence {
		*counted = inFull()
		counted.Category, counted.Below = k.category, k.below
	}
	counted.Count = so.Count + n
	counted.LastID, counted.LastSequence, counted.LastStored, counted.LastRound = so.LastID, so.LastSequence, so.LastStored, so.LastRound
	if so.Count == 0 || last.Sequence > so.LastSequence {
		counted.LastID, counted.LastSequence, counted.LastStored, counted.LastRound = last.ID, last.Sequence, last.Stored, last.Round
	}
}

func (s *second) mayCount(k kind) bool {
	most := maxKinds
	if k.below {
		most *= 2
	}
	return s.counted[k] != nil || len(s.counted) < most
}

// StopPatience is how long [Recorder.Run] continues after its context has ended.
const StopPatience = time.Second

// Run creates the stream if it may, publishes once a second until the context ends, and then publishes the rest.
func (r *Recorder) Run(ctx context.Context) {
	if r == nil {
		return
	}
	if r.o.Provision != nil {
		_ = r.o.Provision(ctx) // a failure shows when publishing fails
	}
	ticker := time.NewTicker(publishEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.publish(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopPatience)
			defer cancel()
			r.publish(last)
			r.lose(r.unpublished)
			r.losses.Stop()
			return
		}
	}
}

// publish publishes the piles that could not be published earlier, and then the new ones. It stops at the first failure and leaves the
// rest to the next second. A pile that is too large for the server or for the stream is lost.
func (r *Recorder) publish(ctx context.Context) {
	r.unpublished = append(r.unpublished, r.piles()...)
	var err error
	for len(r.unpublished) > 0 {
		err = r.publishMessage(ctx, r.unpublished[0].message)
		if messagesize.IsTooLarge(err) { // it will never be stored
			r.lose(r.unpublished[:1])
			err = nil
		}
		if err != nil {
			break
		}
		r.unpublished = r.unpublished[1:]
	}
	if err == nil && r.lost.Count > 0 {
		if err = r.publishMessage(ctx, r.nextMessage(event.NoLevel, appendLine(nil, r.lost))); err == nil {
			r.lost = Entry{}
		}
	}
	r.dropOldest()
	r.report(err)
}

// piles takes the recorded entries, one pile or more per first level.
func (r *Recorder) piles() []pile {
	r.mu.Lock()
	gathered := r.second
	r.second = newSecond()
	r.mu.Unlock()
	for _, counted := range gathered.counted {
		gathered.add(counted)
	}
	piles := gathered.full
	for _, p := range gathered.piles {
		if p.n > 0 {
			piles = append(piles, *p)
		}
	}
	for i := range piles {
		piles[i].message, piles[i].lines = r.nextMessage(piles[i].first, piles[i].lines), nil
	}
	return piles
}

func (r *Recorder) nextMessage(first string, lines []byte) *nats.Msg {
	r.number++
	name := r.o.Instance + "-" + strconv.Itoa(r.number)
	return newMessage(r.o.Names.SubjectOf(first), r.o.Instance, name, lines)
}

// publishMessage stores the message of a pile. It recreates a deleted stream if the recorder may.
func (r *Recorder) publishMessage(ctx context.Context, message *nats.Msg) error {
	err := r.store(ctx, message)
	if !errors.Is(err, jetstream.ErrNoStreamResponse) || r.o.Provision == nil {
		return err
	}
	creating, cancel := context.WithTimeout(ctx, provisionTimeout)
	defer cancel()
	if !await.For(creating, replicas.DeletionTime) {
		return err
	}
	if err := r.o.Provision(creating); err != nil {
		return err
	}
	return r.store(ctx, message)
}

// store stores one message. If its confirmation was lost, the stream ignores the second copy.
func (r *Recorder) store(ctx context.Context, message *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	_, err := r.o.Publisher.PublishMsg(ctx, message)
	return err
}

func (r *Recorder) dropOldest() {
	kept := 0
	for i, p := range slices.Backward(r.unpublished) {
		if kept += p.n; kept <= maxUnpublished {
			continue
		}
		r.lose(r.unpublished[:i+1])
		r.unpublished = r.unpublished[i+1:]
		return
	}
}

func (r *Recorder) lose(piles []pile) {
	n := 0
	for _, p := range piles {
		n += p.n
		if r.lost.Count == 0 || p.from.Before(r.lost.Stored) {
			r.lost.Stored = p.from
		}
		if p.to.After(r.lost.LastStored) {
			r.lost.LastStored, r.lost.Decided = p.to, p.to
		}
		r.lost.Result = Lost
		r.lost.Count += p.n
	}
	if n == 0 {
		return
	}
	r.o.Metrics.JournalLost(n)
	r.losses.Add("", n, "since", r.lost.Stored, "until", r.lost.LastStored)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.health.Lost += n
}

// report updates how far the journal is written, and logs when publishing begins to fail, and when it works again.
func (r *Recorder) report(err error) {
	if errors.Is(err, context.Canceled) { // Run is about to publish once more
		return
	}
	health := Health{}
	for _, p := range r.unpublished {
		health.Kept += p.n
		if health.Complete.IsZero() || p.from.Before(health.Complete) {
			health.Complete = p.from
		}
	}
	if err != nil {
		health.Error = err.Error()
		if r.lost.Count > 0 { // the journal does not have the entry about the loss yet
			health.Complete = r.lost.Stored
		}
	}
	r.mu.Lock()
	health.Lost = r.health.Lost
	r.health = health
	r.mu.Unlock()
	r.writing.Note(err, "lost_entries", health.Lost)
}
