package stay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/delayed"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Recounter ends the stays of events that the room does not have, and makes message schedules due that the server has forgotten.
//
// A stay outlives its event if the worker that ends the event dies or loses Redis before it ends the stay, or if the room loses the event: an
// operator purges the stream, or power fails. Such a stay takes the place of another event. If its event waited for a slot, later events wait
// behind it.
//
// The recounter compares the stays of a first level with the messages of the room if events of this first level wait for slots or were
// refused. One worker of the deployment does so at a time. An event has its stay before the room has the event, so a stay ends only if its event is
// missing in two looks.
//
// For forgotten schedules, see [delayed.Store.AdvanceOverdue]. The recounter looks for them after each start and reconnect.
type Recounter struct {
	Between time.Duration // the two looks
	Overdue time.Duration // how late a forgotten schedule is

	waits     Waits
	logger    *slog.Logger
	counting  *oplog.Condition // of stays
	advancing *oplog.Condition // of forgotten schedules

	mu     sync.Mutex
	firsts map[string]bool // the first levels to recount
}

const (
	// recountEvery is how often a worker recounts, unless another worker has recounted within recountedFor.
	recountEvery = 10 * time.Minute
	recountedFor = recountEvery / 2

	// lookAgainAfter is longer than an event is on its way to the room while NATS works.
	lookAgainAfter = time.Minute

	// overdueAfter is how late a schedule is that the server has forgotten. A server that works makes a schedule due within seconds.
	overdueAfter = time.Minute

	// lookedFor is shorter than overdueAfter: a look does not count for an outage that began after it.
	lookedFor = overdueAfter / 2

	// mostRecounted bounds the first levels of a recount.
	mostRecounted = 1000
)

// NewRecounter returns a Recounter that does not run yet.
func NewRecounter(waits Waits, logger *slog.Logger) *Recounter {
	return &Recounter{
		waits: waits, logger: logger, Between: lookAgainAfter, Overdue: overdueAfter,
		counting:  oplog.NewCondition(logger, "cannot recount the events that wait", "recounting the events that wait again"),
		advancing: oplog.NewCondition(logger, "cannot make forgotten message schedules due", "making forgotten message schedules due again"),
		firsts:    make(map[string]bool),
	}
}

// WatchedRoom is a [Room] that reports the first level of each refused event. It is not the recounter itself: in an interface, the linker would
// keep every method of the recounter's fields, since templates call methods by name.
type WatchedRoom struct {
	Room
	Refused func(first string)
}

// EnterRoom implements [Room].
func (r WatchedRoom) EnterRoom(ctx context.Context, stays []store.Stay) (mayStay []bool, err error) {
	mayStay, err = r.Room.EnterRoom(ctx, stays)
	for i, stay := range stays {
		if err == nil && !mayStay[i] {
			first, _, _ := strings.Cut(stay.First, " ") // without the name of a share
			r.Refused(first)
		}
	}
	return mayStay, err
}

// Add has a first level recounted.
func (r *Recounter) Add(first string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.firsts) < mostRecounted {
		r.firsts[first] = true
	}
}

// Run recounts every now and then until the context ends.
func (r *Recounter) Run(ctx context.Context) {
	for await.For(ctx, recountEvery*3/4+rand.N(recountEvery/2)) { //nolint:gosec // no secret depends on it
		if err := r.Recount(ctx); ctx.Err() == nil {
			r.counting.Note(err)
		}
	}
}

// KeepAdvancing makes forgotten schedules due after the start and each reconnect, when they are late, until the context ends.
func (r *Recounter) KeepAdvancing(ctx context.Context) {
	for {
		present := r.waits.Streams.Connection.UntilReconnect()
		for isDone := false; !isDone && present.Err() == nil; {
			if !await.For(ctx, r.Overdue) {
				return
			}
			err := r.waits.Streams.Connection.Request(ctx, r.advanceOverdue)
			if isDone = err == nil; ctx.Err() == nil && !errors.Is(err, nats.ErrDisconnected) {
				r.advancing.Note(err)
			}
		}
		if !await.Ready(ctx, present.Done()) {
			return
		}
	}
}

