package pacing

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// Options say how many requests all instances make, and where they agree on it.
type Options struct {
	Runner    *script.Runner
	Instance  string // a name that no other instance has, without white space
	Budgets   Budgets
	Available func() bool // whether to ask Redis; nil: always
	Logger    *slog.Logger
	Metrics   Metrics // nil: none
}

// Metrics shows the use of the budgets. Its methods may be called concurrently.
type Metrics interface {
	// PaceUsed sets the requests of the last window, and what waits for the budget. For the budget "channels" it sets how many channels are
	// at their pace, and how many of them have deliveries that wait.
	PaceUsed(budget string, used, waiting int)
}

// Pacer paces the posts, updates and look-ups of one instance.
type Pacer struct {
	o      Options
	shared shared
	local  *local
	log    *oplog.Repeated[string]
	known  atomic.Pointer[Use]

	lookingUp chan struct{} // holds an element while a caller of AwaitLookUp waits for its turn among all instances
}

// New makes a Pacer. It does not talk to the server.
func New(o Options) *Pacer {
	return &Pacer{
		o: o, shared: shared{o.Runner, o.Budgets, o.Available}, local: newLocal(o.Budgets), lookingUp: make(chan struct{}, 1),
		log: oplog.NewRepeated(func(name string, count int, newest []any) {
			o.Logger.Info("deliveries were paused", append([]any{"destination", readable(name), "pauses", count}, newest...)...)
		}),
	}
}

// readable returns the name of a channel, or the word for the workspace, updates or look-ups.
func readable(name string) string { return strings.TrimPrefix(name, "\n") }

// Reserve asks for the next post of a channel. If the answer is not OK, nothing is reserved; the caller asks again after the wait, or gives
// up. Without a bound it asks nothing of Redis: pauses come with the decisions of the limits. If ctx ends before Redis answers, Reserve
// reserves nothing, and Wait is 0.
func (p *Pacer) Reserve(ctx context.Context, a Ask) Reservation {
	asker, paused := a.asker(p.o.Instance), p.Paused(a.Channel)
	alone := func(now time.Time) Reservation { return p.local.post(now, asker, a, paused) }
	if p.o.Budgets.Channel.Interval == 0 && p.o.Budgets.Workspace.Count == 0 {
		return alone(time.Now())
	}
	return p.shared.reserve(ctx, func() (Reservation, error) { return p.shared.post(ctx, asker, a, paused) }, alone,
		func(now, slot time.Time) { p.local.learnPost(now, a.Channel, slot) })
}

// reserve asks Redis for a slot, and learns it, or asks this instance alone. If ctx ends before Redis answers, it reserves nothing.
func (s shared) reserve(
	ctx context.Context, together func() (Reservation, error), alone func(now time.Time) Reservation, learn func(now, slot time.Time),
) Reservation {
	if s.isAvailable() {
		if reservation, err := together(); err == nil {
			if now := time.Now(); reservation.OK {
				learn(now, now.Add(reservation.Wait))
			}
			return reservation
		}
		if ctx.Err() != nil { // another instance may know of a pause
			return Reservation{}
		}
	}
	return alone(time.Now())
}

// longestLookUpWait is the longest time to a look-up that is reserved.
const longestLookUpWait = time.Hour

// AwaitLookUp waits until posts may be looked up. If the context ends first, it returns the context's error. Only one caller of an instance
// waits at a time. An instance that ends therefore wastes at most one look-up, and the instances take turns.
func (p *Pacer) AwaitLookUp(ctx context.Context) error {
	select {
	case p.lookingUp <- struct{}{}:
		defer func() { <-p.lookingUp }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for {
		reservation := p.reserveLookUp(ctx)
		await.For(ctx, reservation.Wait)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case reservation.OK && (reservation.Wait == 0 || p.checkPause(ctx, lookUps) == 0):
			return nil
		}
	}
}

