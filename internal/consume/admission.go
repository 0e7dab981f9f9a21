package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// admission is the grant of an admitted event. The zero admission belongs to an event that is not admitted: it has nothing to end.
type admission struct {
	grant store.Grant // nil: the event is not admitted
	doubt doubt
	anew  bool // Redis knew of no earlier admission
}

// inDoubt reports whether an attempt, perhaps of another worker, may have delivered the event.
func (a admission) inDoubt() bool { return a.doubt.open || a.doubt.unsearchable }

// release ends the lease of an event that another worker may deliver. The event keeps its slot.
func (a admission) release(ctx context.Context) {
	if a.grant != nil {
		a.grant.Release(ctx, a.inDoubt())
	}
}

// endUndelivered ends the grant of an event that is not retried. The slot is returned unless an attempt may have delivered the event. Such
// an event counts as delivered, so a replay does not post it again. The event's message is settled after owed.
func (a admission) endUndelivered(ctx context.Context) (owed <-chan struct{}) {
	switch {
	case a.grant == nil:
		return nil
	case a.inDoubt():
		_, owed = a.grant.Finish(ctx, "")
		return owed
	}
	return a.grant.Refund(ctx)
}

// endAfterOther ends the grant of an event whose message another worker has ended. An event that was admitted here anew was dropped, or goes on
// in the room undecided: Redis knew of no attempt of others. So its slot is returned unless an attempt of this worker may have delivered it. An
// event that was admitted before may go on in its channel's queue, with its slot.
func (a admission) endAfterOther(ctx context.Context) {
	switch {
	case !a.anew:
		a.release(ctx)
	case a.doubt.own:
		a.grant.Finish(ctx, "")
	default:
		a.grant.Refund(ctx)
	}
}

// doubt is what is not known about the earlier attempts at a post. The times are by the clock of this process.
type doubt struct {
	open         bool // an attempt may have made the post, and nobody has looked: whoever gets the event next has to look too
	unsearchable bool // nobody can look
	own          bool // an attempt of this worker may have made the post
	first, last  time.Time
}

func (o *doubt) attempted(began, ended time.Time) {
	if o.first.IsZero() {
		o.first = began
	}
	o.open, o.own, o.last = !o.unsearchable, true, ended
}
