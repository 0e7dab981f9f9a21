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

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// How many entries of one second stand singly; others are counted. The bound for a first level keeps producers of a neighbour's
// size, who may publish in one first-level category alone, from taking the worker's.
const (
	SinglesPerCategory = 100 // and result
	singlesPerFirst    = 500 // first-level category and result
	singlesPerWorker   = 5000
)

// maxKinds is of how many categories, results and levels a second has entries that count. The others of that second are counted for
// their first-level categories, and those beyond maxKinds of these for all categories.
const maxKinds = 1000

// publishEvery is how often a worker publishes its entries.
const publishEvery = time.Second

// publishTimeout bounds the storing of one batch.
const publishTimeout = 2 * time.Second

// Batches that could not be published are kept for later seconds, up to a number of entries.
const maxUnpublished = 20_000

// maxBatch is how many entries a message has: about 100 KB before they are compressed.
const maxBatch = 500

// Publisher stores messages. [jetstream.JetStream] is one.
type Publisher interface {
	PublishMsg(ctx context.Context, message *nats.Msg, options ...jetstream.PublishOpt) (*jetstream.PubAck, error)
}

// Metrics is told of what the journal does. Its methods may be called at once.
type Metrics interface {
	JournalLost(entries int)
}

// Options of a Recorder.
type Options struct {
	Publisher Publisher
	Names     Names
	Provision func(ctx context.Context) error // makes the stream, where it is found absent; nil: nobody does
	Instance  string                          // a name that no other start of a worker has
	Logger    *slog.Logger
	Metrics   Metrics
}

// Recorder gathers the entries of a worker. A nil Recorder records nothing.
type Recorder struct {
	o Options

	mu     sync.Mutex
	second *second

	health Health

	unpublished []batch   // Run alone uses it, as what follows
	number      int       // of the newest batch
	failing     bool      // entries cannot be published
	lost        Entry     // says what was lost, until the journal has it; a count of 0: nothing
	unlogged    int       // entries that were lost since the log said so
	logged      time.Time // when the log said so
}

// Health says how far a worker has written the journal. The zero value says that all is written, but for the last second.
type Health struct {
	Error    string    `json:"error,omitempty"`         // why entries cannot be written; "": they can
	Complete time.Time `json:"complete_until,omitzero"` // every entry of a result before this time is written
	Kept     int       `json:"kept_entries,omitempty"`  // that are written when that works again
	Lost     int       `json:"lost_entries,omitempty"`  // since the worker started
}

