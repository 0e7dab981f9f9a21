package throttle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/lua"
)

// Pace is how fast a destination takes messages: one each interval, and a burst after a rest.
type Pace struct {
	Interval time.Duration // 0: no bound
	Burst    int           // 1 or more, where there is an interval
}

// ahead is how far a burst may run ahead of the interval.
func (p Pace) ahead() time.Duration { return time.Duration(max(p.Burst, 1)-1) * p.Interval }

// Moment is when a destination takes its next message.
type Moment struct {
	Wait     time.Duration // until then
	Reserved bool          // nobody else has it
}

// Reserve reserves the next moment of a destination for the caller, unless it lies beyond the horizon. The caller may know
// of a rest that Redis has not been told of.
func (r *Redis) Reserve(ctx context.Context, destination string, pace Pace, rest, horizon time.Duration) (Moment, error) {
	arguments := []any{destination, pace.Interval.Microseconds(), max(pace.Burst, 1), horizon.Microseconds(), rest.Microseconds()}
	reply, err := r.run(ctx, lua.Pace, []string{r.keys.calls, r.keys.pauses, r.keys.paces}, arguments)
	if err != nil {
		return Moment{}, classify("pacing deliveries", err)
	}
	numbers, err := decodeNumbers(reply, 2)
	if err != nil {
		return Moment{}, fmt.Errorf("pacing deliveries: %w: %w", ErrRefused, err)
	}
	return Moment{Wait: time.Duration(numbers[0]) * time.Microsecond, Reserved: numbers[1] == 1}, nil
}

// Rest is how long a destination still takes no messages.
func (r *Redis) Rest(ctx context.Context, destination string) (time.Duration, error) {
	moment, err := r.Reserve(ctx, destination, Pace{}, 0, 0)
	return moment.Wait, err
}

// Mention says whether an event may mention people.
type Mention int

// The answers about mentions, numbered as in mention.lua.
const (
	NoMention    Mention = iota // another event of its path has
	HasMention                  // it may, and has been told so before: an earlier message of it may have
	TakesMention                // it may, from now on
)

// Mention tells whether an event may mention people, which of a path one event may in each duration.
func (r *Redis) Mention(ctx context.Context, path, id string, d time.Duration) (Mention, error) {
	may, err := r.runInt(ctx, lua.Mention, []string{r.mentionKey(path)}, []any{id, d.Microseconds()})
	return Mention(may), classify("asking for a mention", err)
}

// ReturnMention lets another event of a path mention people, if it was this one that might. Repeating it changes nothing.
func (r *Redis) ReturnMention(ctx context.Context, path, id string) error {
	_, err := r.runInt(ctx, lua.Mention, []string{r.mentionKey(path)}, []any{id, 0})
	return classify("returning a mention", err)
}

func (r *Redis) mentionKey(path string) string { return r.keys.meter("mention:" + path) }

// Reserve reserves the next moment at which a destination takes a message, unless it lies beyond the horizon. Without Redis
// this instance paces alone. Where there is no pace nothing is asked: pauses come with decisions.
func (g *Gate) Reserve(ctx context.Context, destination string, horizon time.Duration) Moment {
	rest := g.pauses.left(destination)
	if state, _ := g.currentState(); state == answering && g.o.Pace.Interval > 0 {
		if moment, err := g.o.Redis.Reserve(ctx, destination, g.o.Pace, rest, horizon); err == nil {
			g.pacer.learn(time.Now(), destination, moment)
			return moment
		}
	}
	return g.pacer.reserve(time.Now(), destination, rest, horizon)
}

// Rest is how long a destination still takes no messages, asked anew where that is possible: another instance may have
// been told so just now.
func (g *Gate) Rest(ctx context.Context, destination string) time.Duration {
	if state, _ := g.currentState(); state == answering {
		asked := time.Now()
		if rest, err := g.o.Redis.Rest(ctx, destination); err == nil {
			g.pauses.learn(asked, map[string]time.Duration{destination: rest})
			return max(rest, g.pauses.left(destination))
		}
	}
	return g.pauses.left(destination)
}

// Resting is how long a destination still takes no messages, as far as this instance knows.
func (g *Gate) Resting(destination string) time.Duration { return g.pauses.left(destination) }

