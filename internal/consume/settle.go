package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// settlement is a message whose outcome is durable.
type settlement struct {
	*message
	outcome journal.Result // "": the outcome is already counted or the event goes on in another message
	goesOn  bool           // the event goes on in the room
	denial  *store.Denial  // denial of a dropped event
	refused string         // why a dropped event could not wait for a slot (journal.TooMany, TooLate, TooLarge); "" for any other event
	fold    *store.Fold    // of a folded event
	fault   *event.Fault   // fault of a dead letter
	decided time.Time      // time of the decision, by this host's clock
}

// done returns the settlement of an event that was delivered before, and counted. A replay is another message with the same ID.
func done(c candidate) settlement {
	if c.entry.Replayed() {
		return settlement{message: c.message, outcome: journal.Duplicate}
	}
	return settlement{message: c.message}
}

// EventMetrics counts what becomes of events. Its methods may be called concurrently.
type EventMetrics interface {
	Event(category, outcome string, n int)
	Dropped(category, level string, n int, trace string) // trace: the trace ID of one of the events, "" for none
	EventAge(d time.Duration, trace string)              // age of a sent event that waited for no slot, and its trace ID, "" for none
	Redelivered(n int)
	Resolved(result string) // "paired", "unpaired"
}

// settler acknowledges, naks or terminates messages, and reports each outcome once. Its methods may be called concurrently.
type settler struct {
	streams  *stream.Client
	lease    time.Duration // how long a message belongs to a worker that has received it or extended its lease
	settlers *settle.Settlers[settlement]
	tally    *tally
	letters  letterStore
	owing    owing
	reader   *reader
	reporter *reporter
	stays    *stays
	drops    dropCounter
	mutes    UnreportedMutes
	metrics  EventMetrics
}

// UnreportedMutes returns the texts of the mutes that cover a category, and of past ones whose reports may not be posted yet: a part of the mutes
// of a [throttle.Limiter].
type UnreportedMutes interface {
	UnreportedMutes(category string) []string
}

type letterStore struct {
	writer *deadletters.Writer
	health *oplog.Condition
}

// owing are the settlements that wait until Redis has the end of their events' grants.
type owing struct {
	waiting  sync.WaitGroup
	stopping chan struct{} // closed when the worker ends
}

type dropCounter struct {
	count      func([]summary.Drop) (round int64)
	showsFolds bool // see settlerOptions.ShowsFolds
}

// settlerOptions configure a settler.
type settlerOptions struct {
	Streams    *stream.Client
	Reader     *reader
	Reporter   *reporter
	Stays      *stays
	Mutes      UnreportedMutes
	Drops      func([]summary.Drop) (round int64) // counts dropped events once their settlement is confirmed (summary.Counter.Add)
	ShowsFolds bool                               // messages show what is folded into them; else the digests count it
	Metrics    EventMetrics
	Letters    deadletters.Metrics
	Logger     *slog.Logger
}

func newSettler(o settlerOptions) *settler {
	letters := deadletters.NewWriter(deadletters.WriterOptions{
		Streams: o.Streams, MaxBody: o.Reader.MaxBytes, Metrics: o.Letters, Logger: o.Logger,
	})
	s := &settler{
		streams: o.Streams, lease: o.Streams.Layout().AckWait(), tally: newTally(o.Streams.Connection.Conn, o.Metrics),
		reader: o.Reader, reporter: o.Reporter, stays: o.Stays, mutes: o.Mutes, metrics: o.Metrics,
		letters: letterStore{letters, oplog.NewCondition(o.Logger, "cannot store dead letters", "storing dead letters again")},
		owing:   owing{stopping: make(chan struct{})},
		drops:   dropCounter{o.Drops, o.ShowsFolds},
	}
	s.settlers = settle.New(settle.Options[settlement]{
		Conn: o.Streams.Connection.Conn, Confirmed: s.confirmed, Patience: patientFor * s.lease,
		Abandoned: func(batch []settlement) {
			for _, settled := range batch {
				settled.span.Left(tracing.Unconfirmed)
			}
		},
	})
	return s
}

