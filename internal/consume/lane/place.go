package lane

import (
	"context"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/pacing"
)

// Place is a delivery's place in its channel's lane, from [Lanes.Enter] to [Place.Leave].
type Place struct {
	lanes     *Lanes
	lane      *lane
	delivery  Delivery
	reserving *turn // nil: lanes have no order
	posting   *turn // nil: it has not reserved its post yet or lanes have no order
	refusals  int   // of its lane when the delivery entered
	count     *int  // where the lane counts the delivery
	permitted bool  // it is one of the deliveries that may post at once
	gone      bool
}

// AwaitPost waits for the delivery's turn, and then for its reserved post. If the post is too far away, ok is false and wait is the time
// until the post: the place keeps its turn until LetNext or Leave, because the next delivery might get to the room first. If the context
// ends, ok is false and wait is 0.
//
// A delivery that posts again calls AwaitPost again. It has had its turns, so it waits only for a permit and a reservation.
func (p *Place) AwaitPost(ctx context.Context) (wait time.Duration, ok bool) {
	p.lanes.o.Held(p.delivery.Channel, 1)
	defer p.lanes.o.Held(p.delivery.Channel, -1)
	if !p.reserving.await(ctx) || !p.takePermit(ctx) {
		return 0, false
	}
	for ctx.Err() == nil {
		wait, ok = p.reserve(ctx)
		if !ok {
			return wait, false
		}
		due := time.Now().Add(wait)
		if wait == 0 {
			return 0, p.begin(ctx, due)
		}
		if !await.For(ctx, wait) {
			return 0, false
		}
		if p.lanes.o.Pacer.CheckPause(ctx, p.delivery.Channel) == 0 && ctx.Err() == nil { // the channel may have paused another instance since
			return 0, p.begin(ctx, due)
		}
	}
	return 0, false
}

// takePermit waits until the delivery may post, beside the posts that its channel takes at once.
func (p *Place) takePermit(ctx context.Context) bool {
	if p.permitted {
		return true
	}
	select {
	case p.lane.permits <- struct{}{}:
		p.permitted = true
	case <-ctx.Done():
	}
	return p.permitted
}

// reserve reserves the delivery's post, and ends its turn to reserve. After a refusal, the deliveries behind it are refused too: the pause
// keeps shrinking, so they might be accepted and overtake. This holds for the deliveries in the lane, and for those that enter as long as a
// request for the events of the room may stay open.
func (p *Place) reserve(ctx context.Context) (wait time.Duration, ok bool) {
	if resting := p.lanes.resting(p.delivery.Channel); resting > MemoryWait || p.isBehindARefusal() {
		return max(resting, time.Millisecond), false
	}
	reserved := p.lanes.o.Pacer.Reserve(ctx, p.ask())
	for !reserved.OK && reserved.Expected <= p.mostWait() {
		if !await.For(ctx, reserved.Wait) {
			return 0, false
		}
		reserved = p.lanes.o.Pacer.Reserve(ctx, p.ask())
	}
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	if !reserved.OK {
		p.lane.refusals++
		p.lane.pausedUntil = time.Now().Add(min(reserved.Wait, MemoryWait+p.lanes.o.Poll))
		return reserved.Wait, false
	}
	if p.reserving != nil && p.posting == nil {
		p.posting = p.lane.posting.join(Delivery{}) // before the next delivery can reserve
		p.lane.reserving.end(p.reserving)
	}
	return reserved.Wait, true
}

// isBehindARefusal reports whether a reservation was refused since the delivery entered its lane.
func (p *Place) isBehindARefusal() bool {
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	return p.refusals < p.lane.refusals
}

func (p *Place) ask() pacing.Ask {
	return pacing.Ask{Channel: p.delivery.Channel, Urgency: p.delivery.urgency(), Since: p.delivery.Since, MaxWait: p.mostWait()}
}

func (p *Place) mostWait() time.Duration {
	switch {
	case !p.lanes.paced:
		return MemoryWait
	case p.delivery.Queued:
		return QueuedWait
	}
	return FreshWait
}

// begin waits until the previous delivery, which may still ask Redis for pauses, has begun its post. It returns false if the context ends.
func (p *Place) begin(ctx context.Context, due time.Time) bool {
	if !p.posting.await(ctx) {
		return false
	}
	if time.Since(due) > late && p.lanes.paced {
		p.lanes.mu.Lock()
		apart := time.Until(p.lane.began.Add(p.lanes.o.Pace))
		p.lanes.mu.Unlock()
		if !await.For(ctx, apart) {
			return false
		}
	}
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	p.lane.began = time.Now()
	p.lane.posting.end(p.posting)
	return true
}

// StepAside lets another delivery post. The delivery keeps its place, and takes part again with AwaitPost.
func (p *Place) StepAside() {
	if p.permitted {
		p.permitted = false
		<-p.lane.permits
	}
}

// LetNext lets the deliveries behind reserve and begin their posts. They may follow this delivery to the room.
func (p *Place) LetNext() {
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	p.lane.reserving.end(p.reserving)
	p.lane.posting.end(p.posting)
}

// Leave gives up the place. It may be called again.
func (p *Place) Leave() {
	if p.gone {
		return
	}
	p.gone = true
	p.LetNext()
	p.StepAside()
	p.lanes.mu.Lock()
	defer p.lanes.mu.Unlock()
	*p.count--
	p.lane.bytes -= p.delivery.Size
	p.lane.left = time.Now()
	close(p.lane.changed)
	p.lane.changed = make(chan struct{})
}

// turns come one at a time, in the order of joining. The lock of Lanes guards them.
type turns struct{ waiting []*turn }

type turn struct {
	of   Delivery
	came chan struct{}
}

// join takes the last position of the delivery's urgency. The first delivery has its turn, so even more urgent deliveries come after it.
func (t *turns) join(d Delivery) *turn {
	own, at := &turn{of: d, came: make(chan struct{})}, len(t.waiting)
	for at > 1 && d.urgency() < t.waiting[at-1].of.urgency() {
		at--
	}
	if t.waiting = slices.Insert(t.waiting, at, own); len(t.waiting) == 1 {
		close(own.came)
	}
	return own
}

// end removes a turn, and starts the next turn if this one was the first. It ignores a turn that has ended.
func (t *turns) end(ended *turn) {
	i := slices.Index(t.waiting, ended)
	if i < 0 {
		return
	}
	t.waiting = slices.Delete(t.waiting, i, i+1)
	if i == 0 && len(t.waiting) > 0 {
		close(t.waiting[0].came)
	}
}

// await waits for a turn, and reports whether it came before the context ended. A nil turn has come.
func (t *turn) await(ctx context.Context) bool { return t == nil || await.Ready(ctx, t.came) }