// AwaitMoment waits until a destination takes a message: for the moment that it reserves, and while the destination rests. If
// that lies beyond the horizon ok is false, and wait is how far; likewise, with 0, when the context ends.
func (g *Gate) AwaitMoment(ctx context.Context, destination string, horizon time.Duration) (wait time.Duration, ok bool) {
	for ctx.Err() == nil {
		moment := g.Reserve(ctx, destination, horizon)
		if !moment.Reserved {
			return moment.Wait, false
		}
		if moment.Wait == 0 {
			return 0, true
		}
		select {
		case <-time.After(moment.Wait):
		case <-ctx.Done():
			return 0, false
		}
		if g.Rest(ctx, destination) == 0 { // another instance may have been told to wait since
			return 0, true
		}
	}
	return 0, false
}

// Mention tells whether an event may mention people: of each path one event in each duration may. Without Redis that holds
// for this instance alone.
func (g *Gate) Mention(ctx context.Context, path, id string, d time.Duration) Mention {
	if state, _ := g.currentState(); state == answering {
		if may, err := g.o.Redis.Mention(ctx, path, id, d); err == nil {
			if may != NoMention {
				g.pacer.mention(time.Now(), path, id, d)
			}
			return may
		}
	}
	return g.pacer.mention(time.Now(), path, id, d)
}

// ReturnMention lets another event of a path mention people, if it was this one that might: for the one who took the mention
// and whose message certainly did not go out. If Redis cannot be told, the mention comes back when its time is over.
func (g *Gate) ReturnMention(ctx context.Context, path, id string) {
	g.pacer.returnMention(path, id)
	if state, _ := g.currentState(); state == answering {
		_ = g.o.Redis.ReturnMention(ctx, path, id)
	}
}

// pacer paces this instance while Redis is away.
type pacer struct {
	pace Pace

	mu       sync.Mutex
	ends     map[string]time.Time // by destination: when, at its interval, all that is reserved will be through
	mentions map[string]mentioned // by path
}

type mentioned struct {
	id    string
	until time.Time
}

func newPacer(pace Pace) *pacer {
	return &pacer{pace: pace, ends: make(map[string]time.Time), mentions: make(map[string]mentioned)}
}

// rest takes note that a destination rests: no burst follows.
func (p *pacer) rest(now time.Time, destination string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(now, destination, later(p.ends[destination], now.Add(d+p.pace.ahead())))
}

// reserve does what pace.lua does, for a destination that rests for so long.
func (p *pacer) reserve(now time.Time, destination string, rest, horizon time.Duration) Moment {
	if p.pace.Interval == 0 {
		return Moment{Wait: rest, Reserved: rest <= horizon}
	}
	if rest > 0 {
		p.rest(now, destination, rest)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.ends[destination]
	at := later(now.Add(rest), end.Add(-p.pace.ahead()))
	moment := Moment{Wait: at.Sub(now), Reserved: at.Sub(now) <= horizon}
	if moment.Reserved {
		p.set(now, destination, later(end, at).Add(p.pace.Interval))
	}
	return moment
}

// learn takes note of what Redis reserved, so that this instance goes on behind it when it is away; without a burst.
func (p *pacer) learn(now time.Time, destination string, moment Moment) {
	if p.pace.Interval == 0 || !moment.Reserved {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	end := now.Add(moment.Wait + p.pace.Interval + p.pace.ahead())
	p.set(now, destination, later(p.ends[destination], end)) // replies may come in another order than the moments
}

func (p *pacer) set(now time.Time, destination string, end time.Time) {
	if len(p.ends) >= maxPauses {
		for name, until := range p.ends {
			if !until.After(now) {
				delete(p.ends, name)
			}
		}
		if len(p.ends) >= maxPauses {
			clear(p.ends)
		}
	}
	p.ends[destination] = end
}

func (p *pacer) mention(now time.Time, path, id string, d time.Duration) Mention {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, known := p.mentions[path]; known && now.Before(last.until) {
		if last.id == id {
			return HasMention
		}
		return NoMention
	}
	if len(p.mentions) >= maxPauses {
		clear(p.mentions)
	}
	p.mentions[path] = mentioned{id: id, until: now.Add(d)}
	return TakesMention
}

func (p *pacer) returnMention(path, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mentions[path].id == id {
		delete(p.mentions, path)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