// start begins to end stays.
func (s *settler) start() { s.stays.start() }

// failing returns why the dead letter that was last to be stored was not; nil if it was.
func (s *settler) failing() error { return s.letters.health.Failing() }

// close waits until all messages are acknowledged or returned, and reported. It gives up when the context ends.
func (s *settler) close(ctx context.Context) {
	close(s.owing.stopping)
	s.awaitOwed()
	s.settlers.Close(ctx)
	s.letters.writer.Close()
	s.stays.leaving.close()
	_ = s.streams.Connection.Conn.FlushWithContext(ctx)
}

// awaitOwed waits for the goroutines that settle a message, or return its slots, later.
func (s *settler) awaitOwed() { s.owing.waiting.Wait() }

// tally counts each settlement that the server has confirmed once. Its methods may be called concurrently.
type tally struct {
	conn       *nats.Conn
	metrics    EventMetrics
	remembered *lru.Cache[stored, struct{}] // messages that were settled late or in a second delivery
}

func newTally(conn *nats.Conn, metrics EventMetrics) *tally {
	remembered, _ := lru.New[stored, struct{}](mostRemembered) // fails only if the size is not positive
	return &tally{conn: conn, metrics: metrics, remembered: remembered}
}

// stored identifies a message, even if its stream is recreated.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

func storedAs(m *message) stored {
	return stored{m.meta.Stream, m.meta.Sequence.Stream, m.meta.Timestamp.UnixNano()}
}

// mostRemembered bounds the messages that a tally remembers: more than all instances together can have unacknowledged.
const mostRemembered = 2 * stream.MaxAckPending

// knows reports whether the event of a message has ended here, and the message was delivered again before a late acknowledgement was handled.
func (t *tally) knows(m *message) bool {
	return t.remembered.Len() > 0 && t.remembered.Contains(storedAs(m))
}

// knows reports whether the event of a message has ended here: see tally.
func (s *settler) knows(m *message) bool { return s.tally.knows(m) }

// patientFor is for how many acknowledgement waits a settler waits for a confirmation. After that, a redelivery settles the message.
const patientFor = 4

// count counts confirmed settlements, and returns them with their kinds. If a message was delivered again because its settlement was late, the
// first of its two settlements is counted and returned, whichever it is. Failed is when the consumer last failed to confirm; zero: never.
func (t *tally) count(batch []settlement, failed time.Time) (counted []settlement, groups []outcomes) {
	for _, settled := range batch {
		settled.span.Settled(string(settled.outcome), settled.decided)
	}
	now, connection := time.Now(), t.conn.Stats().Reconnects
	counted = slices.DeleteFunc(batch, func(settled settlement) bool {
		// It is late on a lost connection, with an expired lease, or for a consumer that may have been recreated before it confirmed.
		late := settled.from.Reconnects != connection || settled.lease.leftAt(now) <= 0 || settled.decided.Before(failed)
		if late || settled.meta.NumDelivered > 1 {
			before, _ := t.remembered.ContainsOrAdd(storedAs(settled.message), struct{}{})
			return before
		}
		return t.knows(settled.message)
	})
	groups = alike(counted)
	for _, g := range groups {
		t.metrics.Event(g.category, string(g.outcome), len(g.members))
		if g.level != "" {
			t.metrics.Dropped(g.category, g.level, len(g.members), g.trace)
		}
	}
	return counted, groups
}

