package outcome

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Admission is the grant of an admitted event. The zero admission belongs to an event that is not admitted: it has nothing to end.
type Admission struct {
	Grant store.Grant // nil: the event is not admitted
	Doubt Doubt
	Anew  bool // Redis knew of no earlier admission
}

// InDoubt reports whether an attempt, perhaps of another worker, may have delivered the event.
func (a Admission) InDoubt() bool { return a.Doubt.Open || a.Doubt.Unsearchable }

// Release ends the lease of an event that another worker may deliver. The event keeps its slot.
func (a Admission) Release(ctx context.Context) {
	if a.Grant != nil {
		a.Grant.Release(ctx, a.InDoubt())
	}
}

// EndUndelivered ends the grant of an event that is not retried. The slot is returned unless an attempt may have delivered the event. Such
// an event counts as delivered, so a replay does not post it again. The event's message is settled after owed.
func (a Admission) EndUndelivered(ctx context.Context) (owed <-chan struct{}) {
	switch {
	case a.Grant == nil:
		return nil
	case a.InDoubt():
		_, owed = a.Grant.Finish(ctx, "")
		return owed
	}
	return a.Grant.Refund(ctx)
}

// endAfterOther ends the grant of an event whose message another worker has ended. An event that was admitted here anew was dropped, or goes on
// in the room undecided: Redis knew of no attempt of others. So its slot is returned unless an attempt of this worker may have delivered it. An
// event that was admitted before may go on in its channel's queue, with its slot.
func (a Admission) endAfterOther(ctx context.Context) {
	switch {
	case !a.Anew:
		a.Release(ctx)
	case a.Doubt.Own:
		a.Grant.Finish(ctx, "")
	default:
		a.Grant.Refund(ctx)
	}
}

// Doubt is what is not known about the earlier attempts at a post. The times are by the clock of this process.
type Doubt struct {
	Open         bool // an attempt may have made the post, and nobody has looked: whoever gets the event next has to look too
	Unsearchable bool // nobody can look
	Own          bool // an attempt of this worker may have made the post
	First, Last  time.Time
}

// Attempted records an attempt of this worker that may have made the post.
func (o *Doubt) Attempted(began, ended time.Time) {
	if o.First.IsZero() {
		o.First = began
	}
	o.Open, o.Own, o.Last = !o.Unsearchable, true, ended
}
