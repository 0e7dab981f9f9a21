package pacing

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// Pace is how fast a destination takes messages: one each interval, and a burst after an idle time.
type Pace struct {
	Interval time.Duration // 0: no bound
	Burst    int           // 1 or more, where there is an interval
}

// ahead is how far a burst may run ahead of the interval.
func (p Pace) ahead() time.Duration { return time.Duration(max(p.Burst, 1)-1) * p.Interval }

// Reservation is when a destination takes a message.
type Reservation struct {
	Wait time.Duration // until then
	OK   bool          // the slot is reserved for the caller; false: nothing is reserved, as Wait exceeds the maximum
}

// Options say how fast destinations take messages, and where all instances agree on it.
type Options struct {
	Runner    *script.Runner
	Pace      Pace        // of each destination
	Available func() bool // whether to ask Redis; nil: always
	Logger    *slog.Logger
}

// Pacer paces the messages of one instance.
type Pacer struct {
	o      Options
	shared shared
	local  *local
	pauses pauses
	log    *pauseLog
}

// New makes a Pacer. It does not talk to the server.
func New(o Options) *Pacer {
	return &Pacer{o: o, shared: shared{o.Runner}, local: newLocal(o.Pace), log: newPauseLog(o.Logger)}
}

func (p *Pacer) available() bool { return p.o.Available == nil || p.o.Available() }

// Reserve reserves the next message that a destination takes, unless it lies further away than maxWait. Without a pace it asks nothing:
// pauses come with the decisions of the limits. If ctx ends before Redis answers, Reserve reserves nothing: OK is false, and Wait is 0.
func (p *Pacer) Reserve(ctx context.Context, destination string, maxWait time.Duration) Reservation {
	paused := p.Paused(destination)
	if p.o.Pace.Interval > 0 && p.available() {
		if reservation, err := p.shared.reserve(ctx, destination, p.o.Pace, paused, maxWait); err == nil {
			p.local.learn(time.Now(), destination, reservation)
			return reservation
		}
		if ctx.Err() != nil { // another instance may know of a pause
			return Reservation{}
		}
	}
	return p.local.reserve(time.Now(), destination, paused, maxWait)
}

// Wait waits until a destination takes the caller's message. If the wait exceeds maxWait, Wait reserves nothing and returns the length of
// the wait. Otherwise it returns 0, and the context's error if the context ends first.
func (p *Pacer) Wait(ctx context.Context, destination string, maxWait time.Duration) (time.Duration, error) {
	for ctx.Err() == nil {
		reservation := p.Reserve(ctx, destination, maxWait)
		if ctx.Err() != nil {
			break
		}
		if !reservation.OK || reservation.Wait == 0 {
			return reservation.Wait, nil
		}
		select {
		case <-time.After(reservation.Wait):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		if p.CheckPause(ctx, destination) == 0 && ctx.Err() == nil { // another instance may have been told to wait since
			return 0, nil
		}
	}
	return 0, context.Cause(ctx)
}

// Pause has a destination take no message for d, on all instances.
func (p *Pacer) Pause(ctx context.Context, destination string, d time.Duration) {
	now := time.Now()
	p.pauses.learn(now, map[string]time.Duration{destination: d})
	p.local.pause(now, destination, d)
	p.log.pause(destination, d)
	if !p.available() {
		return
	}
	if err := p.shared.pause(ctx, destination, p.o.Pace, d); err != nil {
		p.o.Logger.Warn("other instances do not know of a pause", "destination", destination, "error", err)
	}
}

// Paused returns how long this instance knows a destination to stay paused.
func (p *Pacer) Paused(destination string) time.Duration { return p.pauses.left(destination) }

// CheckPause is how long a destination is still paused. It asks Redis, where possible: another instance may know of a newer pause.
func (p *Pacer) CheckPause(ctx context.Context, destination string) time.Duration {
	if p.available() {
		asked := time.Now()
		if paused, err := p.shared.paused(ctx, destination); err == nil {
			p.pauses.learn(asked, map[string]time.Duration{destination: paused})
			return max(paused, p.Paused(destination))
		}
	}
	return p.Paused(destination)
}

// Learn records the pauses, by destination, that Redis reported at a time.
func (p *Pacer) Learn(asked time.Time, pauses map[string]time.Duration) {
	p.pauses.learn(asked, pauses)
}

// Mention returns whether an event may mention people, and whether this is the first such answer. One event of each path may mention people
// in each duration. While Redis is unavailable, this instance decides for itself.
func (p *Pacer) Mention(ctx context.Context, path, id string, d time.Duration) (may, first bool) {
	answer := p.mention(ctx, path, id, d)
	return answer != noMention, answer == takesMention
}

func (p *Pacer) mention(ctx context.Context, path, id string, d time.Duration) mention {
	if p.available() {
		if answer, err := p.shared.mention(ctx, path, id, d); err == nil {
			if answer != noMention {
				p.local.mention(time.Now(), path, id, d)
			}
			return answer
		}
	}
	return p.local.mention(time.Now(), path, id, d)
}

// ReturnMention returns the mention of an event if the event's message certainly was not sent. Another event of the path may then mention
// people. If Redis is unavailable, the mention comes back when its time is over.
func (p *Pacer) ReturnMention(ctx context.Context, path, id string) {
	p.local.returnMention(path, id)
	if p.available() {
		_ = p.shared.returnMention(ctx, path, id)
	}
}
