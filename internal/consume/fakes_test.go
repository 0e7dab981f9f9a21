package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// callLog lists the calls of the fakes in their order.
type callLog struct {
	mu    sync.Mutex
	lines []string
	names map[string]string // of events, by their identities
}

func (j *callLog) add(format string, values ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, values...))
}

func (j *callLog) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// name stores how an event is shown.
func (j *callLog) name(e event.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.names == nil {
		j.names = make(map[string]string)
	}
	j.names[e.Identity()] = e.ShownID()
}

// shown returns the shown ID of an identity, or the ID in the identity if no name is stored.
func (j *callLog) shown(identity string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if name, known := j.names[identity]; known {
		return name
	}
	return idIn(identity)
}

// idIn returns the ID in an identity.
func idIn(identity string) string { return identity[strings.Index(identity, " ")+1:] }

// shown returns the ID of the event of a request.
func shown(r store.Request) string { return idIn(r.ID) }

func (j *callLog) count(line string) int {
	return len(slices.DeleteFunc(j.all(), func(other string) bool { return other != line }))
}

// about lists the calls about one event.
func (j *callLog) about(id string) []string {
	var lines []string
	for _, line := range j.all() {
		if what, found := strings.CutSuffix(line, " "+id); found {
			lines = append(lines, what)
		}
	}
	return lines
}

// fakeSink accepts each post by default. The destination of an event is its category by default.
type fakeSink struct {
	calls       *callLog
	send        func(ctx context.Context, e event.Event, attempt int) error   // attempt counts from 1
	update      func(ctx context.Context, receipt string) error               // nil: each succeeds
	receipt     string                                                        // of each post
	destination func(e event.Event) string                                    // nil: the category
	threads     string                                                        // the destination of an event with a message to reply to; "": as of others
	named       []string                                                      // destinations in the settings
	find        func(ctx context.Context, d sink.Doubt) (sink.Finding, error) // nil: nobody can look

	mu       sync.Mutex
	attempts map[string]int
	events   []event.Event // that Send received
	running  int
	most     int // posts at once
}

func (f *fakeSink) Send(ctx context.Context, n sink.Delivery) (receipt string, err error) {
	e := n.Event
	by, refused := sink.Begin(ctx, e.Category)
	if refused == nil && !by.IsZero() && !time.Now().Before(by) {
		refused = &sink.Error{Class: sink.Transient, Channel: e.Category, Err: errScripted}
	}
	if refused != nil {
		return "", refused
	}
	f.mu.Lock()
	f.attempts[e.ShownID()]++
	f.events = append(f.events, e)
	attempt := f.attempts[e.ShownID()]
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running--
	}()
	what := "send"
	if n.Opened != "" {
		what = "resolve " + n.Opened
	}
	f.calls.add("%s %s", what, e.ShownID())
	if f.send == nil {
		return f.receipt, nil
	}
	return f.receipt, f.send(ctx, e, attempt)
}

func (f *fakeSink) Updatable(string) bool { return true }

func (f *fakeSink) Update(ctx context.Context, d sink.Delivery, receipt string) error {
	f.calls.add("update %s %s", receipt, d.Event.ShownID())
	if f.update == nil {
		return nil
	}
	return f.update(ctx, receipt)
}

func (f *fakeSink) Destination(n sink.Delivery) string {
	f.calls.name(n.Event)
	if n.Opened != "" && f.threads != "" {
		return f.threads
	}
	if f.destination != nil {
		return f.destination(n.Event)
	}
	return n.Event.Category
}

func (f *fakeSink) Destinations() []string { return f.named }

func (f *fakeSink) Find(ctx context.Context, d sink.Doubt) (sink.Finding, error) {
	if f.find == nil {
		return sink.Finding{}, nil
	}
	f.calls.add("find %s", d.Delivery.Event.ShownID())
	return f.find(ctx, d)
}

// handed lists the events that Send received.
func (f *fakeSink) handed() []event.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

func (f *fakeSink) mostAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// unknown is the number that the fake has while a worker cannot read it.
const unknown = -1

func known(n int, err error) int {
	if err != nil {
		return unknown
	}
	return n
}

type fakeMetrics struct {
	testkit.Counts
	mu   sync.Mutex
	most int // deliveries under way at once
}

func (f *fakeMetrics) Event(category, outcome string, n int) { f.Add(outcome+" "+category, n) }
func (f *fakeMetrics) Dropped(category, level string, n int, _ string) {
	f.Add("by "+level+" "+category, n)
}
func (f *fakeMetrics) DeadLetter(reason string)       { f.Add("letter "+reason, 1) }
func (f *fakeMetrics) DeadLettersDiscarded(n int)     { f.Add("letters discarded", n) }
func (f *fakeMetrics) EventAge(time.Duration, string) { f.Add("age", 1) }
func (f *fakeMetrics) Held(_ string, delta int)       { f.Add("held", delta) }
func (f *fakeMetrics) Resolved(result string)         { f.Add("resolved "+result, 1) }
func (f *fakeMetrics) Split()                         { f.Add("split", 1) }
func (f *fakeMetrics) Delayed(category, level string) {
	f.Add("delayed", 1)
	f.Add("denied "+category+" by "+level, 1)
}
func (f *fakeMetrics) Redelivered(n int) { f.Add("redelivered", n) }

func (f *fakeMetrics) AckPending(n int, err error) { f.Set("ack pending", known(n, err)) }
func (f *fakeMetrics) RoomPending(reason string, n int, err error) {
	f.Set("in the room: "+reason, known(n, err))
}
func (f *fakeMetrics) RoomRefused(reason string, n int) { f.Add("refused by the room: "+reason, n) }
func (f *fakeMetrics) Vanished(n int)                   { f.Add("vanished", n) }
func (f *fakeMetrics) Forged(place string, n int)       { f.Add("forged "+place, n) }

func (f *fakeMetrics) InFlight(delta int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most = max(f.most, f.Add("under way", delta))
}

func (f *fakeMetrics) mostUnderWay() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// outcomes counts the events by outcome and category.
func (f *fakeMetrics) outcomes() map[string]int {
	outcomes := f.All()
	maps.DeleteFunc(outcomes, func(name string, _ int) bool {
		outcome, _, _ := strings.Cut(name, " ")
		return !journal.Result(outcome).Ends()
	})
	return outcomes
}

func (f *fakeMetrics) ended() int {
	sum := 0
	for _, n := range f.outcomes() {
		sum += n
	}
	return sum
}
