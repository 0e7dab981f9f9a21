package update

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/consume/stay"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/expiring"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Folds are what a worker asks about messages into which events are folded: [store.Pairs]. Its methods may be called concurrently.
type Folds interface {
	// Uncounted lists for each request the messages of its pair that do not show all events that are folded into them.
	Uncounted(ctx context.Context, requests []store.Request) ([][]store.Uncounted, error)

	// BeginCount returns what a message is to show from now on, or how long it may not be updated; nil if the pair no longer has the message.
	BeginCount(ctx context.Context, request store.Request, receipt string) (*store.Count, time.Duration, error)

	// GiveUp gives up a message of the request's pair that cannot be updated: no further event is folded into it.
	GiveUp(ctx context.Context, request store.Request, receipt string) error
}

// FoldSettler settles folded events once the room has the updates that show them. Its methods may be called concurrently.
type FoldSettler struct {
	folds   Folds
	Updater *Updater
	settler *outcome.Settler
	pool    *stage.Pool
	shows   bool // messages show what is folded into them
	failing *oplog.Condition

	// coming has the receipts of messages that will be updated, while an event that is folded now is certainly shown by that update.
	coming *expiring.Map[string, struct{}]
	// reports has the pairs whose reports are in the room or will be stored there, while this is certain.
	reports *expiring.Map[string, struct{}]
}

const (
	// mostComing bounds the remembered messages and pairs.
	mostComing = 10_000
	// comingEarly is how much earlier than planned an update may read the count that it shows.
	comingEarly = 5 * time.Second
)

// NewFoldSettler returns the settler of folded events, which stores their updates through an updater.
func NewFoldSettler(updater *Updater) *FoldSettler {
	return &FoldSettler{
		folds: updater.states.Folds, Updater: updater, settler: updater.settler, pool: updater.pool, shows: updater.states.showsFolds,
		coming: expiring.New[string, struct{}](mostComing, time.Now), reports: expiring.New[string, struct{}](mostComing, time.Now),
		failing: oplog.NewCondition(updater.log.Logger, "cannot plan updates for repeated events", "planning updates for repeated events again"),
	}
}

// FoldedEvent is an event that was folded.
type FoldedEvent struct {
	received.Candidate
	Request store.Request
	End     outcome.Settlement
}

// Settle settles folded events, each of which holds an element of the pool. Before that it stores the updates of their messages in the room.
// If that fails, the events come back and find what they were folded into. If the room has no place for an update, one event of the message
// comes back.
func (f *FoldSettler) Settle(l stage.Life, folded []FoldedEvent) {
	defer f.pool.Hold(len(folded)).WhileRoomAnswers()()
	comeBack := make(map[*received.Message]time.Duration)
	err := f.report(l.Ending(), folded, comeBack)
	if f.shows && err == nil {
		err = f.show(l.Ending(), folded, comeBack)
	}
	f.failing.Note(err)
	var settled []outcome.Settlement
	for _, one := range folded {
		in, again := comeBack[one.Message]
		switch {
		case again: // no earlier, even after an error: see comesBack
			f.settler.Nak(one.Message, in)
		case err != nil:
			f.settler.Nak(one.Message, stage.Jitter(stage.UndecidedDelay))
		default:
			settled = append(settled, one.End)
		}
	}
	if len(settled) > 0 {
		failpoint.Reach(failpoint.AfterKeep)
	}
	f.settler.Settle(settled...)
}

// comesBack lets an event come back that found no place in the room for an update or a report. It returns until when the event is certainly
// not decided again: what is folded before then is in the update or the report that the event stores later.
func comesBack(one FoldedEvent, comeBack map[*received.Message]time.Duration) (until time.Time) {
	if comeBack[one.Message] == 0 {
		comeBack[one.Message] = stage.Jitter(stage.MisconfiguredBackoff)
	}
	return time.Now().Add(min(comeBack[one.Message], one.Lease.Left()))
}

