// Package lane queues the deliveries of this process, for each channel apart, so a slow channel does not delay other channels.
//
// It owns the order of a channel's deliveries in this process, the number of its concurrent posts, the pauses that this process knows, and
// whether the room may hold events for the channel. A [Pacer] decides when a channel takes its next post from any process. The package
// knows nothing of events, leases or streams: it returns how long a delivery has to wait, and the caller decides where.
//
// A delivery enters its channel's lane and gets a [Place]. Two turns lead to its post: first it reserves the time of the post, then it begins
// the post. Where channels are paced, each of these turns belongs to one place at a time, in the order in which the places joined.
// Elsewhere a lane has no order, and no bound unless its channel stalls.
//
// All methods may be called concurrently; the methods of one [Place] belong to one goroutine. Nothing here fails: a wait ends with its
// context.
package lane

import (
	"context"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/pacing"
)

const (
	// MemoryWait is how long a fresh event may wait in this process for a paused channel. If it has to wait longer, it waits in the room.
	MemoryWait = 5 * time.Second
	// FreshWait is how far ahead a fresh event reserves its post. Moving an event from a lane to the room would put it behind later events
	// that went there directly, so the event moves only if the pause is very long.
	FreshWait = 5 * time.Minute
	// QueuedWait is how far ahead an event from its channel's queue in the room reserves its post.
	QueuedWait = 10 * time.Minute
)

// Bounds of the deliveries in a paced lane: what its channel takes in laneTime.
const (
	laneTime    = 8 * time.Second
	LeastPlaces = 8 // places of the slowest channel
	mostPlaces  = 256
	MostBytes   = 1 << 20                // bytes of the messages in a lane, paced or not
	postTime    = 250 * time.Millisecond // typical duration of a post; a channel with a shorter pace has several posts at once
)

// StallTime is how long no post to a channel ends, while LeastPlaces deliveries wait, until the channel counts as stalled.
const StallTime = 2 * time.Second

// A post that is later than late is spaced from the previous post again: posts that all missed their times would go out at once, in any order.
const late = 100 * time.Millisecond

// Pacer decides when a channel takes a post: [pacing.Pacer]. Its methods may be called concurrently.
type Pacer interface {
	// Reserve asks for the next post. If nothing is reserved, the caller asks again after the wait or gives up.
	Reserve(ctx context.Context, ask pacing.Ask) pacing.Reservation

	// Pause stops posts to a channel on all instances, since Slack limited a post to it. PauseRefusing stops them since the channel refuses
	// messages. Paused returns the rest of a pause that this instance knows. CheckPause looks it up.
	Pause(ctx context.Context, channel string, d time.Duration)
	PauseRefusing(ctx context.Context, channel string, d time.Duration)
	Paused(channel string) time.Duration
	CheckPause(ctx context.Context, channel string) time.Duration
}

// Options configure [New].
type Options struct {
	Pacer       Pacer
	Pace        time.Duration                   // minimum time between two posts to a channel; deliveries then keep their order; 0: none
	Concurrency int                             // concurrent posts to a channel
	Poll        time.Duration                   // how long a request for the events of a channel's queue in the room may stay open
	Held        func(channel string, delta int) // counts the deliveries that wait in this process
}

// Lanes are the lanes of all channels. If a lane is full, events wait in the room, and so do later events for the channel, to keep the order.
type Lanes struct {
	o        Options
	paced    bool
	capacity int // places in a paced lane
	width    int // posts to one channel at once

	mu        sync.Mutex
	byChannel map[string]*lane
}

// lane is the state of one channel. The lock of Lanes guards it.
type lane struct {
	places      int           // deliveries, without extras
	extras      int           // fresh critical deliveries of a paced lane, which take no place of the others
	bytes       int           // bytes of the messages of all deliveries
	left        time.Time     // when a delivery last left or entered the empty lane
	permits     chan struct{} // has an element for each delivery that may post
	reserving   turns         // a turn ends when its delivery has reserved its post or left
	posting     turns         // a turn ends when its delivery has begun its post or left
	began       time.Time     // when the latest post began
	backlog     bool          // the room may hold events for the channel
	storing     int           // events on their way to the room
	calm        bool          // no event was on its way to the room since the queue there was last read
	pausedUntil time.Time     // end of the pause that this process last noted
	refusals    int           // reservations that were refused
	readAt      int           // refusals when the queue in the room was last read
	fetching    chan struct{} // closed when the open request for the queue in the room ends; nil: no request is open
	changed     chan struct{} // closed and replaced when a delivery leaves
}

// New returns lanes without deliveries.
func New(o Options) *Lanes {
	l := &Lanes{o: o, paced: o.Pace > 0, width: o.Concurrency, capacity: mostPlaces, byChannel: make(map[string]*lane)}
	if l.paced {
		l.capacity = int(min(max(laneTime/o.Pace, LeastPlaces), mostPlaces))
		l.width = int(min(max(postTime/o.Pace, 1), time.Duration(o.Concurrency)))
	}
	return l
}

// Ordered reports whether lanes keep the order of their deliveries.
func (l *Lanes) Ordered() bool { return l.paced }

// of returns the lane of a channel. The caller holds the lock.
func (l *Lanes) of(channel string) *lane {
	own := l.byChannel[channel]
	if own == nil {
		own = &lane{permits: make(chan struct{}, l.width), changed: make(chan struct{})}
		l.byChannel[channel] = own
	}
	return own
}

