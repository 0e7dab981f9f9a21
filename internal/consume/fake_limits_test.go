package consume

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// fakeKnown knows nothing by default.
type fakeKnown struct {
	calls    *callLog
	full     func(category string) *store.Denial // nil: nothing is full
	unpaired map[string]bool                     // pairs that are known to be closed
}

func (f *fakeKnown) Full(category, _ string) *store.Denial {
	if f.full == nil {
		return nil
	}
	return f.full(category)
}

func (f *fakeKnown) KnownUnpaired(pair string, _ time.Time) bool {
	return f.unpaired[pair]
}

func (f *fakeKnown) LearnUnpaired(pair string, _ time.Time) {
	f.calls.add("learns %s", strings.ReplaceAll(pair, "\n", "/"))
}

// fakeMutes has no mute by default.
type fakeMutes struct {
	mu      sync.Mutex
	covers  string // category
	muted   store.Mutes
	past    []string // texts of past mutes of every category
	failing error    // of CheckMute

	confirmed time.Time // by when a post must begin
}

// mute mutes a category.
func (f *fakeMutes) mute(category string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mute := &limits.Mute{Path: category, Reason: "migration", By: "ann", Generation: 5, Revision: 7}
	f.covers, f.muted = category, store.Mutes{{Level: limits.LevelMute, Path: category, Mute: &store.Mute{Mute: mute, Text: mute.Text()}}}
}

func (f *fakeMutes) KnownMutes(category string) store.Mutes {
	f.mu.Lock()
	defer f.mu.Unlock()
	if category != f.covers {
		return nil
	}
	return f.muted
}

func (f *fakeMutes) UnreportedMutes(string) []string { return f.past }

func (f *fakeMutes) Muted(category string, severity event.Severity) *store.Denial {
	return f.KnownMutes(category).Of(severity)
}

func (f *fakeMutes) CheckMute(_ context.Context, category string, severity event.Severity) (by time.Time, err error) {
	f.mu.Lock()
	err = f.failing
	f.mu.Unlock()
	if err == nil && f.Muted(category, severity) != nil {
		err = errors.New("muted")
	}
	return f.confirmed, err
}

// confirm has CheckMute answer from now on.
func (f *fakeMutes) confirm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = nil
}

// fakePacer takes each post at once, or after the pause of its channel, by default.
type fakePacer struct {
	calls       *callLog
	reserve     func(destination string, maxWait time.Duration) post // nil: the default
	beginUpdate func(u pacing.Update) pacing.Reservation             // nil: the default

	mu     sync.Mutex
	paused map[string]time.Time
	pauses map[string]time.Duration // the last argument of Pause
	causes map[string]string        // the last method that paused: "limited" or "refuses"
}

func (f *fakePacer) Pause(_ context.Context, destination string, d time.Duration) {
	f.pauseFor(destination, "limited", d)
}

func (f *fakePacer) PauseRefusing(_ context.Context, destination string, d time.Duration) {
	f.pauseFor(destination, "refuses", d)
}

func (f *fakePacer) pauseFor(destination, why string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused[destination] = time.Now().Add(d)
	f.pauses[destination], f.causes[destination] = d, why
}

func (f *fakePacer) pause(destination string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, time.Until(f.paused[destination]))
}

// post is the answer to a reservation.
type post struct {
	wait    time.Duration
	tooLate bool // the wait exceeds maxWait
}

func (f *fakePacer) Reserve(_ context.Context, ask pacing.Ask) pacing.Reservation {
	next := post{wait: f.pause(ask.Channel)}
	next.tooLate = next.wait > ask.MaxWait
	if f.reserve != nil {
		next = f.reserve(ask.Channel, ask.MaxWait)
	}
	expected := next.wait
	if next.tooLate {
		expected = max(expected, ask.MaxWait+1)
	}
	return pacing.Reservation{OK: !next.tooLate, Wait: next.wait, Expected: expected}
}

// BeginUpdate begins each update that is not paused, unless the test answers.
func (f *fakePacer) BeginUpdate(_ context.Context, u pacing.Update) pacing.Reservation {
	if f.beginUpdate != nil {
		return f.beginUpdate(u)
	}
	wait := f.pause(updates)
	return pacing.Reservation{OK: wait <= u.Within, Wait: wait, Expected: wait}
}

func (f *fakePacer) Updated(_ context.Context, message string, order int64) {
	f.calls.add("updated %d %s", order, message)
}

func (f *fakePacer) PauseUpdates(ctx context.Context, d time.Duration) { f.Pause(ctx, updates, d) }

// updates stands for the updates among the channels.
const updates = "updates"

func (f *fakePacer) Paused(destination string) time.Duration { return f.pause(destination) }

func (f *fakePacer) CheckPause(_ context.Context, destination string) time.Duration {
	return f.pause(destination)
}

// fakeRoom lets each event stay by default.
type fakeRoom struct {
	enter      func(stay store.Stay) bool // nil: each may stay
	enterFails error

	mu         sync.Mutex
	entered    map[string]store.Stay // present stays, by category and member
	mostInRoom int                   // stays at once
	claim      bool                  // whether this worker may have a task
	moving     string                // the member whose end is later at each look
}

func (f *fakeRoom) EnterRoom(_ context.Context, stays []store.Stay) ([]bool, error) {
	if f.enterFails != nil {
		return nil, f.enterFails
	}
	mayStay := make([]bool, len(stays))
	for i, stay := range stays {
		if mayStay[i] = f.enter == nil || f.enter(stay); mayStay[i] {
			f.mu.Lock()
			f.entered[stay.First+" "+stay.Member] = stay
			f.mostInRoom = max(f.mostInRoom, len(f.entered))
			f.mu.Unlock()
		}
	}
	return mayStay, nil
}

func (f *fakeRoom) LeaveRoom(_ context.Context, stays []store.Stay) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stay := range stays {
		name := stay.First + " " + stay.Member
		if f.entered[name].Weight <= stay.Weight { // otherwise a part of the weight stays
			delete(f.entered, name)
		}
	}
	return nil
}

// Stays has the time of each stay as its end.
func (f *fakeRoom) Stays(_ context.Context, first string) (map[store.Stay]time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ends := make(map[store.Stay]time.Time)
	for _, stay := range f.entered {
		for _, unit := range stay.Units() {
			end := time.Unix(0, 0).Add(unit.For)
			if stay.Member == f.moving {
				end = time.Now()
			}
			if unit.For = 0; stay.First == first {
				ends[unit] = end
			}
		}
	}
	return ends, f.enterFails
}

func (f *fakeRoom) Claim(context.Context, store.Task, time.Duration) (bool, error) {
	return f.claim, nil
}

// inRoom lists the present stays.
func (f *fakeRoom) inRoom() []store.Stay {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.entered))
}

// fakePositions finds that nothing has vanished by default.
type fakePositions struct {
	passed func(at position) (int64, error) // nil: nothing has vanished

	mu        sync.Mutex
	positions []position // arguments of Passed
}

// position is the progress of a consumer.
type position struct {
	consumer             string
	sequence, deliveries uint64
}

func (f *fakePositions) Passed(_ context.Context, consumer string, sequence, deliveries uint64) (int64, error) {
	at := position{consumer, sequence, deliveries}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.positions = append(f.positions, at)
	if f.passed == nil {
		return 0, nil
	}
	return f.passed(at)
}
