package consume

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// What a consumer is told about a message, as JetStream's protocol spells it. The worker speaks it itself: nats.go
// acknowledges a message object once, and a settlement whose confirmation was lost has to be said again.
var (
	sayAck        = []byte("+ACK")
	sayInProgress = []byte("+WPI")
)

const (
	sayNak  = "-NAK"
	sayTerm = "+TERM"
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

// settler alone acknowledges. It acknowledges a batch, and the server's confirmation of the last message confirms the others. Then the
// outcomes are counted, once each, even if the connection is lost in between.
type settler struct {
	conn    *nats.Conn
	metrics Metrics
	counted func([]settlement, []outcomes) // told what was counted
	queue   chan []settlement
	done    chan struct{}
	cut     <-chan struct{} // closed when nothing is waited for any more
	patient time.Duration   // how long a confirmation is waited for before the server's redelivery is left to settle it

	late *lru.Cache[stored, struct{}] // what was settled late
}

// stored names a message, also if its stream is made anew.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

// mostLate bounds what is remembered of late settlements: more than all instances together have unacknowledged.
const mostLate = 2 * maxAckPending

// settleQueue is how many batches may wait; more make the worker wait.
const settleQueue = 64

// confirmTimeout is how long one confirmation is waited for before the batch is said again.
const confirmTimeout = 2 * time.Second

func newSettler(
	conn *nats.Conn, metrics Metrics, counted func([]settlement, []outcomes), ackWait time.Duration, cut <-chan struct{},
) *settler {
	s := &settler{
		conn: conn, metrics: metrics, counted: counted,
		queue: make(chan []settlement, settleQueue), done: make(chan struct{}), cut: cut, patient: 4 * ackWait,
		late: newCache[stored, struct{}](mostLate),
	}
	go s.run()
	return s
}

// settle hands over what is to be acknowledged. It waits for earlier batches, but not after the cut: then the server redelivers the
// others.
func (s *settler) settle(batch ...settlement) {
	if len(batch) == 0 {
		return
	}
	select {
	case s.queue <- batch:
		return
	default:
	}
	select {
	case s.queue <- batch:
	case <-s.cut:
	}
}

// close waits until everything handed over is settled, or the context ends.
func (s *settler) close(ctx context.Context) {
	close(s.queue)
	select {
	case <-s.done:
	case <-ctx.Done():
	}
}

func (s *settler) run() {
	defer close(s.done)
	for batch := range s.queue {
		for len(s.queue) > 0 && len(batch) < 16*throttle.MaxBatch {
			batch = append(batch, <-s.queue...)
		}
		if s.acknowledge(batch) {
			s.count(batch)
			continue
		}
		for _, settled := range batch {
			settled.span.Left(tracing.Unconfirmed)
		}
	}
}

// acknowledge repeats a batch until the server confirms it, all on one connection: words on a lost connection may not have arrived. A
// late acknowledgement still removes the message.
func (s *settler) acknowledge(batch []settlement) bool {
	giveUp := time.Now().Add(s.patient)
	last := batch[len(batch)-1]
	for time.Now().Before(giveUp) && !s.conn.IsClosed() {
		connections := s.conn.Stats().Reconnects
		for _, settled := range batch[:len(batch)-1] {
			_ = s.conn.Publish(settled.Reply(), sayAck) // a failure shows in the confirmation
		}
		if _, err := s.conn.Request(last.Reply(), sayAck, confirmTimeout); err == nil && s.conn.Stats().Reconnects == connections {
			return true
		}
		for !s.conn.IsConnected() && !s.conn.IsClosed() && time.Now().Before(giveUp) {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return false
}

// count counts confirmed settlements. Of a message that was settled late, and delivered again before that, only the first one counts.
func (s *settler) count(batch []settlement) {
	for _, settled := range batch {
		settled.span.Settled(string(settled.outcome), settled.decided)
	}
	now, connection := time.Now(), s.conn.Stats().Reconnects
	batch = slices.DeleteFunc(batch, func(settled settlement) bool {
		late := settled.connection != connection || settled.leftAt(now) <= 0
		return s.settledBefore(settled.message, late)
	})
	groups := alike(batch)
	for _, g := range groups {
		s.metrics.Event(g.category, string(g.outcome), len(g.members))
		if g.level != "" {
			s.metrics.Dropped(g.category, g.level, len(g.members), g.trace)
		}
	}
	s.counted(batch, groups)
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
			if drop.Title = event.QuickTitle(batch[member].Data()); drop.Title != "" {
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

// settledBefore tells whether a message was settled before. Late settlements are remembered: those of a lost connection or a lease
// that had run out.
func (s *settler) settledBefore(m *message, late bool) bool {
	if !late && s.late.Len() == 0 {
		return false
	}
	name := stored{m.stream, m.sequence, m.stored.UnixNano()}
	if !late {
		return s.late.Contains(name)
	}
	before, _ := s.late.ContainsOrAdd(name, struct{}{})
	return before
}

// nak returns a message to JetStream, to be delivered again after the delay. If the lease may have run out, the message is
// delivered again anyway.
func (w *Worker) nak(m *message, delay time.Duration) {
	m.span.Left(tracing.GivenBack)
	if m.left() <= 0 {
		return
	}
	word := sayNak
	if delay > 0 {
		word += ` {"delay": ` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`
	}
	_ = w.conn.Publish(m.Reply(), []byte(word)) // if it is lost, the acknowledgement wait does the same, later
}

// terminate ends a message whose dead letter is stored, and says why.
func (w *Worker) terminate(m *message, fault *event.Fault) {
	settled := settlement{message: m, outcome: Dead, fault: fault, decided: time.Now()}
	if m.left() > 0 {
		reason := string(fault.Reason) + ": " + oneLine(fault.Detail)
		if _, err := w.conn.Request(m.Reply(), []byte(sayTerm+" "+reason), confirmTimeout); err == nil {
			w.settler.count([]settlement{settled})
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
	if _, err := w.conn.RequestWithContext(ctx, m.Reply(), sayInProgress); err != nil {
		return fmt.Errorf("extending the lease on message %d: %w", m.sequence, err)
	}
	m.extend(asked, w.ackWait)
	return nil
}