// confirmed counts a batch whose settlement the server has confirmed, and reports it to the log, the digests, the room and the journal.
func (s *settler) confirmed(batch []settlement, failed time.Time) {
	batch, groups := s.tally.count(batch, failed)
	s.reporter.logOutcomes(batch...)
	var round int64
	if drops := append(s.drops.dropsOf(batch, groups), s.endsUnderMutes(batch)...); len(drops) > 0 {
		round = s.drops.count(drops)
	}
	s.stays.leaveSettled(batch)
	for _, g := range groups {
		s.reporter.recordOutcomes(batch, g, round)
	}
}

// countSent counts an event whose delivery this worker was the first to record. Its message may be settled more than once.
func (s *settler) countSent(e sent) {
	m := e.message
	if m.entry.IsReport() {
		return
	}
	// What waited for a slot is late by intent. In its channel's queue it is not known of an event whether it did.
	if !m.waited() && (!m.holdsSlots() || s.reader.delay(m.about.category) == 0) {
		s.metrics.EventAge(s.streams.Clock.Since(m.entry.Since), m.span.TraceID())
	}
	if e.resolves && m.entry.Order.Action == "" {
		s.metrics.Resolved("paired")
		if ended := s.endsUnderMutes([]settlement{{message: m}}); len(ended) > 0 {
			s.drops.count(ended)
		}
	}
	s.metrics.Event(m.about.category, string(journal.Sent), 1)
	s.reporter.logOutcomes(settlement{message: m, outcome: journal.Sent, denial: e.denial})
}

// kind is the key by which outcomes are counted together.
type kind struct {
	category string
	outcome  journal.Result
	level    string
	mute     string // text of the mute that denied the events; "" for none
}

type outcomes struct {
	kind
	members []int  // positions in the batch
	trace   string // trace ID of one member; "" for none
}

func alike(batch []settlement) (groups []outcomes) {
	numbers := make(map[kind]int)
	for i, settled := range batch {
		if settled.outcome == "" {
			continue
		}
		k := kind{settled.about.category, settled.outcome, levelOf(settled.denial), muteOf(settled.denial)}
		number, known := numbers[k]
		if !known {
			number = len(groups)
			numbers[k] = number
			groups = append(groups, outcomes{kind: k})
		}
		groups[number].members = append(groups[number].members, i)
		if settled.span != nil {
			groups[number].trace = settled.span.TraceID()
		}
	}
	return groups
}

// dropsOf returns the drops of a batch for the digests, with the first title of each kind, and folded events that no message can show.
func (c dropCounter) dropsOf(batch []settlement, groups []outcomes) (drops []summary.Drop) {
	for _, g := range groups {
		drop := summary.Drop{Category: g.category, Level: g.level, N: len(g.members), Mute: g.mute}
		switch {
		case g.outcome == journal.Folded && !c.showsFolds:
			drop.Level = store.LevelFolded
		case g.outcome != journal.Dropped:
			continue
		}
		for _, member := range g.members {
			if g.mute != "" {
				drop.Keys = batch[member].appendKey(drop.Keys)
			}
		}
		for _, member := range g.members {
			if drop.Title = plain.Title(event.QuickTitle(batch[member].Data)); drop.Title != "" {
				break
			}
		}
		drops = append(drops, drop)
	}
	return drops
}

// nak returns a message to JetStream, to be delivered again after the delay. After the end of its lease it is delivered again anyway.
func (s *settler) nak(m *message, delay time.Duration) {
	m.span.Left(tracing.GivenBack)
	m.leaveHand()
	if m.lease.left() <= 0 {
		return
	}
	_ = settle.Nak(s.streams.Connection.Conn, m, delay) // if the nak is lost, the message is redelivered after the acknowledgement wait
}

// storeLetter stores a message as a dead letter, and reports whether it has. Even a faulty event has its ID.
func (s *settler) storeLetter(ctx context.Context, m *message, e event.Event, fault *event.Fault) bool {
	s.reporter.trace(m, time.Now())
	err := s.letters.writer.Store(ctx, deadletters.Dead{
		Entry: m.entryFor(e, ""), First: s.reader.firstLevel(m, e), Header: m.Header, Body: m.Data,
		Sequence: m.meta.Sequence.Stream, Deliveries: m.meta.NumDelivered, Fault: fault, TraceID: m.span.TraceID(),
	})
	s.letters.health.Note(err)
	return err == nil
}