func (p *Pacer) reserveLookUp(ctx context.Context) Reservation {
	paused := p.local.pauses.left(time.Now(), lookUps)
	alone := func(now time.Time) Reservation { return p.local.lookUp(now, paused, longestLookUpWait) }
	if p.o.Budgets.LookUps.Count == 0 {
		return alone(time.Now())
	}
	return p.shared.reserve(ctx, func() (Reservation, error) { return p.shared.lookUp(ctx, paused, longestLookUpWait) }, alone,
		func(now, slot time.Time) { p.local.learn(&p.local.lookUps, now, slot) })
}

// BeginUpdate reserves an update of a message. If the answer is OK, the update begins after the wait, and the caller reports its end
// with [Pacer.Updated]. If the answer is not OK, the caller asks again after the wait, for the same slot. If ctx ends before Redis answers, the
// answer is not OK, and Wait is 0.
func (p *Pacer) BeginUpdate(ctx context.Context, u Update) Reservation {
	paused := p.local.pauses.left(time.Now(), updates)
	return p.shared.reserve(ctx, func() (Reservation, error) { return p.shared.update(ctx, u, paused) },
		func(now time.Time) Reservation { return p.local.update(now, u, paused) },
		func(now, slot time.Time) { p.local.learn(&p.local.updates.slots, now, slot) })
}

// Updated records that a message shows a state. Older states are obsolete from then on.
func (p *Pacer) Updated(ctx context.Context, message string, order int64) {
	p.local.updated(time.Now(), message, order)
	if p.shared.isAvailable() {
		_ = p.shared.updated(ctx, message, order) // if it fails, the state may be shown once more, and a newer one waits until the request has lasted longest
	}
}

// longestDigestWait is how far away the post of a digest may be that waits in line.
const longestDigestWait = 10 * time.Minute

