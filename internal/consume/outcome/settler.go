package outcome

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
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

// Settlement is a message whose outcome is durable.
type Settlement struct {
	*received.Message
	Outcome journal.Result // "": the outcome is already counted or the event goes on in another message
	GoesOn  bool           // the event goes on in the room
	Denial  *store.Denial  // denial of a dropped event
	Refused string         // why a dropped event could not wait for a slot (journal.TooMany, TooLate, TooLarge); "" for any other event
	Fold    *store.Fold    // of a folded event
	fault   *event.Fault   // fault of a dead letter
	decided time.Time      // time of the decision, by this host's clock
}

// Done returns the settlement of an event that was delivered before, and counted. A replay is another message with the same ID.
func Done(c received.Candidate) Settlement {
	if c.Entry.Replayed() {
		return Settlement{Message: c.Message, Outcome: journal.Duplicate}
	}
	return Settlement{Message: c.Message}
}

// Settler acknowledges, naks or terminates messages, and reports each outcome once. Its methods may be called concurrently.
type Settler struct {
	Streams  *stream.Client
	Lease    time.Duration // how long a message belongs to a worker that has received it or extended its lease
	Reader   *received.Reader
	Reporter *Reporter
	Stays    *Stays

	settlers *settle.Settlers[Settlement]
	tally    *tally
	letters  letterStore
	owing    owing
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

// Options configure a settler.
type Options struct {
	Streams    *stream.Client
	Reader     *received.Reader
	Reporter   *Reporter
	Stays      *Stays
	Mutes      UnreportedMutes
	Drops      func([]summary.Drop) (round int64) // counts dropped events once their settlement is confirmed (summary.Counter.Add)
	ShowsFolds bool                               // messages show what is folded into them; else the digests count it
	Metrics    EventMetrics
	Letters    deadletters.Metrics
	Logger     *slog.Logger
}

// NewSettler returns a settler. Its caller ends it with Close.
func NewSettler(o Options) *Settler {
	letters := deadletters.NewWriter(deadletters.WriterOptions{
		Streams: o.Streams, MaxBody: o.Reader.MaxBytes, Metrics: o.Letters, Logger: o.Logger,
	})
	s := &Settler{
		Streams: o.Streams, Lease: o.Streams.Layout().AckWait(), tally: newTally(o.Streams.Connection.Conn, o.Metrics),
		Reader: o.Reader, Reporter: o.Reporter, Stays: o.Stays, mutes: o.Mutes, metrics: o.Metrics,
		letters: letterStore{letters, oplog.NewCondition(o.Logger, "cannot store dead letters", "storing dead letters again")},
		owing:   owing{stopping: make(chan struct{})},
		drops:   dropCounter{o.Drops, o.ShowsFolds},
	}
	s.settlers = settle.New(settle.Options[Settlement]{
		Conn: o.Streams.Connection.Conn, Confirmed: s.confirmed, Patience: patientFor * s.Lease,
		Abandoned: func(batch []Settlement) {
			for _, settled := range batch {
				settled.Span.Left(tracing.Unconfirmed)
			}
		},
	})
	return s
}

// AwaitSpace waits until a consumer's settlements leave space for more.
func (s *Settler) AwaitSpace(ctx context.Context, consumer string) error {
	return s.settlers.AwaitSpace(ctx, consumer)
}

// Failing returns why the dead letter that was last to be stored was not; nil if it was.
func (s *Settler) Failing() error { return s.letters.health.Failing() }

// Close waits until all messages are acknowledged or returned, and reported. It gives up when the context ends.
func (s *Settler) Close(ctx context.Context) {
	close(s.owing.stopping)
	s.AwaitOwed()
	s.settlers.Close(ctx)
	s.letters.writer.Close()
	s.Stays.leaving.Close()
	_ = s.Streams.Connection.Conn.FlushWithContext(ctx)
}

// AwaitOwed waits for the goroutines that settle a message, or return its slots, later.
func (s *Settler) AwaitOwed() { s.owing.waiting.Wait() }

// Knows reports whether the event of a message has ended here: see tally.
func (s *Settler) Knows(m *received.Message) bool { return s.tally.knows(m) }

// patientFor is for how many acknowledgement waits a settler waits for a confirmation. After that, a redelivery settles the message.
const patientFor = 4

// confirmed counts a batch whose settlement the server has confirmed, and reports it to the log, the digests, the room and the journal.
func (s *Settler) confirmed(batch []Settlement, failed time.Time) {
	batch, groups := s.tally.count(batch, failed)
	s.Reporter.logOutcomes(batch...)
	var round int64
	if drops := append(s.drops.dropsOf(batch, groups), s.endsUnderMutes(batch)...); len(drops) > 0 {
		round = s.drops.count(drops)
	}
	s.Stays.leaveSettled(batch)
	for _, g := range groups {
		s.Reporter.recordOutcomes(batch, g, round)
	}
}

// CountSent counts an event whose delivery this worker was the first to record. Its message may be settled more than once.
func (s *Settler) CountSent(e Sent) {
	m := e.Message
	if m.Entry.IsReport() {
		return
	}
	// What waited for a slot is late by intent. In its channel's queue it is not known of an event whether it did.
	if !m.Waited() && (!m.HoldsSlots() || s.Reader.Delay(m.About.Category) == 0) {
		s.metrics.EventAge(s.Streams.Clock.Since(m.Entry.Since), m.Span.TraceID())
	}
	if e.Resolves && m.Entry.Order.Action == "" {
		s.metrics.Resolved("paired")
		if ended := s.endsUnderMutes([]Settlement{{Message: m}}); len(ended) > 0 {
			s.drops.count(ended)
		}
	}
	s.metrics.Event(m.About.Category, string(journal.Sent), 1)
	s.Reporter.logOutcomes(Settlement{Message: m, Outcome: journal.Sent, Denial: e.Denial})
}

// Nak returns a message to JetStream, to be delivered again after the delay. After the end of its lease it is delivered again anyway.
func (s *Settler) Nak(m *received.Message, delay time.Duration) {
	m.Span.Left(tracing.GivenBack)
	m.LeaveHand()
	if m.Lease.Left() <= 0 {
		return
	}
	_ = settle.Nak(s.Streams.Connection.Conn, m, delay) // if the nak is lost, the message is redelivered after the acknowledgement wait
}

// StoreLetter stores a message as a dead letter, and reports whether it has. Even a faulty event has its ID.
func (s *Settler) StoreLetter(ctx context.Context, m *received.Message, e event.Event, fault *event.Fault) bool {
	s.Reporter.Trace(m, time.Now())
	err := s.letters.writer.Store(ctx, deadletters.Dead{
		Entry: m.EntryFor(e, ""), First: s.Reader.FirstLevel(m, e), Header: m.Header, Body: m.Data,
		Sequence: m.Meta.Sequence.Stream, Deliveries: m.Meta.NumDelivered, Fault: fault, TraceID: m.Span.TraceID(),
	})
	s.letters.health.Note(err)
	return err == nil
}

// Terminate ends a message whose dead letter is stored, and sends the reason. A message that waits for owed is acknowledged instead.
func (s *Settler) Terminate(m *received.Message, fault *event.Fault, owed <-chan struct{}) {
	settled := Settlement{Message: m, Outcome: journal.Dead, fault: fault, decided: time.Now()}
	if m.Lease.Left() > 0 && owed == nil {
		if settle.Terminate(s.Streams.Connection.Conn, m, string(fault.Reason)+": "+plain.Header(fault.Detail)) == nil {
			m.LeaveHand()
			s.confirmed([]Settlement{settled}, time.Time{})
			return
		}
	}
	s.SettleAfter(owed, settled) // late or unconfirmed: an extra acknowledgement does no harm
}

// SettleAfter settles a message once Redis has the end of its event's grant: see [store.Grant]. Until then it renews the lease on the message. If the
// worker ends before, it returns the message to its stream, and another worker finds out what became of the event.
func (s *Settler) SettleAfter(owed <-chan struct{}, settled Settlement) {
	if owed == nil {
		s.Settle(settled)
		return
	}
	settled.LeaveHand()
	s.owing.waiting.Go(func() {
		renewal := time.NewTicker(s.Lease / 3)
		defer renewal.Stop()
		for {
			_ = s.Extend(context.Background(), settled.Message) // if it fails, the settlement is late
			select {
			case <-owed:
				s.Settle(settled)
				return
			case <-s.owing.stopping:
				s.Nak(settled.Message, stage.Jitter(stage.MisconfiguredBackoff))
				return
			case <-renewal.C:
			}
		}
	})
}

// Expire ends an event that is too old. Its slots return unless an attempt may have delivered it.
func (s *Settler) Expire(l stage.Life, m *received.Message, a Admission) {
	owed := a.EndUndelivered(l.Ending())
	failpoint.Reach(failpoint.AfterReturn)
	s.SettleAfter(owed, Settlement{Message: m, Outcome: journal.Expired})
}

// EndedElsewhere ends a delivery whose message another worker has ended meanwhile. The server delivered the message again before it handled that
// worker's late ack. The error says that the stream does not answer.
func (s *Settler) EndedElsewhere(l stage.Life, m *received.Message, a Admission) (ended bool, err error) {
	if !mayHaveEnded(m, a) {
		return false, nil
	}
	ended, err = storedAs(m).isGone(l.Working, s.Streams, s.Lease/6)
	if ended {
		s.LeaveEnded(m, a)
	}
	return ended, err
}

// mayHaveEnded reports whether another worker may have dropped or moved an event that was admitted here: its message was delivered before.
func mayHaveEnded(m *received.Message, a Admission) bool {
	return a.Grant != nil && m.Meta.NumDelivered > 1
}

// LeaveEnded returns the slots of an event whose message is gone. Nothing is left to wait with until Redis has the end.
func (s *Settler) LeaveEnded(m *received.Message, a Admission) {
	m.Span.Left(tracing.Lost)
	m.LeaveHand()
	a.endAfterOther(context.Background())
}

// GiveBack ends the lease of an admitted event and returns its message to its stream after the delay. If another worker has ended the event,
// nobody gets the message again, and the slots return instead. The event keeps its lease until the stream says which of the two it is.
func (s *Settler) GiveBack(m *received.Message, a Admission, delay time.Duration) {
	back := func() {
		a.Release(context.Background())
		s.Nak(m, delay)
	}
	if !mayHaveEnded(m, a) {
		back()
		return
	}
	m.LeaveHand()
	s.owing.waiting.Go(func() {
		for m.Lease.Left() > 0 {
			gone, err := storedAs(m).isGone(context.Background(), s.Streams, s.Lease/6)
			switch {
			case gone:
				s.LeaveEnded(m, a)
				return
			case err == nil || s.owing.stopsWithin(s.Lease/12):
				back()
				return
			}
		}
		s.watchLost(storedAs(m), a)
	})
}

// LeaveLost leaves a message whose lease another worker may have. If the late ack of another worker removes the message before anyone gets it again,
// nobody else returns the slots of its event. Redis returns them only to the last holder of the event.
func (s *Settler) LeaveLost(m *received.Message, a Admission) {
	m.Span.Left(tracing.Lost)
	m.LeaveHand()
	if at := storedAs(m); a.Anew {
		s.owing.waiting.Go(func() { s.watchLost(at, a) })
	}
}

// watchLost returns the slots of an event with a lost lease once its message is gone, unless another worker has reclaimed the event or an attempt of
// this worker may have delivered it. It keeps only the message's identity in memory, because a lost message counts in hand no more.
func (s *Settler) watchLost(at stored, a Admission) {
	if a.Doubt.Own {
		return
	}
	for range patientFor {
		if s.owing.stopsWithin(s.Lease) {
			return
		}
		if gone, _ := at.isGone(context.Background(), s.Streams, s.Lease/6); gone {
			a.Grant.Refund(context.Background())
			return
		}
	}
}

// stopsWithin waits, and reports whether the worker ends meanwhile.
func (o *owing) stopsWithin(d time.Duration) bool {
	select {
	case <-o.stopping:
		return true
	case <-time.After(d):
		return false
	}
}

// isGone reports whether its stream has the message no more. The error says that the stream does not answer.
func (at stored) isGone(ctx context.Context, from *stream.Client, patience time.Duration) (bool, error) {
	layout := from.Layout()
	messages := layout.Stream
	if at.stream != from.Names.Stream {
		messages = layout.Room.Stream
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch _, err := messages.GetMsg(ctx, at.sequence); {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("asking the stream for message %d: %w", at.sequence, err)
	}
	return false, nil
}

// Extend renews the lease on a message. Only the server's confirmation moves the deadline.
func (s *Settler) Extend(ctx context.Context, m *received.Message) error {
	left := m.Lease.Left()
	if left <= 0 {
		return fmt.Errorf("extending the lease on message %d: it has run out", m.Meta.Sequence.Stream)
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, s.Lease/6))
	defer cancel()
	asked := time.Now()
	if err := settle.Extend(ctx, s.Streams.Connection.Conn, m); err != nil {
		return fmt.Errorf("extending a lease: %w", err)
	}
	m.Lease.Extend(asked, s.Lease)
	return nil
}

// WithoutRecord returns the settlement of an event that is only looked up and has no delivery record.
func WithoutRecord(m *received.Message) Settlement {
	if m.Entry.Order.Action == room.Drop {
		return Settlement{Message: m, Outcome: journal.Dropped, Denial: store.DeniedByOperator}
	}
	return Settlement{Message: m, Outcome: journal.Expired}
}

// Settle has messages acknowledged, and their outcomes counted once the server has confirmed the acknowledgement.
func (s *Settler) Settle(settled ...Settlement) {
	now := time.Now()
	for i := range settled {
		settled[i].decided = now
		if settled[i].Entry.IsReport() {
			settled[i].Outcome = ""
		}
		s.Reporter.Trace(settled[i].Message, now)
		settled[i].LeaveHand()
	}
	s.settlers.Acknowledge(settled...)
}