// terminate ends a message whose dead letter is stored, and sends the reason. A message that waits for owed is acknowledged instead.
func (s *settler) terminate(m *message, fault *event.Fault, owed <-chan struct{}) {
	settled := settlement{message: m, outcome: journal.Dead, fault: fault, decided: time.Now()}
	if m.lease.left() > 0 && owed == nil {
		if settle.Terminate(s.streams.Connection.Conn, m, string(fault.Reason)+": "+plain.Header(fault.Detail)) == nil {
			m.leaveHand()
			s.confirmed([]settlement{settled}, time.Time{})
			return
		}
	}
	s.settleAfter(owed, settled) // late or unconfirmed: an extra acknowledgement does no harm
}

// settleAfter settles a message once Redis has the end of its event's grant: see [store.Grant]. Until then it renews the lease on the message. If the
// worker ends before, it returns the message to its stream, and another worker finds out what became of the event.
func (s *settler) settleAfter(owed <-chan struct{}, settled settlement) {
	if owed == nil {
		s.settle(settled)
		return
	}
	settled.leaveHand()
	s.owing.waiting.Go(func() {
		renewal := time.NewTicker(s.lease / 3)
		defer renewal.Stop()
		for {
			_ = s.extend(context.Background(), settled.message) // if it fails, the settlement is late
			select {
			case <-owed:
				s.settle(settled)
				return
			case <-s.owing.stopping:
				s.nak(settled.message, jitter(misconfiguredBackoff))
				return
			case <-renewal.C:
			}
		}
	})
}

func (s *settler) expire(l life, m *message, a admission) {
	owed := a.endUndelivered(l.ending())
	failpoint.Reach(failpoint.AfterReturn)
	s.settleAfter(owed, settlement{message: m, outcome: journal.Expired})
}

// endedElsewhere ends a delivery whose message another worker has ended meanwhile. The server delivered the message again before it handled that
// worker's late ack. The error says that the stream does not answer.
func (s *settler) endedElsewhere(l life, m *message, a admission) (ended bool, err error) {
	if !mayHaveEnded(m, a) {
		return false, nil
	}
	ended, err = s.isGone(l.working, storedAs(m))
	if ended {
		s.leaveEnded(m, a)
	}
	return ended, err
}

// mayHaveEnded reports whether another worker may have dropped or moved an event that was admitted here: its message was delivered before.
func mayHaveEnded(m *message, a admission) bool { return a.grant != nil && m.meta.NumDelivered > 1 }

// leaveEnded returns the slots of an event whose message is gone. Nothing is left to wait with until Redis has the end.
func (s *settler) leaveEnded(m *message, a admission) {
	m.span.Left(tracing.Lost)
	m.leaveHand()
	a.endAfterOther(context.Background())
}

// giveBack ends the lease of an admitted event and returns its message to its stream after the delay. If another worker has ended the event,
// nobody gets the message again, and the slots return instead. The event keeps its lease until the stream says which of the two it is.
func (s *settler) giveBack(m *message, a admission, delay time.Duration) {
	back := func() {
		a.release(context.Background())
		s.nak(m, delay)
	}
	if !mayHaveEnded(m, a) {
		back()
		return
	}
	m.leaveHand()
	s.owing.waiting.Go(func() {
		for m.lease.left() > 0 {
			gone, err := s.isGone(context.Background(), storedAs(m))
			switch {
			case gone:
				s.leaveEnded(m, a)
				return
			case err == nil || s.stopsWithin(s.lease/12):
				back()
				return
			}
		}
		s.watchLost(storedAs(m), a)
	})
}

