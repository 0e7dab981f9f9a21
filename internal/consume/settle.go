package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle"
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
	outcome Outcome // "": counted already, or the event goes on in another message
	goesOn  bool    // in the room
	level   string  // the rule that denied it
}

// dropped is the settlement of a message that a limit denied.
func (w *Worker) dropped(m *message, level string) settlement {
	if w.o.Delay != nil && level != throttle.LevelUnpaired && level != throttle.LevelRoom && w.refusals.crowded(m.category) {
		w.metrics.RoomRefused(string(room.Slot), 1)
	}
	return settlement{message: m, outcome: Dropped, level: level}
}

// done is the settlement of an event that was delivered before: whoever recorded that has counted it. One that an operator
// replayed is another message with its ID.
func (w *Worker) done(c candidate) settlement {
	if c.entry.Replayed() {
		return settlement{message: c.message, outcome: Duplicate}
	}
	return settlement{message: c.message}
}

// settler is the only one that acknowledges. It says "ack" for a batch, lets the server confirm the last one, which confirms those before it
// too, and counts the outcomes then: so each is counted once, also when the connection is lost in between.
type settler struct {
	conn    *nats.Conn
	metrics Metrics
	drops   func([]summary.Drop) // nil: nobody wants to know
	ended   func([]*message)     // told which messages' events go on in no other one
	queue   chan []settlement
	done    chan struct{}
	cut     <-chan struct{} // closed when nothing is waited for any more
	patient time.Duration   // how long a confirmation is waited for before the server's redelivery is left to settle it

	mu   sync.Mutex
	late map[stored]time.Time // what was settled late, and until when that is remembered
}

// stored names a message, also if its stream is made anew.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

// settleQueue is how many batches may wait; more make the worker wait.
const settleQueue = 64

// confirmTimeout is how long one confirmation is waited for before the batch is said again.
const confirmTimeout = 2 * time.Second

func newSettler(
	conn *nats.Conn, metrics Metrics, drops func([]summary.Drop), ended func([]*message), ackWait time.Duration, cut <-chan struct{},
) *settler {
	s := &settler{
		conn: conn, metrics: metrics, drops: drops, ended: ended,
		queue: make(chan []settlement, settleQueue), done: make(chan struct{}), cut: cut, patient: 4 * ackWait,
		late: make(map[stored]time.Time),
	}
	go s.run()
	return s
}

// settle hands over what is to be acknowledged. It may wait for earlier batches, but not beyond the cut: then the
// server's redelivery settles what there is no room for.
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
		for more := true; more; {
			select {
			case next := <-s.queue:
				batch = append(batch, next...)
				more = len(next) > 0 && len(batch) < 16*throttle.MaxBatch
			default:
				more = false
			}
		}
		if s.acknowledge(batch) {
			s.count(batch)
		}
	}
}

// acknowledge says a batch until the server confirms it, all on one connection: what was said on a connection that was
// lost before the confirmation may not have arrived. An acknowledgement that comes late still removes the message.
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

// count counts what is confirmed. A message that was settled late may have been delivered again before that, and its
// second settlement does not count.
func (s *settler) count(batch []settlement) {
	batch = slices.DeleteFunc(batch, s.again())
	type kind struct {
		category string
		outcome  Outcome
		level    string
	}
	counts := make(map[kind]int)
	for _, settled := range batch {
		if settled.outcome != "" {
			counts[kind{settled.category, settled.outcome, settled.level}]++
		}
	}
	for k, n := range counts {
		s.metrics.Event(k.category, string(k.outcome), n)
		if k.level != "" {
			s.metrics.Dropped(k.category, k.level, n)
		}
	}
	if s.drops != nil {
		s.tellOfDrops(batch)
	}
	var ended []*message
	for _, settled := range batch {
		if !settled.goesOn {
			ended = append(ended, settled.message)
		}
	}
	s.ended(ended)
}

// tellOfDrops counts the dropped events of a batch by category and level. Of each kind one title is told: that of the first event
// that shows one.
func (s *settler) tellOfDrops(batch []settlement) {
	type kind struct{ category, level string }
	var drops []summary.Drop
	numbers := make(map[kind]int)
	for _, settled := range batch {
		if settled.outcome != Dropped {
			continue
		}
		number, known := numbers[kind{settled.category, settled.level}]
		if !known {
			number = len(drops)
			numbers[kind{settled.category, settled.level}] = number
			drops = append(drops, summary.Drop{Category: settled.category, Level: settled.level})
		}
		drop := &drops[number]
		drop.N++
		if drop.Title == "" {
			drop.Title = event.QuickTitle(settled.Data())
		}
	}
	if len(drops) > 0 {
		s.drops(drops)
	}
}

// again returns a function that tells whether a settlement is a message's second one. It remembers the late ones: those of
// a connection that was lost since, and those whose lease had run out.
func (s *settler) again() func(settlement) bool {
	now, connection := time.Now(), s.conn.Stats().Reconnects
	tidy := false
	return func(settled settlement) bool {
		late := settled.connection != connection || settled.leftAt(now) <= 0
		s.mu.Lock()
		defer s.mu.Unlock()
		if !late && len(s.late) == 0 {
			return false
		}
		name := stored{settled.stream, settled.sequence, settled.stored.UnixNano()}
		_, again := s.late[name]
		if late {
			if !tidy {
				tidy = true
				maps.DeleteFunc(s.late, func(_ stored, until time.Time) bool { return now.After(until) })
			}
			s.late[name] = now.Add(s.patient)
		}
		return again
	}
}

// giveBack returns a message to JetStream, to be delivered again after the delay. If the lease may have run out it is
// delivered again anyway, and another word would be one delivery too many.
func (w *Worker) giveBack(m *message, delay time.Duration) {
	if m.left() <= 0 {
		return
	}
	word := sayNak
	if delay > 0 {
		word += ` {"delay": ` + strconv.FormatInt(delay.Nanoseconds(), 10) + `}`
	}
	_ = w.conn.Publish(m.Reply(), []byte(word)) // if it is lost, the acknowledgement wait does the same, later
}

// terminate ends a message that is stored as a dead letter, and says why.
func (w *Worker) terminate(m *message, reason string) {
	if m.left() > 0 {
		if _, err := w.conn.Request(m.Reply(), []byte(sayTerm+" "+reason), confirmTimeout); err == nil {
			w.settler.count([]settlement{{message: m, outcome: Dead}})
			return
		}
	}
	w.settle(settlement{message: m, outcome: Dead}) // late or unconfirmed: an acknowledgement does no harm
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
