package consume

import (
	"context"
	"fmt"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// settlement is a message whose outcome is durable.
type settlement struct {
	*message
	outcome Outcome       // "": the outcome is already counted, or the event goes on in another message
	goesOn  bool          // the event goes on in the room
	denial  *store.Denial // denial of a dropped event
	fault   *event.Fault  // fault of a dead letter
	decided time.Time     // time of the decision, by this host's clock
}

// levelOf returns the rule of a denial; "" if there is none.
func levelOf(denial *store.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}

// dropped returns the settlement of a message whose event was denied.
func (w *Worker) dropped(m *message, denial *store.Denial) settlement {
	if w.o.Delay != nil && denial != store.DeniedUnpaired && denial != store.DeniedByRoom {
		if _, crowded := w.refused(m.category); crowded {
			w.metrics.RoomRefused(string(room.Slot), 1)
		}
	}
	return settlement{message: m, outcome: Dropped, denial: denial}
}

// done returns the settlement of an event that was delivered before. Its delivery is already counted, except that a replay is another
// message with the same ID.
func (w *Worker) done(c candidate) settlement {
	if c.entry.Replayed() {
		return settlement{message: c.message, outcome: Duplicate}
	}
	return settlement{message: c.message}
}

// tally counts each settlement that the server has confirmed once. Its methods may be called concurrently.
type tally struct {
	conn    *nats.Conn
	metrics Metrics
	counted func([]settlement, []outcomes) // called with what was counted
	late    *lru.Cache[stored, struct{}]   // messages that were settled late
}

func newTally(conn *nats.Conn, metrics Metrics, counted func([]settlement, []outcomes)) *tally {
	return &tally{conn: conn, metrics: metrics, counted: counted, late: newCache[stored, struct{}](mostLate)}
}

// stored identifies a message, even if its stream is recreated.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

// mostLate bounds the remembered late settlements: more than all instances together can have unacknowledged.
const mostLate = 2 * stream.MaxAckPending

// patientFor is how long a settler waits for the confirmation of an acknowledgement, as a multiple of the acknowledgement wait. After that,
// the server's redelivery settles the message.
const patientFor = 4

// newSettlers creates the worker's settlers. The acknowledgement wait has to be known.
func (w *Worker) newSettlers() *settle.Settlers[settlement] {
	return settle.New(settle.Options[settlement]{
		Conn: w.streams.Connection.Conn, Confirmed: w.tally.count, Patience: patientFor * w.ackWait,
		Abandoned: func(batch []settlement) {
			for _, settled := range batch {
				settled.span.Left(tracing.Unconfirmed)
			}
		},
	})
}

// count counts confirmed settlements. If a late settlement was preceded by a redelivery, only the first of the two is counted. Failed is
// when the consumer last failed to confirm; zero: never.
func (t *tally) count(batch []settlement, failed time.Time) {
	for _, settled := range batch {
		settled.span.Settled(string(settled.outcome), settled.decided)
	}
	now, connection := time.Now(), t.conn.Stats().Reconnects
	batch = slices.DeleteFunc(batch, func(settled settlement) bool {
		late := settled.connection != connection || settled.leftAt(now) <= 0 || settled.decided.Before(failed)
		return t.settledBefore(settled.message, late)
	})
	groups := alike(batch)
	for _, g := range groups {
		t.metrics.Event(g.category, string(g.outcome), len(g.members))
		if g.level != "" {
			t.metrics.Dropped(g.category, g.level, len(g.members), g.trace)
		}
	}
	t.counted(batch, groups)
}

// counted reports the counted settlements of a batch to the log, the digests, the room and the journal.
func (w *Worker) counted(batch []settlement, groups []outcomes) {
	w.logOutcomes(batch...)
	var round int64
	if w.o.Drops != nil {
		round = w.tellOfDrops(batch, groups)
	}
	w.leaveRoom(batch)
	for _, g := range groups {
		w.recordOutcomes(batch, g, round)
	}
}

// kind is the key by which outcomes are counted together.
type kind struct {
	category string
	outcome  Outcome
	level    string
}

// outcomes are the members of a batch with one kind.
type outcomes struct {
	kind
	members []int  // positions in the batch
	trace   string // trace ID of one member; "" for none
}

// alike groups the outcomes of a batch by kind.
func alike(batch []settlement) (groups []outcomes) {
	numbers := make(map[kind]int)
	for i, settled := range batch {
		if settled.outcome == "" {
			continue
		}
		k := kind{settled.category, settled.outcome, levelOf(settled.denial)}
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

// tellOfDrops reports the drops of a batch to the digests, with one title for each kind: the first title that an event has. It returns the
// digest round that counted them.
func (w *Worker) tellOfDrops(batch []settlement, groups []outcomes) (round int64) {
	var drops []summary.Drop
	for _, g := range groups {
		if g.outcome != Dropped {
			continue
		}
		drop := summary.Drop{Category: g.category, Level: g.level, N: len(g.members)}
		for _, member := range g.members {
			if drop.Title = plain.Title(event.QuickTitle(batch[member].Data())); drop.Title != "" {
				break
			}
		}
		drops = append(drops, drop)
	}
	if len(drops) == 0 {
		return 0
	}
	return w.o.Drops(drops)
}

// settledBefore reports whether a message was settled before. It remembers late settlements: on a lost connection, with an expired lease,
// or for a consumer that may have been recreated before it confirmed them.
func (t *tally) settledBefore(m *message, late bool) bool {
	if !late && t.late.Len() == 0 {
		return false
	}
	name := stored{m.stream, m.sequence, m.stored.UnixNano()}
	if !late {
		return t.late.Contains(name)
	}
	before, _ := t.late.ContainsOrAdd(name, struct{}{})
	return before
}

// nak returns a message to JetStream, to be delivered again after the delay. If the lease may have run out, the message is
// delivered again anyway.
func (w *Worker) nak(m *message, delay time.Duration) {
	m.span.Left(tracing.GivenBack)
	m.leaveHand()
	if m.left() <= 0 {
		return
	}
	_ = settle.Nak(w.streams.Connection.Conn, m, delay) // if the nak is lost, the message is redelivered after the acknowledgement wait
}

// deadLetter stores a message as a dead letter and terminates the message.
func (w *Worker) deadLetter(ctx context.Context, m *message, e event.Event, fault *event.Fault) {
	if w.storeLetter(ctx, m, e, fault) {
		w.terminate(m, fault)
	}
}

// storeLetter stores a message as a dead letter. On failure it sends a nak for the message and returns false. Even a faulty event has its
// ID.
func (w *Worker) storeLetter(ctx context.Context, m *message, e event.Event, fault *event.Fault) bool {
	w.trace(m, time.Now(), false)
	err := w.letters.Store(ctx, deadletters.Dead{
		Entry: m.entryFor(e, ""), First: w.firstLevel(m, e), Header: m.Headers(), Body: m.Data(),
		Sequence: m.sequence, Deliveries: m.delivered, Fault: fault, TraceID: m.span.TraceID(),
	})
	w.health.deadLetters.Note(err)
	if err != nil {
		w.nak(m, jitter(misconfiguredBackoff))
	}
	return err == nil
}

// firstLevel returns the first level of an event's category. If the category is unknown, it returns the first level of the subject: a
// producer of notify.payments.> must not push out letters of other first levels.
func (w *Worker) firstLevel(m *message, e event.Event) string {
	if e.Category != "" {
		return event.FirstLevel(e.Category)
	}
	return w.o.Decoder.FirstLevelOf(m.entry.Subject)
}

// terminate ends a message whose dead letter is stored, and sends the reason.
func (w *Worker) terminate(m *message, fault *event.Fault) {
	settled := settlement{message: m, outcome: Dead, fault: fault, decided: time.Now()}
	if m.left() > 0 {
		if settle.Terminate(w.streams.Connection.Conn, m, string(fault.Reason)+": "+plain.Header(fault.Detail)) == nil {
			m.leaveHand()
			w.tally.count([]settlement{settled}, time.Time{})
			return
		}
	}
	w.settle(settled) // late or unconfirmed: an extra acknowledgement does no harm
}

// extend renews the lease on a message. Only the server's confirmation moves the deadline.
func (w *Worker) extend(ctx context.Context, m *message) error {
	left := m.left()
	if left <= 0 {
		return fmt.Errorf("extending the lease on message %d: it has run out", m.sequence)
	}
	ctx, cancel := context.WithTimeout(ctx, min(left, w.ackWait/6))
	defer cancel()
	asked := time.Now()
	if err := settle.Extend(ctx, w.streams.Connection.Conn, m); err != nil {
		return fmt.Errorf("extending a lease: %w", err)
	}
	m.extend(asked, w.ackWait)
	return nil
}