// leaveLost leaves a message whose lease another worker may have. If the late ack of another worker removes the message before anyone gets it again,
// nobody else returns the slots of its event. Redis returns them only to the last holder of the event.
func (s *settler) leaveLost(m *message, a admission) {
	m.span.Left(tracing.Lost)
	m.leaveHand()
	if at := storedAs(m); a.anew {
		s.owing.waiting.Go(func() { s.watchLost(at, a) })
	}
}

// watchLost returns the slots of an event with a lost lease once its message is gone, unless another worker has reclaimed the event or an attempt of
// this worker may have delivered it. It keeps only the message's identity in memory, because a lost message counts in hand no more.
func (s *settler) watchLost(at stored, a admission) {
	if a.doubt.own {
		return
	}
	for range patientFor {
		if s.stopsWithin(s.lease) {
			return
		}
		if gone, _ := s.isGone(context.Background(), at); gone {
			a.grant.Refund(context.Background())
			return
		}
	}
}

// stopsWithin waits, and reports whether the worker ends meanwhile.
func (s *settler) stopsWithin(d time.Duration) bool {
	select {
	case <-s.owing.stopping:
		return true
	case <-time.After(d):
		return false
	}
}

// isGone reports whether its stream has a message no more. The error says that the stream does not answer.
func (s *settler) isGone(ctx context.Context, at stored) (bool, error) {
	layout := s.streams.Layout()
	messages := layout.Stream
	if at.stream != s.streams.Names.Stream {
		messages = layout.Room.Stream
	}
	ctx, cancel := context.WithTimeout(ctx, s.lease/6)
	defer cancel()
	switch _, err := messages.GetMsg(ctx, at.sequence); {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("asking the stream for message %d: %w", at.sequence, err)
	}
	return false, nil
}

// extend renews the lease on a message. Only the server's confirmation moves the deadline.
func (s *settler) extend(ctx context.Context, m *message) error {
	left := m.lease.left()
	if left <= 0 {
		return fmt.Errorf("extending the lease on message %d: it has run out", m.meta.Sequence.Stream)
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, s.lease/6))
	defer cancel()
	asked := time.Now()
	if err := settle.Extend(ctx, s.streams.Connection.Conn, m); err != nil {
		return fmt.Errorf("extending a lease: %w", err)
	}
	m.lease.extend(asked, s.lease)
	return nil
}

// withoutRecord returns the settlement of an event that is only looked up and has no delivery record.
func withoutRecord(m *message) settlement {
	if m.entry.Order.Action == room.Drop {
		return settlement{message: m, outcome: journal.Dropped, denial: store.DeniedByOperator}
	}
	return settlement{message: m, outcome: journal.Expired}
}

// muteOf returns the text of the mute of a denial; "" for another denial.
func muteOf(denial *store.Denial) string {
	if denial == nil || denial.Mute == nil {
		return ""
	}
	return denial.Mute.Text
}

// endsUnderMutes returns what the resolved events of a batch change in the reports about mutes: their keys no longer fire.
func (s *settler) endsUnderMutes(batch []settlement) (ended []summary.Drop) {
	for i := range batch {
		m := batch[i].message
		if !m.about.resolves || m.about.pair == "" {
			continue
		}
		for _, text := range s.mutes.UnreportedMutes(m.about.category) {
			ended = append(ended, summary.Drop{Category: m.about.category, Mute: text, Keys: m.appendKey(nil)})
		}
	}
	return ended
}

// settle has messages acknowledged, and their outcomes counted once the server has confirmed the acknowledgement.
func (s *settler) settle(settled ...settlement) {
	now := time.Now()
	for i := range settled {
		settled[i].decided = now
		if settled[i].entry.IsReport() {
			settled[i].outcome = ""
		}
		s.reporter.trace(settled[i].message, now)
		settled[i].leaveHand()
	}
	s.settlers.Acknowledge(settled...)
}

func levelOf(denial *store.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}