// show stores the updates that show folded events, unless they are stored already. It adds the events that come back to comeBack.
func (f *FoldSettler) show(ctx context.Context, folded []FoldedEvent, comeBack map[*received.Message]time.Duration) error {
	var events []FoldedEvent // one for each pair
	var requests []store.Request
	known := make(map[string]bool)
	for _, one := range folded {
		if !known[one.Request.Pair] {
			known[one.Request.Pair] = true
			events, requests = append(events, one), append(requests, one.Request)
		}
	}
	asked := time.Now()
	uncounted, err := f.folds.Uncounted(ctx, requests)
	if err != nil {
		return err
	}
	for i, messages := range uncounted {
		for _, m := range messages {
			if _, isComing := f.coming.Get(m.Receipt); isComing {
				continue
			}
			err := f.Updater.keep(ctx, events[i].Message, events[i].Event, change{receipt: m.Receipt, order: CountedOrder(m.Folded, false), in: m.Wait})
			switch {
			case errors.Is(err, errNoPlace):
				f.coming.Put(m.Receipt, struct{}{}, comesBack(events[i], comeBack))
			case messagesize.IsTooLarge(err): // the update that another event stores shows this one too
			case err != nil:
				return err
			case m.Wait > comingEarly:
				f.coming.Put(m.Receipt, struct{}{}, asked.Add(m.Wait-comingEarly))
			}
		}
	}
	return nil
}

func seenOf(count store.Count) sink.Seen {
	if count.Folded == 0 {
		return sink.Seen{Flapping: count.Flapping, Fires: count.Fires}
	}
	return sink.Seen{
		Times: 1 + count.Folded, Last: count.Last, Worst: event.SeverityOf(count.Severity), Flapping: count.Flapping, Fires: count.Fires,
	}
}

// countText writes a count for an entry of the room; countOf reads it.
func countText(count store.Count) string {
	if count.Folded == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d %d", count.Folded, count.Last.UnixMicro(), count.Severity)
}

func countOf(text string) (count store.Count) {
	var last int64
	if n, _ := fmt.Sscan(text, &count.Folded, &last, &count.Severity); n != 3 {
		return store.Count{}
	}
	count.Last = time.UnixMicro(last).UTC()
	return count
}

// countedIn names the pair whose messages count the repeats of an event.
func countedIn(e event.Event) store.Request {
	return store.Request{Category: e.Category, Pair: e.Keyed()}
}

// count begins an update that shows what is folded into a message. ok is false if it is not made now, and m is ended.
func (u *Updater) count(l stage.Life, m *received.Message, e event.Event) (seen sink.Seen, ok bool) {
	count, wait, err := u.states.BeginCount(l.Working, countedIn(e), m.Entry.Receipt)
	switch {
	case err != nil:
		u.wait(l, m, e, stage.Jitter(updateBackoff))
	case count == nil: // the event that resolved the message shows its count
		u.settler.Settle(outcome.Settlement{Message: m})
	case wait > 0:
		u.wait(l, m, e, wait)
	default:
		return seenOf(*count), true
	}
	return sink.Seen{}, false
}

// A flapping key has one entry in the room, which comes back when the key may be steady. If the key has changed meanwhile, the entry goes back
// to the room. Otherwise it becomes the report that the key is steady: a delivery like that of a resolved event, in the thread of the key's
// message. A report is no event, and has no outcome.

// BecomeReport turns the event of an entry into the report that its key is steady.
func BecomeReport(e *event.Event, entry room.Entry, decision *store.Decision) {
	since := store.Change(entry.Steady).At()
	e.Status, e.Time, e.Fields = event.StatusResolved, since, nil
	if len(decision.Resolved) > 0 && decision.Resolved[0].Count.StaysOpen {
		e.Status = event.StatusFiring
	}
	if e.Title != "" {
		e.Text = e.Title
	}
	e.Title = fmt.Sprintf("steady since %s: %s", since.Format("15:04 UTC"), e.Status)
}

