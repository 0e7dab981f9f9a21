package consume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/failpoint"
)

// headerDeadline is until when an event may wait for a slot, in milliseconds since 1970.
const headerDeadline = "Notifier-Deadline"

// Headers that make the server store a message for later, as its protocol spells them.
const (
	headerSchedule       = "Nats-Schedule"
	headerScheduleTarget = "Nats-Schedule-Target"
)

// ErrNoSchedules means that events are to wait for slots, and that the server or the stream has no message schedules.
var ErrNoSchedules = errors.New("events cannot wait for a slot")

// refusedFor is how long a category's events are dropped without asking after one of them was not to wait.
const refusedFor = time.Second

// refusals are the categories of which no more events may wait now.
type refusals struct {
	mu  sync.Mutex
	all map[string]refusal
}

type refusal struct {
	until   time.Time
	crowded bool // because too many others wait
}

// mostRefusals bounds the categories that are remembered.
const mostRefusals = 10_000

func (r *refusals) note(category string, crowded bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || len(r.all) >= mostRefusals {
		r.all = make(map[string]refusal)
	}
	r.all[category] = refusal{time.Now().Add(refusedFor), crowded}
}

// find returns what holds for a category, if anything does.
func (r *refusals) find(category string) (found refusal, holds bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, known := r.all[category]
	return found, known && time.Now().Before(found.until)
}

func (r *refusals) hold(category string) bool {
	_, holds := r.find(category)
	return holds
}

// crowded tells whether events of a category are dropped because too many others wait.
func (r *refusals) crowded(category string) bool {
	found, holds := r.find(category)
	return holds && found.crowded
}

// line has delays planned one after the other, in the order in which their events were judged: so they come back in it.
type line struct{ last <-chan struct{} }

// join is for the goroutine that decides. Whoever is in line waits for the one before, if any, and then has to leave.
func (l *line) join() (before <-chan struct{}, leave func()) {
	left := make(chan struct{})
	before, l.last = l.last, left
	return before, func() { close(left) }
}

// delayInOrder joins the line and returns what is to be done then.
func (w *Worker) delayInOrder(c candidate, decision Decision) func(context.Context) {
	before, leave := w.planning.join()
	return func(ctx context.Context) {
		if before != nil {
			<-before
		}
		w.delay(ctx, c, decision, leave)
	}
}

// mayWait tells whether denied events of a category wait for a slot.
func (w *Worker) mayWait(category string) bool {
	return w.o.Delay != nil && w.o.Delay(category) > 0 && !w.refusals.hold(category)
}

// delay stores a denied event so that it comes back when its slot opens, or drops it if that is too late or too many wait. It
// calls planned as soon as that is decided.
func (w *Worker) delay(ctx context.Context, c candidate, decision Decision, planned func()) {
	deadline := c.stored.Add(w.o.Delay(c.event.Category))
	if c.waited {
		deadline = c.waitsUntil()
	}
	verdict, in, err := w.throttle.Delay(ctx, c.ask(), decision, time.Until(deadline))
	planned()
	switch {
	case err != nil:
		w.giveBack(c.message, jitter(unjudged))
	case verdict == ComeBack:
		failpoint.Reach(failpoint.AfterPlan)
		if !w.comeBack(ctx, c, in, deadline) {
			w.settler.settle(w.dropped(c.message, decision.Level))
		}
	case verdict == Waiting:
		w.settler.settle(settlement{message: c.message, outcome: Duplicate})
	default:
		if verdict == Refuse || !c.waited { // that one's time is over says nothing about younger ones
			w.refusals.note(c.event.Category, verdict == Refuse)
		}
		w.settler.settle(w.dropped(c.message, decision.Level))
	}
}

// comeBack has the server store an event again after a time, under its subject and with its ID, and settles the message. It
// does nothing, and says so, if with that the message is larger than the server takes.
func (w *Worker) comeBack(ctx context.Context, c candidate, in time.Duration, deadline time.Time) bool {
	err := w.storeSchedule(ctx, c, time.Now().Add(in), deadline)
	if tooMuch(err) {
		return false
	}
	w.trouble.schedulesStored(err)
	if err != nil {
		w.giveBack(c.message, jitter(misconfiguredBackoff))
		return true
	}
	failpoint.Reach(failpoint.AfterSchedule)
	w.metrics.Delayed()
	w.settler.settle(settlement{message: c.message})
	return true
}

// postponeLong puts off an event for longer than a message should be given back for: it would count as pending meanwhile.
func (w *Worker) postponeLong(ctx context.Context, c candidate, wait time.Duration) {
	deadline := time.Time{}
	if c.waited {
		deadline = c.waitsUntil()
	}
	if err := w.storeSchedule(ctx, c, time.Now().Add(wait), deadline); err != nil {
		w.giveBack(c.message, wait)
		return
	}
	w.settler.settle(settlement{message: c.message})
}

