package consume

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
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
		} else {
			undecided = append(undecided, w.decideBatch(ctx, work, batch)...)
		}
		for _, m := range batch {
			if m.source.deciding != nil {
				m.source.deciding.Done()
			}
		}
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
	recorded := sync.OnceValue(func() func(Candidate) bool { return w.throttle.Recorded(ctx) })
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
			m.category, _, _ = w.o.Decoder.CategoryOf(m.entry.Subject)
			settled = append(settled, settlement{message: m, outcome: Expired})
			continue
		}
		if parts, bad := w.o.Decoder.Parts(m.asStored()); parts != nil {
			m.category, _, _ = w.o.Decoder.CategoryOf(m.entry.Subject)
			w.hand <- struct{}{}
			w.work(func() { defer w.vacate(1); w.split(work, m, parts, bad) })
			continue
		}
		e, level, fault := w.read(m, again, recorded)
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
// where the subject names the category), or what is wrong with it. A message that was delivered before is not dropped unless it
// is certain that its event was not admitted then. Nor is, unasked, an event that resolves another one, which no limit concerns.
func (w *Worker) read(m *message, again bool, recorded func() func(Candidate) bool) (e event.Event, full string, fault *event.Fault) {
	category, bare, err := w.o.Decoder.CategoryOf(m.entry.Subject)
	decodeFirst := bare || event.MayResolve(m.Data()) || w.mayWait(category)
	if err == nil && !bare {
		m.category = category
		if !decodeFirst && (!again || w.isNew(m, recorded)) {
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
	switch {
	case !decodeFirst || again:
	case e.Resolves():
		if w.throttle.KnownUnpaired(e.Pair(), m.entry.Origin.Stored) {
			w.metrics.Resolved("unpaired")
			return e, LevelUnpaired, nil
		}
	case !w.mayWait(e.Category):
		if level, known := w.throttle.Full(e.Category); known {
			return e, level, nil
		}
	}
	return e, "", nil
}

// isNew tells whether a message that may have been delivered before is certainly of an event that nobody has admitted.
func (w *Worker) isNew(m *message, recorded func() func(Candidate) bool) bool {
	e, ok := w.o.Decoder.QuickIdentity(m.asStored(), m.category)
	if !ok {
		return false
	}
	inRecord := recorded()
	return inRecord != nil && !inRecord(candidate{message: m, event: e}.ask())
}

// dropped is the settlement of a message that a limit denied.
func (w *Worker) dropped(m *message, level string) settlement {
	if w.o.Delay != nil && level != LevelUnpaired && level != LevelRoom && w.refusals.crowded(m.category) {
		w.metrics.RoomRefused(string(room.Slot), 1)
	}
	s := settlement{message: m, outcome: Dropped, level: level}
	if w.o.Drops != nil {
		s.title = event.QuickTitle(m.Data())
	}
	return s
}

// clockSkew is how far what is known of the server's clock may be wrong without harm.
const clockSkew = 5 * time.Second

// deliveredBefore tells whether the event may have been in someone's hands: the consumer says so; or it comes from the room; or
// the message is older than the consumer, which may have been made anew; or it was stored before the connection was last lost,
// since a server that was killed forgets what it had delivered.
func (w *Worker) deliveredBefore(m *message) bool {
	return m.delivered > 1 || m.source.inRoom || m.stored.Before(w.place.Load().created) ||
		m.stored.Before(w.clock.at(w.o.Connection.lastReconnect()).Add(clockSkew))
}

func (w *Worker) tooOld(m *message) bool {
	return w.o.MaxAge > 0 && w.clock.since(m.entry.Since) > w.o.MaxAge
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
		Event: c.event, Stream: c.entry.Origin.Stream, Sequence: c.entry.Origin.Sequence, Stored: c.entry.Origin.Stored,
		LookUp: c.lookUp, Waited: c.waited(),
	}
}

// decide asks the throttle about candidates, for each of which a place in hand is reserved. It does not get to decide if
// the context ends first.
func (w *Worker) decide(ctx, work context.Context, candidates []candidate) (decided bool) {
	asked := make([]Candidate, len(candidates))
	for i, c := range candidates {
		asked[i] = c.ask()
	}
	asking := w.clock.now()
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
	var (
		settled  []settlement
		unpaired []candidate
	)
	for i, decision := range decisions {
		c := candidates[i]
		if decision.Grant != nil {
			w.start(ctx, work, w.newDelivery(c, decision, prepared[i]))
			continue
		}
		switch decision.Verdict {
		case Deny:
			if later := w.delayOf(c, decision); later != nil {
				w.work(func() { defer w.vacate(1); later(work) })
				continue
			}
			settled = append(settled, w.dropped(c.message, decision.Level))
		case Unpaired:
			unpaired = append(unpaired, c)
			continue
		case Repeat:
			settled = append(settled, settlement{message: c.message, outcome: Duplicate})
		case Done:
			settled = append(settled, w.done(c))
		case Unknown:
			settled = append(settled, settlement{message: c.message, outcome: Expired})
		case Wait:
			if c.event.Resolves() {
				w.wait(c, room.Pair, min(decision.Wait, w.pairWait(c)), c.entry.Behind, func() { w.vacate(1) })
				continue
			}
			w.giveBack(c.message, decision.Wait+jitter(50*time.Millisecond))
		case Undecidable:
			w.wait(c, room.Redis, jitter(10*unjudged), 0, func() { w.vacate(1) })
			continue
		case Admit: // has a grant
		}
		w.vacate(1)
	}
	if len(unpaired) > 0 {
		w.work(func() { w.unpaired(work, unpaired, asking) })
	}
	w.settler.settle(settled...)
	return true
}

// done is the settlement of an event that was delivered before: whoever recorded that has counted it. One that an operator
// replayed is another message with its ID.
func (w *Worker) done(c candidate) settlement {
	if c.entry.Replayed() {
		return settlement{message: c.message, outcome: Duplicate}
	}
	return settlement{message: c.message}
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

// delayOf is what is to be done about a denied event that may wait for a slot; nil: nothing.
func (w *Worker) delayOf(c candidate, decision Decision) func(context.Context) {
	if decision.Wait == 0 || w.o.Delay == nil || !c.waited() && !w.mayWait(c.event.Category) {
		return nil
	}
	return w.delayInOrder(c, decision)
}

// start begins a delivery for which a place in hand is reserved. Where channels are paced it gives up the place, so that the
// others go on. If its channel rests, or has others to take before, it waits in the room.
func (w *Worker) start(ctx, work context.Context, d *delivery) {
	leave := func() { w.vacate(1) }
	if d.fromQueue() {
		w.served.Store(d.source.token(), d.destination)
	}
	switch rests := w.resting(d.destination) > moment; {
	case rests && !d.fromQueue(), !w.channels.enter(d):
		w.mover.moves <- w.holding(work, d, leave)
	case w.channels.paced:
		leave()
		w.work(func() { w.deliver(ctx, work, d) })
	default:
		w.work(func() { defer leave(); w.deliver(ctx, work, d) })
	}
}