// advanceOverdue makes forgotten schedules due, unless another worker does.
func (r *Recounter) advanceOverdue(ctx context.Context) error {
	claimed, err := r.waits.Room.Claim(ctx, store.Overdue, lookedFor)
	if err != nil || !claimed {
		return err
	}
	advanced, err := r.waits.store().AdvanceOverdue(ctx, r.waits.Streams.Clock.Now().Add(-r.Overdue))
	if advanced > 0 {
		r.logger.Warn("made message schedules due that the server had forgotten", "schedules", advanced)
	}
	return err
}

// Recount ends the stays of events that the room has lost, unless another worker does. Events that waited behind them are planned anew.
func (r *Recounter) Recount(ctx context.Context) error {
	r.mu.Lock()
	isIdle := len(r.firsts) == 0
	r.mu.Unlock()
	if isIdle {
		return nil
	}
	claimed, err := r.waits.Room.Claim(ctx, store.Recount, recountedFor)
	if err != nil || !claimed {
		return err
	}
	r.mu.Lock()
	firsts := r.firsts
	r.firsts = make(map[string]bool)
	r.mu.Unlock()

	missing, err := r.missing(ctx, firsts)
	if err != nil || len(missing) == 0 || !await.For(ctx, r.Between) {
		return err
	}
	again, err := r.missing(ctx, firsts)
	if err != nil {
		return err
	}
	var lost []store.Stay
	behind := make(map[string]bool)
	for stay, end := range again {
		if missing[stay].Equal(end) {
			lost = append(lost, stay)
			behind[stay.First] = true
		}
	}
	if len(lost) == 0 {
		return nil
	}
	for batch := range slices.Chunk(lost, store.MaxBatch) {
		if err := r.waits.Room.LeaveRoom(ctx, batch); err != nil {
			return err
		}
	}
	r.logger.Warn("waiting events were counted that the room does not have", "places", len(lost))
	return r.waits.Advance(ctx, func(e delayed.Event) bool { return behind[event.FirstLevel(e.Category)] })
}

// missing returns the stays of first levels whose events the room does not have, and their ends.
func (r *Recounter) missing(ctx context.Context, firsts map[string]bool) (map[store.Stay]time.Time, error) {
	stays := make(map[store.Stay]time.Time)
	for first := range firsts {
		for _, share := range sharesOf(first) {
			found, err := r.waits.Room.Stays(ctx, share)
			if err != nil {
				return nil, err
			}
			maps.Copy(stays, found)
		}
	}
	if len(stays) == 0 {
		return nil, nil
	}
	began := r.waits.Streams.Clock.Latest()
	for m, err := range streamscan.From(ctx, r.waits.Streams.Layout().Room.Stream, r.waits.Streams.Names.Room().All(), 1) {
		if err != nil {
			return nil, fmt.Errorf("counting the events that wait: %w", err)
		}
		if m.Time.After(began) {
			break
		}
		for _, unit := range r.unitsOf(m, firsts) {
			delete(stays, unit)
		}
	}
	return stays, nil
}

// unitsOf returns the stays of a worker's message of one of the first levels, one for each place. Any other message has none.
func (r *Recounter) unitsOf(m *jetstream.RawStreamMsg, firsts map[string]bool) []store.Stay {
	first := r.waits.Streams.Names.Room().First(m.Subject)
	entry, err := room.Read(m.Header, m.Time)
	if !firsts[first] || err != nil {
		return nil
	}
	size := room.Kept(m.Header, m.Data)
	if entry.Reason != room.Slot {
		return Of(first, entry, size, 0).Units()
	}
	decoded, _ := r.waits.Decoder.Decode(entry.Published(event.Headers(m.Header), m.Data)) // even a faulty event has its ID
	return OfSlot(decoded.Identity(), decoded.Category, entry, size, 0).Units()
}