// recall deals with a redelivered message whose event was to wait for a slot: the message may not have been settled after
// that was stored. It tells whether there is nothing more to do.
func (w *Worker) recall(ctx context.Context, c candidate) bool {
	if c.waited || c.lookUp || w.o.Delay == nil || w.o.Delay(c.event.Category) == 0 {
		return false
	}
	in, planned, err := w.throttle.Planned(ctx, c.ask())
	switch {
	case err != nil:
		w.giveBack(c.message, jitter(unjudged))
	case planned:
		return w.comeBack(ctx, c, in, c.stored.Add(w.o.Delay(c.event.Category)))
	default:
		return false
	}
	return true
}

// waitsUntil is until when an event that has come back may wait.
func (m *message) waitsUntil() time.Time {
	milliseconds, err := strconv.ParseInt(m.Headers().Get(headerDeadline), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(milliseconds)
}

// storeSchedule publishes an event as a message that the server stores again at a time: atomically, and once, whatever is
// restarted meanwhile. A message of one name is stored once, and one event has one subject, so that the newest schedule
// replaces those before it.
func (w *Worker) storeSchedule(ctx context.Context, c candidate, at, deadline time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	own := nats.Header{}
	own.Set(event.HeaderID, c.event.ID)
	if !deadline.IsZero() {
		own.Set(headerDeadline, strconv.FormatInt(deadline.UnixMilli(), 10))
	}
	own.Set(headerSchedule, "@at "+at.UTC().Format(time.RFC3339Nano))
	own.Set(headerScheduleTarget, c.Subject())
	name := sha256.Sum256([]byte(c.event.ID))
	message := &nats.Msg{
		Subject: w.names.delayedSubject() + "." + hex.EncodeToString(name[:16]),
		Header:  ownHeader(c.Headers(), own),
		Data:    c.Data(),
	}
	id := fmt.Sprintf("delayed-%s-%d-%d", c.stream, c.sequence, c.stored.UnixMilli())
	if _, err := w.js.PublishMsg(ctx, message, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("storing an event for later: %w", err)
	}
	return nil
}

// delayedSubject is below which events wait for their slots.
func (n Names) delayedSubject() string { return n.Subject + "-delayed" }

// canSchedule tells what is missing for events to wait for slots.
func (n Names) canSchedule(version string, stream *jetstream.StreamInfo, consumer jetstream.ConsumerConfig) error {
	delayed := n.delayedSubject() + ".>"
	matchesOne := func(pattern string) bool { return matches(pattern, n.delayedSubject()+".0") }
	switch {
	case stream == nil: // perhaps just now
		return fmt.Errorf("stream %q cannot be asked about: it is not known whether events can wait for a slot", n.Stream)
	case stream.Config.Retention == jetstream.InterestPolicy:
		return fmt.Errorf("%w: stream %q keeps only what a consumer takes (retention interest), expected workqueue or limits",
			ErrNoSchedules, n.Stream)
	case !stream.Config.AllowMsgSchedules:
		return fmt.Errorf("%w: stream %q does not allow message schedules (allow_msg_schedules), which need nats-server 2.12 or later; this one is %s",
			ErrNoSchedules, n.Stream, version)
	case stream.Config.MaxAge > 0 && stream.Config.MaxAge < n.LongestDelay:
		return fmt.Errorf("%w: stream %q keeps messages for %v, and events may wait for %v", ErrNoSchedules, n.Stream, stream.Config.MaxAge, n.LongestDelay)
	case !slices.ContainsFunc(stream.Config.Subjects, matchesOne):
		return fmt.Errorf("%w: stream %q lacks the subject %s", ErrNoSchedules, n.Stream, delayed)
	}
	filters := consumer.FilterSubjects
	if consumer.FilterSubject != "" {
		filters = []string{consumer.FilterSubject}
	}
	if len(filters) == 0 || slices.ContainsFunc(filters, matchesOne) {
		return fmt.Errorf("%w: consumer %q takes the subject %s too; expected the filter %s",
			ErrNoSchedules, n.Consumer, delayed, strings.Join(n.subjects(), ", "))
	}
	return nil
}

// matches tells whether a subject is one of those that a pattern with wildcards stands for.
func matches(pattern, subject string) bool {
	tokens := strings.Split(subject, ".")
	for i, token := range strings.Split(pattern, ".") {
		switch {
		case i == len(tokens):
			return false
		case token == ">":
			return true
		case token != "*" && token != tokens[i]:
			return false
		}
	}
	return strings.Count(pattern, ".") == strings.Count(subject, ".")
}
