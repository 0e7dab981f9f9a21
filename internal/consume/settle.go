package consume

import (
	"context"
	"fmt"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/settle"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// settlement is a message whose outcome is safe.
type settlement struct {
	*message
	outcome Outcome          // "": counted already, or the event goes on in another message
	goesOn  bool             // in the room
	denial  *throttle.Denial // of a dropped event
	fault   *event.Fault     // of a dead letter
	decided time.Time        // by this host's clock
}

// levelOf is the rule of a denial; "" if there is none.
func levelOf(denial *throttle.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}

// dropped is the settlement of a message whose event was denied.
func (w *Worker) dropped(m *message, denial *throttle.Denial) settlement {
	if w.o.Delay != nil && denial != throttle.DeniedUnpaired && denial != throttle.DeniedByRoom {
		if _, crowded := w.refused(m.category); crowded {
			w.metrics.RoomRefused(string(room.Slot), 1)
		}
	}
	return settlement{message: m, outcome: Dropped, denial: denial}
}

// done is the settlement of an event that was delivered before. Its delivery was counted then, but a replay is another message with
// its ID.
func (w *Worker) done(c candidate) settlement {
	if c.entry.Replayed() {
		return settlement{message: c.message, outcome: Duplicate}
	}
	return settlement{message: c.message}
}

// tally counts settlements that the server has confirmed, each once. Its methods may be called at once.
type tally struct {
	conn    *nats.Conn
	metrics Metrics
	counted func([]settlement, []outcomes) // told what was counted
	late    *lru.Cache[stored, struct{}]   // what was settled late
}

func newTally(conn *nats.Conn, metrics Metrics, counted func([]settlement, []outcomes)) *tally {
	return &tally{conn: conn, metrics: metrics, counted: counted, late: newCache[stored, struct{}](mostLate)}
}

// stored names a message, also if its stream is made anew.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

// mostLate bounds what is remembered of late settlements: more than all instances together have unacknowledged.
const mostLate = 2 * maxAckPending

// patientFor is how long the confirmation of an acknowledgement is waited for, as a multiple of the acknowledgement wait. Then the server's redelivery
// settles the message.
const patientFor = 4

// newSettlers makes the settlers of a worker whose acknowledgement wait is known.
func (w *Worker) newSettlers() *settle.Settlers[settlement] {
	return settle.New(settle.Options[settlement]{
		Conn: w.conn, Confirmed: w.tally.count, Patience: patientFor * w.ackWait,
		Abandoned: func(batch []settlement) {
			for _, settled := range batch {
				settled.span.Left(tracing.Unconfirmed)
			}
		},
	})
}

// count counts confirmed settlements. Of a message that was settled late, and delivered again before that, only the first one counts. Failed is
// when the consumer last confirmed nothing; zero: it never failed to.
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

// counted tells the log, the digests, the room and the journal what was counted of a batch.
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

// kind is what outcomes have in common that are counted together.
type kind struct {
	category string
	outcome  Outcome
	level    string
}

// outcomes are those of a batch that are of one kind.
type outcomes struct {
	kind
	members []int  // positions in the batch
	trace   string // the ID of a trace of one of them, "" for none
}

// alike gathers the outcomes of a batch by their kinds.
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

// tellOfDrops tells of the drops of a batch, with one title of each kind: the first that an event shows. It returns the round in which they
// were counted.
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

// settledBefore tells whether a message was settled before. Late settlements are remembered: of a lost connection, of a lease that had run out, and
// of a consumer that may have been made anew before it confirmed them.
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
	_ = settle.Nak(w.conn, m, delay) // if it is lost, the acknowledgement wait does the same, later
}

// terminate ends a message whose dead letter is stored, and says why.
func (w *Worker) terminate(m *message, fault *event.Fault) {
	settled := settlement{message: m, outcome: Dead, fault: fault, decided: time.Now()}
	if m.left() > 0 {
		if settle.Terminate(w.conn, m, string(fault.Reason)+": "+oneLine(fault.Detail)) == nil {
			m.leaveHand()
			w.tally.count([]settlement{settled}, time.Time{})
			return
		}
	}
	w.settle(settled) // late or unconfirmed: an acknowledgement does no harm
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
	if err := settle.Extend(ctx, w.conn, m); err != nil {
		return fmt.Errorf("extending a lease: %w", err)
	}
	m.extend(asked, w.ackWait)
	return nil
}
