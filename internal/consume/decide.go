package consume

import (
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// unjudged is how long an event rests that could not be judged now.
const unjudged = time.Second

// decideAll decides about messages as they come, in batches of what has come, until no more do. Once the context has
// ended they are kept, and given back when no more come: before, the last request for messages would get them again.
// Deliveries and dead letters go on in the work context.
func (w *Worker) decideAll(ctx, work context.Context) {
	batch := make([]*message, 0, MaxBatch)
	var undecided []*message
	defer func() {
		for _, m := range undecided {
			w.giveBack(m, 0)
		}
	}()
	for m := range w.incoming {
		batch = append(batch[:0], m)
		for len(batch) < MaxBatch && len(w.incoming) > 0 {
			next, open := <-w.incoming
			if !open {
				break
			}
			batch = append(batch, next)
		}
		if ctx.Err() != nil {
			undecided = append(undecided, batch...)
			continue
		}
		undecided = append(undecided, w.decideBatch(ctx, work, batch)...)
	}
}

// candidate is a message whose event asks to be delivered.
type candidate struct {
	*message
	event  event.Event
	lookUp bool
}

// decideBatch takes messages through decoding and decision. Drops are settled here; the rest is handed on. It returns
// those that it had not decided about when the context ended.
func (w *Worker) decideBatch(ctx, work context.Context, batch []*message) (undecided []*message) {
	var (
		settled    []settlement
		candidates []candidate
	)
	for _, m := range batch {
		if m.left() <= 0 {
			continue // it waited too long here: JetStream delivers it again
		}
		again := w.deliveredBefore(m)
		if m.delivered > 1 {
			w.metrics.Redelivered(1)
		}
		expired := w.tooOld(m)
		if expired && !again {
			m.category, _, _ = w.o.Decoder.CategoryOf(m.Subject())
			settled = append(settled, settlement{message: m, outcome: Expired})
			continue
		}
		if parts := m.parts(w.o.Decoder); parts != nil {
			w.hand <- struct{}{}
			w.work(func() { defer w.vacate(1); w.split(work, m, parts) })
			continue
		}
		e, level, fault := w.read(m, again)
		switch {
		case fault != nil && expired:
			settled = append(settled, settlement{message: m, outcome: Expired})
		case fault != nil:
			w.hand <- struct{}{}
			w.work(func() { defer w.vacate(1); w.bury(work, m, fault, func() {}) })
		case level != "":
			settled = append(settled, w.dropped(m, level))
		default:
			c := candidate{message: m, event: e, lookUp: expired}
			if !again || !w.recall(work, c) {
				candidates = append(candidates, c)
			}
		}
	}
	w.settler.settle(settled...)
	for len(candidates) > 0 {
		n := w.reserve(ctx, len(candidates))
		if n == 0 || !w.decide(ctx, work, candidates[:n]) { // the context has ended
			for _, c := range candidates {
				undecided = append(undecided, c.message)
			}
			return undecided
		}
		candidates = candidates[n:]
	}
	return nil
}

// read finds out what a message is about: an event, or the level that is known to be full (found without decoding
// where the subject names the category), or what is wrong with it. A message that was delivered before is never dropped
// unasked: its event may have been admitted. Nor is an event that resolves another one, which no limit concerns.
func (w *Worker) read(m *message, again bool) (e event.Event, full string, fault *event.Fault) {
	category, bare, err := w.o.Decoder.CategoryOf(m.Subject())
	decodeFirst := again || bare || event.MayResolve(m.Data()) || w.mayWait(category)
	if err == nil && !bare {
		m.category = category
		if !decodeFirst {
			if level, known := w.throttle.Full(category); known {
				return event.Event{}, level, nil
			}
		}
	}
	e, err = m.decode(w.o.Decoder)
	m.category = e.Category
	if err != nil {
		errors.As(err, &fault)
		return e, "", fault
	}
	if decodeFirst && !again && !e.Resolves() && !w.mayWait(e.Category) {
		if level, known := w.throttle.Full(e.Category); known {
			return e, level, nil
		}
	}
	return e, "", nil
}

// dropped is the settlement of a message that a limit denied.
func (w *Worker) dropped(m *message, level string) settlement {
	if w.o.Delay != nil && level != LevelUnpaired && w.refusals.crowded(m.category) {
		w.metrics.DelayRefused()
	}
	s := settlement{message: m, outcome: Dropped, level: level}
	if w.o.Drops != nil {
		s.title = event.QuickTitle(m.Data())
	}
	return s
}

// clockSkew is how far the clocks of this host and of the NATS server may differ without harm.
const clockSkew = 5 * time.Second

// deliveredBefore tells whether the event may have been in someone's hands: the consumer says so; or it has waited for a
// slot; or the message is older than the consumer, which may have been made anew; or it was stored before the connection
// was last lost, since a server that was killed forgets what it had delivered.
func (w *Worker) deliveredBefore(m *message) bool {
	return m.delivered > 1 || m.waited || m.stored.Before(w.place.Load().created) ||
		m.stored.Before(w.o.Connection.lastReconnect().Add(clockSkew))
}

func (w *Worker) tooOld(m *message) bool {
	return w.o.MaxAge > 0 && time.Since(m.stored) > w.o.MaxAge
}

// reserve takes places in hand: as many as are wanted or are free, but enough for a batch that is worth a call, for
// which it waits. It takes none when the context ends first.
func (w *Worker) reserve(ctx context.Context, wanted int) int {
	enough := min(wanted, handSize/4)
	for n := range wanted {
		if n < enough {
			select {
			case w.hand <- struct{}{}:
				continue
			case <-ctx.Done():
				w.vacate(n)
				return 0
			}
		}
		select {
		case w.hand <- struct{}{}:
		default:
			return n
		}
	}
	return wanted
}

func (w *Worker) vacate(places int) {
	for range places {
		<-w.hand
	}
}

// work runs a task.
func (w *Worker) work(task func()) {
	w.working.Add(1)
	select {
	case w.tasks <- task:
	default:
		go w.hands(task)
	}
}

// hands runs a task, and then others as they come, until no more will: a goroutine that has posted before has the stack
// that posting needs.
func (w *Worker) hands(task func()) {
	for open := true; open; task, open = <-w.tasks {
		task()
		w.working.Done()
	}
}

func (c candidate) ask() Candidate {
	return Candidate{
		Event: c.event, Stream: c.stream, Sequence: c.sequence, Stored: c.stored, LookUp: c.lookUp, Waited: c.waited,
	}
}

// decide asks the throttle about candidates, for each of which a place in hand is reserved. It does not get to decide if
// the context ends first.
func (w *Worker) decide(ctx, work context.Context, candidates []candidate) (decided bool) {
	asked := make([]Candidate, len(candidates))
	for i, c := range candidates {
		asked[i] = c.ask()
	}
	preparing := w.prepare(candidates)
	decisions, err := w.throttle.Decide(ctx, asked)
	prepared := preparing()
	if err != nil {
		w.vacate(len(candidates))
		if ctx.Err() != nil {
			return false
		}
		for _, c := range candidates {
			w.giveBack(c.message, jitter(unjudged))
		}
		return true
	}
	var settled []settlement
	for i, decision := range decisions {
		c := candidates[i]
		if decision.Grant != nil {
			w.start(ctx, work, w.newDelivery(c, decision, prepared[i]))
			continue
		}
		if later := w.later(c, decision); later != nil {
			w.work(func() { defer w.vacate(1); later(work) })
			continue
		}
		w.vacate(1)
		switch decision.Verdict {
		case Deny:
			settled = append(settled, w.dropped(c.message, decision.Level))
		case Repeat:
			settled = append(settled, settlement{message: c.message, outcome: Duplicate})
		case Done:
			settled = append(settled, settlement{message: c.message, outcome: Sent})
		case Unknown:
			settled = append(settled, settlement{message: c.message, outcome: Expired})
		case Wait:
			w.giveBack(c.message, c.patience(decision.Wait)+jitter(50*time.Millisecond))
		case Undecidable:
			w.giveBack(c.message, jitter(10*unjudged))
		case Admit, Unpaired: // see above
		}
	}
	w.settler.settle(settled...)
	return true
}

// fewCandidates is how many are prepared while they are decided about. A worker with more of them is not waiting for Redis,
// and most of a flood is prepared for nothing.
const fewCandidates = 4

// prepare prepares candidates while they are decided about, if they are few: so an event that comes alone is on its way
// sooner. The function that it returns waits for that.
func (w *Worker) prepare(candidates []candidate) func() (prepared []any) {
	prepared := make([]any, len(candidates))
	if len(candidates) > fewCandidates {
		return func() []any { return prepared }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i, c := range candidates {
			prepared[i] = w.sink.Prepare(c.event)
		}
	}()
	return func() []any {
		<-done
		return prepared
	}
}

// later is what is to be done about an event that is neither delivered nor settled now, but takes a while; nil: nothing.
func (w *Worker) later(c candidate, decision Decision) func(context.Context) {
	switch {
	case decision.Verdict == Unpaired:
		return func(ctx context.Context) { w.unpaired(ctx, c.message) }
	case decision.Verdict == Deny && decision.Wait > 0 && w.o.Delay != nil && (c.waited || w.mayWait(c.event.Category)):
		return w.delayInOrder(c, decision)
	case decision.Verdict == Wait && decision.Wait > max(horizon, w.ackWait) && w.o.Delay != nil: // longer than for a lease
		return func(ctx context.Context) { w.postponeLong(ctx, c, decision.Wait) }
	}
	return nil
}

// start begins a delivery for which a place in hand is reserved. One that may have to wait for its destination gives up the
// place, so that the others go on; if too many wait for the destination, it is given back.
func (w *Worker) start(ctx, work context.Context, d *delivery) {
	if !w.channels.paced {
		w.work(func() { defer w.vacate(1); w.deliver(ctx, work, d) })
		return
	}
	if w.channels.enter(d) {
		w.vacate(1)
		w.work(func() { w.deliver(ctx, work, d) })
		return
	}
	w.work(func() {
		defer w.vacate(1)
		w.postpone(work, d, min(horizon, mostWaiting*w.o.Pace)+w.keeper.spread(d.destination))
	})
}