// KeepReport stores the entry of a flapping key in the room, unless the room has one. The entry comes back when the key has not changed since
// a change. Its age counts from then. It returns when the room's entry comes back, by the server's clock. After an error nothing is known to be
// stored.
func (u *Updater) KeepReport(ctx context.Context, m *received.Message, e event.Event, since store.Change) (due time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	entry, first := m.EntryFor(e, room.Steady), u.reader.FirstLevel(m, e)
	now := u.streams.Clock.Latest()
	if due = since.At().Add(u.states.steadyAfter); due.Before(now) {
		due = now
	}
	entry.Steady, entry.Since, entry.Order = int64(since), due.Truncate(time.Millisecond), room.Order{}
	entry.Attempted = time.Time{}
	place := stay.Of(first, entry, room.Kept(m.Header, m.Data), due.Sub(now)+outcome.StayIn)
	subject, target := u.streams.Names.Room().Schedule(room.Steady, first, e.Keyed())
	before, err := u.stored(ctx, subject)
	stores := err == nil && before.entry.Steady == 0
	if stores {
		report := entry.Message(subject, m.Header, m.Data)
		room.ScheduleAt(report, target, due)
		before, err = u.storeReport(ctx, report, place)
	}
	if err == nil && before.entry.Steady > 0 {
		due = before.due
		if own := stay.Of(first, before.entry, 0, 0).Member == place.Member; !own && (stores || m.Entry.IsReport()) {
			u.settler.Stays.Leave(place)
		}
	}
	if !errors.Is(err, errNoPlace) && !messagesize.IsTooLarge(err) {
		u.log.storing.Note(err)
	}
	return due, err
}

// storeReport stores a report if the room has a place for it, and no report of the key yet. It returns the room's entry before.
func (u *Updater) storeReport(ctx context.Context, report *nats.Msg, place store.Stay) (before storedUpdate, err error) {
	mayStay, err := u.room.EnterRoom(ctx, []store.Stay{place})
	switch {
	case err != nil:
	case mayStay[0]:
		before, err = u.replace(ctx, report.Subject, func(before storedUpdate) *nats.Msg {
			if before.entry.Steady > 0 {
				return nil
			}
			return report
		})
		if messagesize.IsTooLarge(err) {
			u.settler.Stays.Leave(place)
		}
	default:
		err = errNoPlace
	}
	if errors.Is(err, errNoPlace) || messagesize.IsTooLarge(err) {
		u.metrics.RoomRefused(string(room.Steady), 1)
	}
	return before, err
}

// ReportAgain returns the entry of a key that has changed again to the room.
func (u *Updater) ReportAgain(l stage.Life, c received.Candidate, since store.Change) {
	if _, err := u.KeepReport(l.Ending(), c.Message, c.Event, since); err != nil {
		u.settler.Nak(c.Message, stage.Jitter(stage.UndecidedDelay))
		return
	}
	u.settler.Settle(outcome.Settlement{Message: c.Message, GoesOn: true})
}

// report stores the reports about the flapping keys of folded events, unless the room has them. It adds to comeBack the events that come back.
func (f *FoldSettler) report(ctx context.Context, folded []FoldedEvent, comeBack map[*received.Message]time.Duration) error {
	for _, one := range folded {
		if _, isComing := f.reports.Get(one.Request.Pair); isComing || !one.End.Fold.Flaps {
			continue
		}
		due, err := f.Updater.KeepReport(ctx, one.Message, one.Event, one.Request.Change())
		switch {
		case errors.Is(err, errNoPlace):
			f.reports.Put(one.Request.Pair, struct{}{}, comesBack(one, comeBack))
		case messagesize.IsTooLarge(err): // another change stores the report
		case err != nil:
			return err
		default:
			f.reports.Put(one.Request.Pair, struct{}{}, time.Now().Add(-f.Updater.streams.Clock.Since(due)/2))
		}
	}
	return nil
}