// Delivery is what enters a lane.
type Delivery struct {
	Channel  string
	Size     int       // bytes of the message
	Queued   bool      // it comes from the channel's queue in the room; otherwise it is fresh
	Again    bool      // it has had a place before, and need not go to the room
	Since    time.Time // when the event was stored
	Critical bool      // it goes before other deliveries
}

// overdueTime is how long an ordinary delivery lets critical ones go before it.
const overdueTime = time.Minute

// urgency returns the delivery's urgency as it is now. Nothing goes before an overdue delivery.
func (d Delivery) urgency() pacing.Urgency {
	switch {
	case time.Since(d.Since) >= overdueTime:
		return pacing.Overdue
	case d.Critical:
		return pacing.Critical
	}
	return pacing.Ordinary
}

// Enter puts a delivery at the end of its channel's lane. It returns nil if a fresh event has to go to the room: the lane is full, the
// channel is paused for long or, if channels are paced, the room holds earlier events.
func (l *Lanes) Enter(d Delivery) *Place {
	if !d.Queued && l.Paused(d.Channel) > MemoryWait {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of(d.Channel)
	if !d.Queued && l.staysOut(d, own) {
		own.backlog = true
		return nil
	}
	own.bytes += d.Size
	p := &Place{lanes: l, lane: own, delivery: d, refusals: own.refusals, count: &own.places}
	if l.paced && d.Critical && !d.Queued {
		p.count = &own.extras
	}
	if *p.count++; own.places+own.extras == 1 {
		own.left = time.Now()
	}
	if d.Queued { // the delivery is behind a refusal since its request, even if it enters later
		p.refusals = own.readAt
	}
	if l.paced {
		p.reserving = own.reserving.join(d)
	}
	return p
}

// staysOut reports whether a fresh delivery has to go to the room. An unpaced lane is full only while its channel stalls. A paced lane holds what
// its channel takes soon, and as many critical deliveries again, which need not wait behind the events of the room. The caller holds the lock.
func (l *Lanes) staysOut(d Delivery, own *lane) bool {
	switch {
	case d.Again:
		return false
	case own.bytes >= MostBytes:
		return true
	case !l.paced:
		return own.places >= LeastPlaces && time.Since(own.left) > StallTime
	case d.Critical:
		return own.extras >= l.capacity
	}
	return own.backlog || own.places >= l.capacity
}

// AwaitFree waits until a channel's lane has free places, and returns how many deliveries may enter. The caller requests as many events from
// the channel's queue in the room, and then calls Fetched. It requests none if AwaitFree returns 0: the channel has just been paused for long.
func (l *Lanes) AwaitFree(ctx context.Context, channel string) (int, error) {
	for {
		l.mu.Lock()
		own := l.of(channel)
		free, changed := l.capacity-own.places, own.changed
		if free > 0 && time.Until(own.pausedUntil) > MemoryWait {
			l.mu.Unlock()
			return 0, nil
		}
		if free > 0 {
			own.calm, own.readAt, own.fetching = own.storing == 0, own.refusals, make(chan struct{})
			l.mu.Unlock()
			return free, nil
		}
		l.mu.Unlock()
		if !await.Ready(ctx, changed) {
			return 0, context.Cause(ctx)
		}
	}
}

// Fetched records how many events the request after AwaitFree returned. After an error, nobody knows whether the queue is empty.
func (l *Lanes) Fetched(channel string, received int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of(channel)
	if err == nil || received > 0 {
		own.backlog = received > 0 || !own.calm
	}
	close(own.fetching)
	own.fetching = nil
}

// AwaitFetched waits until no request for a channel's queue in the room is open or the context ends.
func (l *Lanes) AwaitFetched(ctx context.Context, channel string) {
	l.mu.Lock()
	fetching := l.of(channel).fetching
	l.mu.Unlock()
	if fetching != nil {
		await.Ready(ctx, fetching)
	}
}

// Store records that an event for a channel is on its way to the room, until end is called.
func (l *Lanes) Store(channel string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.of(channel)
	own.backlog, own.calm = true, false
	own.storing++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		own.storing--
	}
}

// Rest records that a channel takes no posts from this process for a time.
func (l *Lanes) Rest(channel string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(channel).pausedUntil = time.Now().Add(d)
}

// resting returns the rest of the last pause that this process noted.
func (l *Lanes) resting(channel string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.byChannel[channel]
	if own == nil {
		return 0
	}
	return max(0, time.Until(own.pausedUntil))
}

// Paused returns how long a channel is still paused. It uses only what this process knows.
func (l *Lanes) Paused(channel string) time.Duration {
	return max(l.o.Pacer.Paused(channel), l.resting(channel))
}

// Pause stops posts to a channel for d, on all instances, since Slack limited a post to it.
func (l *Lanes) Pause(ctx context.Context, channel string, d time.Duration) {
	l.o.Pacer.Pause(ctx, channel, d)
}

// PauseRefusing stops posts to a channel for d, on all instances, since the channel refuses messages.
func (l *Lanes) PauseRefusing(ctx context.Context, channel string, d time.Duration) {
	l.o.Pacer.PauseRefusing(ctx, channel, d)
}

// Busy reports whether a channel is paused, or events wait for it in this process or in the room.
func (l *Lanes) Busy(channel string) bool {
	l.mu.Lock()
	own := l.byChannel[channel]
	waits := own != nil && (own.places+own.extras > 0 || own.backlog)
	l.mu.Unlock()
	return waits || l.Paused(channel) > 0
}