// Health says how far the journal is written. It may be called by anybody.
func (r *Recorder) Health() Health {
	if r == nil {
		return Health{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.health
}

// NewRecorder returns a recorder whose entries are published while Run runs.
func NewRecorder(o Options) *Recorder { return &Recorder{o: o, second: newSecond()} }

// Record tells what became of n events of a category, in the order of their sequences, and of which level denied each, if one did. Entry
// returns what is to be told of one of them, from 0 to n-1; not in full, only its ID, message and the time when that was stored. It is
// asked for few of many, and must not call the recorder.
func (r *Recorder) Record(category string, result Result, level string, n int, entry func(i int, inFull bool) Entry) {
	if r == nil || n == 0 {
		return
	}
	k := kind{category: category, result: result, level: level}
	r.mu.Lock()
	singles := r.second.take(category, result, n)
	r.mu.Unlock()
	for i := range singles {
		e := k.entry(entry(i, true)) // may take a while, for a large body: others record meanwhile
		r.mu.Lock()
		r.second.add(&e)
		r.mu.Unlock()
	}
	if singles == n {
		return
	}
	first, last := entry(singles, false), entry(n-1, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.second.count(k, n-singles, first, last, func() Entry { return k.entry(entry(singles, true)) })
}

// second is what a recorder gathers between two times that it publishes.
type second struct {
	piles   map[string]*pile // by first levels
	full    []pile
	singles map[kind]int // of categories and of first levels, whose kinds are below
	counted map[kind]*Entry
	taken   int // entries that stand singly
}

// pile is the entries of a message, as lines.
type pile struct {
	first string // level of their categories
	lines []byte
	n     int
	from  time.Time // when the first and the last of their results were decided
	to    time.Time
}

// kind is what an entry counts, or what a bound is of.
type kind struct {
	category string
	result   Result
	level    string
	below    bool // at and below the category
}

// entry completes an entry of the kind.
func (k kind) entry(e Entry) Entry {
	e.Category, e.Result, e.Level, e.Title = k.category, k.result, k.level, plain.Title(e.Title)
	return e
}

func newSecond() *second {
	return &second{piles: make(map[string]*pile), singles: make(map[kind]int), counted: make(map[kind]*Entry)}
}

// take returns how many of n entries stand singly.
func (s *second) take(category string, result Result, n int) int {
	own := kind{category: category, result: result}
	first := kind{category: event.FirstLevel(category), result: result, below: true}
	free := min(n, SinglesPerCategory-s.singles[own], singlesPerFirst-s.singles[first], singlesPerWorker-s.taken)
	if free <= 0 {
		return 0 // kinds without entries take no memory
	}
	s.singles[own] += free
	s.singles[first] += free
	s.taken += free
	return free
}

// add adds an entry to the pile of its first level.
func (s *second) add(e *Entry) {
	first := event.FirstLevel(e.Category)
	p := s.piles[first]
	if p == nil {
		p = &pile{first: first}
		s.piles[first] = p
	}
	p.lines = appendLine(p.lines, e)
	if p.from.IsZero() || e.Decided.Before(p.from) {
		p.from = e.Decided
	}
	if e.Decided.After(p.to) {
		p.to = e.Decided
	}
	if p.n++; p.n == maxBatch {
		s.full = append(s.full, *p)
		*p = pile{first: first}
	}
}

// count counts n events of a kind, from the first to the last. In full is the first one's entry.
func (s *second) count(k kind, n int, first, last Entry, inFull func() Entry) {
	if !s.mayCount(k) {
		k.category, k.below = event.FirstLevel(k.category), true
	}
	if !s.mayCount(k) {
		k.category = ""
	}
	counted := s.counted[k]
	if counted == nil {
		counted = &Entry{Sequence: first.Sequence + 1}
		s.counted[k] = counted
	}
	so := *counted
	if first.Sequence < counted.Sequence {
		*counted = inFull()
		counted.Category, counted.Below = k.category, k.below
	}
	counted.Count = so.Count + n
	counted.LastID, counted.LastSequence, counted.LastStored, counted.LastRound = so.LastID, so.LastSequence, so.LastStored, so.LastRound
	if so.Count == 0 || last.Sequence > so.LastSequence {
		counted.LastID, counted.LastSequence, counted.LastStored, counted.LastRound = last.ID, last.Sequence, last.Stored, last.Round
	}
}

// mayCount tells whether events of a kind may have an entry of their own.
func (s *second) mayCount(k kind) bool {
	most := maxKinds
	if k.below {
		most *= 2
	}
	return s.counted[k] != nil || len(s.counted) < most
}

// batch is a pile as it is stored.
type batch struct {
	message  *nats.Msg
	entries  int
	from, to time.Time // of the pile
}

// StopPatience is how long [Recorder.Run] goes on when its context has ended.
const StopPatience = time.Second

// Run publishes once a second until the context ends, and then what is left. It makes the stream first, if that is its task.
func (r *Recorder) Run(ctx context.Context) {
	if r == nil {
		return
	}
	if r.o.Provision != nil {
		_ = r.o.Provision(ctx) // what is wrong shows when entries cannot be published
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
			r.reportLost(true)
			return
		}
	}
}

// publish publishes what was gathered, and before it what could not be published earlier. The first failure ends it: the rest is
// for the next second.
func (r *Recorder) publish(ctx context.Context) {
	r.unpublished = append(r.unpublished, r.batches()...)
	var err error
	for len(r.unpublished) > 0 {
		if err = r.publishBatch(ctx, r.unpublished[0].message); err != nil {
			break
		}
		r.unpublished = r.unpublished[1:]
	}
	if err == nil && r.lost.Count > 0 {
		if err = r.publishBatch(ctx, r.nextMessage(event.NoLevel, appendLine(nil, &r.lost))); err == nil {
			r.lost = Entry{}
		}
	}
	r.dropOldest()
	r.report(err)
	r.reportLost(false)
}

// batches takes what was gathered, by first-level categories.
func (r *Recorder) batches() []batch {
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
	batches := make([]batch, len(piles))
	for i, p := range piles {
		batches[i] = batch{message: r.nextMessage(p.first, p.lines), entries: p.n, from: p.from, to: p.to}
	}
	return batches
}

// nextMessage makes a message of lines of a first level.
func (r *Recorder) nextMessage(first string, lines []byte) *nats.Msg {
	r.number++
	name := r.o.Instance + "-" + strconv.Itoa(r.number)
	return pile{lines: lines}.message(r.o.Names.SubjectOf(first), r.o.Instance, name)
}

// publishBatch stores one batch. The stream knows a batch again that it stored before although its confirmation was lost.
func (r *Recorder) publishBatch(ctx context.Context, message *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	_, err := r.o.Publisher.PublishMsg(ctx, message)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && r.o.Provision != nil {
		err = r.o.Provision(ctx)
		if err == nil {
			_, err = r.o.Publisher.PublishMsg(ctx, message)
		}
	}
	return err
}

// dropOldest loses the oldest batches beyond what is kept.
func (r *Recorder) dropOldest() {
	kept := 0
	for i, b := range slices.Backward(r.unpublished) {
		if kept += b.entries; kept <= maxUnpublished {
			continue
		}
		r.lose(r.unpublished[:i+1])
		r.unpublished = r.unpublished[i+1:]
		return
	}
}

// lose counts batches as lost.
func (r *Recorder) lose(batches []batch) {
	for _, b := range batches {
		if r.lost.Count == 0 || b.from.Before(r.lost.Stored) {
			r.lost.Stored = b.from
		}
		if b.to.After(r.lost.LastStored) {
			r.lost.LastStored, r.lost.Decided = b.to, b.to
		}
		r.lost.Result = Lost
		r.lost.Count += b.entries
		r.unlogged += b.entries
		r.o.Metrics.JournalLost(b.entries)
		r.mu.Lock()
		r.health.Lost += b.entries
		r.mu.Unlock()
	}
}

// lossLogged is how often the log says that entries are being lost.
const lossLogged = time.Minute

// reportLost logs entries that were lost: the first ones at once, further ones once in a while or at the end.
func (r *Recorder) reportLost(isEnd bool) {
	if r.unlogged == 0 || !isEnd && time.Since(r.logged) < lossLogged {
		return
	}
	r.o.Logger.Warn("lost entries of the journal: notifier why will never know of these results",
		"stream", r.o.Names.Stream, "entries", r.unlogged, "since", r.lost.Stored, "until", r.lost.LastStored)
	r.unlogged, r.logged = 0, time.Now()
}

// report notes how far the journal is written, and logs when publishing begins to fail, and when it works again.
func (r *Recorder) report(err error) {
	if errors.Is(err, context.Canceled) { // Run has ended, and publishes once more
		return
	}
	health := Health{}
	for _, b := range r.unpublished {
		health.Kept += b.entries
		if health.Complete.IsZero() || b.from.Before(health.Complete) {
			health.Complete = b.from
		}
	}
	if err != nil {
		health.Error = err.Error()
		if r.lost.Count > 0 { // nothing in the journal says so yet
			health.Complete = r.lost.Stored
		}
	}
	r.mu.Lock()
	health.Lost = r.health.Lost
	r.health = health
	r.mu.Unlock()
	switch {
	case err != nil && !r.failing:
		r.failing = true
		r.o.Logger.Warn("the journal cannot be written: notifier why will not know of what happens now", "stream", r.o.Names.Stream, "error", err)
	case err == nil && r.failing:
		r.o.Logger.Info("the journal is written again", "stream", r.o.Names.Stream, "lost_entries", health.Lost)
		r.failing = false
	}
}
