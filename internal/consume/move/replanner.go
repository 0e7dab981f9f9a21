package move

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Replanner has the events that wait for slots planned anew after a change of their limits.
//
// A worker that has new limits stores a request in the room. The requests of all workers for one position of the limits share one
// message schedule. One worker takes the request. If this worker dies, another worker takes the request again. The worker makes the events due
// that other limits have planned, the oldest first. These events are decided and, if a limit denies them, planned anew in the order of their
// queues. A worker that stores a plan of older limits afterwards stores another request.
type Replanner struct {
	limits  outcome.Rules
	waits   stay.Waits
	streams *stream.Client
	settler *outcome.Settler
	failing *oplog.Condition
	on      bool // see ReplannerOptions.On
}

// ReplannerOptions configure a replanner.
type ReplannerOptions struct {
	Limits  outcome.Rules
	Settler *outcome.Settler
	Waits   stay.Waits
	On      bool // some events of this worker may wait for slots, so it requests new plans
	Logger  *slog.Logger
}

// NewReplanner returns a replanner. It carries out the requests of all workers.
func NewReplanner(o ReplannerOptions) *Replanner {
	return &Replanner{
		limits: o.Limits, waits: o.Waits, streams: o.Settler.Streams, settler: o.Settler, on: o.On,
		failing: oplog.NewCondition(o.Logger, "cannot replan waiting events", "replanning waiting events again"),
	}
}

const (
	// rulesEvery is how often a worker looks whether it has other limits.
	rulesEvery = 250 * time.Millisecond

	// replanEvery is how often a request is taken.
	replanEvery = time.Second

	// reachedWithin is how long a request waits for a worker with limits of its position.
	reachedWithin = time.Minute
)

// Watch requests new plans whenever this worker has other limits, until the context ends.
func (r *Replanner) Watch(ctx context.Context) {
	if !r.on {
		return
	}
	var known *store.Rules
	for isRunning := true; isRunning; isRunning = await.For(ctx, rulesEvery) {
		if rules := r.limits.Rules(); rules != known && r.streams.Connection.Conn.IsConnected() && r.publish(ctx, rules) == nil {
			known = rules
		}
	}
}

// stored requests new plans if an event of a category was stored with a plan of other limits, or of limits that are not known.
func (r *Replanner) stored(category, plan string) {
	if rules := r.limits.Rules(); r.on && rules.Plan(category) != plan {
		_ = r.publish(context.Background(), rules) // the condition reports a failure
	}
}

// publish stores a request in the room, to be taken within replanEvery. The server keeps the newest request for the same limits.
func (r *Replanner) publish(ctx context.Context, rules *store.Rules) error {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	position := rules.PositionText()
	subject, target := r.streams.Names.Room().Replan(position)
	request := &nats.Msg{Subject: subject, Header: nats.Header{room.HeaderLimits: {position}}}
	trusted.Mark(request.Header)
	room.ScheduleAt(request, target, r.streams.Clock.Now().Truncate(replanEvery).Add(replanEvery))
	_, err := r.streams.JetStream.PublishMsg(ctx, request)
	if ctx.Err() == nil {
		r.failing.Note(err)
	}
	return err
}

// Asked reports whether a message is a request for new plans.
func (r *Replanner) Asked(m *received.Message) bool {
	return m.From.InRoom && r.streams.Names.Room().IsReplan(m.Subject)
}

// Replan carries out a request for new plans, and settles it.
func (r *Replanner) Replan(ctx context.Context, m *received.Message) {
	rules := r.limits.Rules()
	if !rules.Reaches(m.Header.Get(room.HeaderLimits)) && r.streams.Clock.Since(m.Meta.Timestamp) < reachedWithin {
		r.settler.Nak(m, rulesEvery)
		return
	}
	if err := r.waits.Advance(ctx, func(e delayed.Event) bool { return e.Entry.Limits != rules.Plan(e.Category) }); err != nil {
		if ctx.Err() == nil {
			r.failing.Note(err)
		}
		r.settler.Nak(m, stage.Jitter(stage.UndecidedDelay))
		return
	}
	r.failing.Note(nil)
	r.settler.Settle(outcome.Settlement{Message: m, GoesOn: true}) // it has no stay in the room
}