// AwaitDigest waits until a channel takes a digest, and returns 0, if the post is due within a second. Otherwise it returns the time until the
// caller asks again: until then the digest is in line, behind the events of its channel and the channels that have waited longer. If the
// context ends first, AwaitDigest returns the context's error.
func (p *Pacer) AwaitDigest(ctx context.Context, channel string) (time.Duration, error) {
	reservation := p.Reserve(ctx, Ask{Channel: channel, Urgency: Digest, MaxWait: longestDigestWait})
	if reservation.OK && reservation.Wait > 0 {
		await.For(ctx, reservation.Wait)
		reservation.Wait = p.CheckPause(ctx, channel) // another instance may have paused the channel since
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return reservation.Wait, nil
}

// Pause pauses a channel for d on all instances, since Slack limited a post to it.
func (p *Pacer) Pause(ctx context.Context, channel string, d time.Duration) {
	p.pause(ctx, channel, d, byLimit)
}

// PauseRefusing pauses a channel for d on all instances, since the channel refuses messages.
func (p *Pacer) PauseRefusing(ctx context.Context, channel string, d time.Duration) {
	p.pause(ctx, channel, d, byRefusal)
}

// PauseUpdates pauses updates for d on all instances, since Slack limited an update.
func (p *Pacer) PauseUpdates(ctx context.Context, d time.Duration) { p.pause(ctx, updates, d, byLimit) }

// PauseLookUps pauses look-ups for d on all instances, since Slack limited a look-up.
func (p *Pacer) PauseLookUps(ctx context.Context, d time.Duration) { p.pause(ctx, lookUps, d, byLimit) }

func (p *Pacer) pause(ctx context.Context, name string, d time.Duration, why cause) {
	asked := time.Now()
	paused := p.local.pause(asked, name, d, why)
	if p.shared.isAvailable() {
		everywhere, err := p.shared.pause(ctx, name, d, why)
		if err != nil {
			p.o.Logger.Warn("cannot share a pause with other instances", "destination", readable(name), "error", err)
		} else {
			paused = everywhere
			p.Learn(asked, everywhere)
		}
	}
	for name, d := range paused {
		p.log.Add(name, 1, "paused_for", d.Round(time.Millisecond).String(), "until", asked.Add(d))
	}
}

// Paused returns how long this instance knows a channel to stay paused, alone or with the workspace.
func (p *Pacer) Paused(channel string) time.Duration {
	return p.local.pauses.left(time.Now(), channel, workspace)
}

// CheckPause returns how long a channel is still paused. It asks Redis if possible: another instance may know of a newer pause.
func (p *Pacer) CheckPause(ctx context.Context, channel string) time.Duration {
	return max(p.checkPause(ctx, channel), p.Paused(channel))
}

// checkPause returns how long a channel, the updates or the look-ups are still paused, apart from a pause of the workspace.
func (p *Pacer) checkPause(ctx context.Context, name string) time.Duration {
	if p.shared.isAvailable() {
		asked := time.Now()
		if paused, err := p.shared.pause(ctx, name, 0, byLimit); err == nil {
			p.Learn(asked, paused)
		}
	}
	return p.local.pauses.left(time.Now(), name)
}

// Learn records the pauses, by name, that Redis reported at a time.
func (p *Pacer) Learn(asked time.Time, pauses map[string]time.Duration) {
	p.local.pauses.learn(asked, pauses)
}

const useEvery = 5 * time.Second

// Run counts the use of the budgets, with the budgets of the channels, until ctx ends.
func (p *Pacer) Run(ctx context.Context, channels []string) {
	defer p.log.Stop()
	p.countUse(ctx, channels)
	for await.For(ctx, useEvery) {
		p.countUse(ctx, channels)
	}
}

func (p *Pacer) countUse(ctx context.Context, channels []string) {
	use := p.local.use(time.Now(), channels)
	if p.shared.isAvailable() {
		if everywhere, err := p.shared.use(ctx, channels); err == nil {
			use = everywhere
		}
	}
	use.At = time.Now()
	p.known.Store(&use)
	if p.o.Metrics != nil {
		waiting := slices.DeleteFunc(slices.Clone(use.Channels), func(c ChannelUse) bool { return c.Askers == 0 })
		p.o.Metrics.PaceUsed("channels", len(use.Channels), len(waiting))
		p.o.Metrics.PaceUsed("workspace", use.Workspace.Used, use.Workspace.Waiting)
		p.o.Metrics.PaceUsed("updates", use.Updates.Used, use.Updates.Waiting)
		p.o.Metrics.PaceUsed("lookups", use.LookUps.Used, use.LookUps.Waiting)
	}
}

// Use returns the use of the budgets as Run last counted it.
func (p *Pacer) Use() Use {
	if use := p.known.Load(); use != nil {
		return *use
	}
	return Use{}
}

// Mention returns whether an event may mention people, and whether this is the first such answer. One event of each path may mention people
// in each duration. While Redis is unavailable, this instance decides for itself.
func (p *Pacer) Mention(ctx context.Context, path, id string, d time.Duration) (may, first bool) {
	answer, err := noMention, script.ErrUnavailable
	if p.shared.isAvailable() {
		answer, err = p.shared.mention(ctx, path, id, d)
	}
	switch {
	case err != nil:
		answer = p.local.mentions.take(time.Now(), path, id, d)
	case answer != noMention:
		p.local.mentions.take(time.Now(), path, id, d) // in case Redis becomes unavailable
	}
	return answer != noMention, answer == takesMention
}

// ReturnMention returns the mention of an event if the event's message certainly was not sent. Another event of the path may then mention
// people. If Redis is unavailable, the mention comes back when its time is over.
func (p *Pacer) ReturnMention(ctx context.Context, path, id string) {
	p.local.mentions.giveBack(path, id)
	if p.shared.isAvailable() {
		_, _ = p.shared.mention(ctx, path, id, 0)
	}
}
