package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// A flapping key has one entry in the room, which comes back when the key may be steady. If the key has changed meanwhile, the entry goes back
// to the room. Otherwise it becomes the report that the key is steady: a delivery like that of a resolved event, in the thread of the key's
// message. A report is no event, and has no outcome.

// becomeReport turns the event of an entry into the report that its key is steady.
func becomeReport(e *event.Event, entry room.Entry, decision *store.Decision) {
	since := store.Change(entry.Steady).At()
	e.Status, e.Time, e.Fields = event.StatusResolved, since, nil
	if len(decision.Counts) > 0 && decision.Counts[0].StaysOpen {
		e.Status = event.StatusFiring
	}
	if e.Title != "" {
		e.Text = e.Title
	}
	e.Title = fmt.Sprintf("steady since %s: %s", since.Format("15:04 UTC"), e.Status)
}

// keepReport stores the entry of a flapping key in the room, unless the room has one. The entry comes back when the key has not changed since
// a change. Its age counts from then. It returns when the room's entry comes back, by the server's clock. After an error nothing is known to be
// stored.
func (u *updater) keepReport(ctx context.Context, m *message, e event.Event, since store.Change) (due time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	entry, first := m.entryFor(e, room.Steady), u.reader.firstLevel(m, e)
	now := u.streams.Clock.Latest()
	if due = since.At().Add(u.states.steadyAfter); due.Before(now) {
		due = now
	}
	entry.Steady, entry.Since, entry.Order = int64(since), due.Truncate(time.Millisecond), room.Order{}
	entry.Attempted = time.Time{}
	stay := stayOf(first, entry, room.Kept(m.Header, m.Data), due.Sub(now)+stayIn)
	subject, target := u.streams.Names.Room().Schedule(room.Steady, first, e.Keyed())
	before, err := u.stored(ctx, subject)
	stores := err == nil && before.entry.Steady == 0
	if stores {
		report := entry.Message(subject, m.Header, m.Data)
		room.ScheduleAt(report, target, due)
		before, err = u.storeReport(ctx, report, stay)
	}
	if err == nil && before.entry.Steady > 0 {
		due = before.due
		if own := stayOf(first, before.entry, 0, 0).Member == stay.Member; !own && (stores || m.entry.IsReport()) {
			u.settler.stays.leave(stay)
		}
	}
	if !errors.Is(err, errNoPlace) && !messagesize.IsTooLarge(err) {
		u.log.storing.Note(err)
	}
	return due, err
}

// storeReport stores a report if the room has a place for it, and no report of the key yet. It returns the room's entry before.
func (u *updater) storeReport(ctx context.Context, report *nats.Msg, stay store.Stay) (before storedUpdate, err error) {
	mayStay, err := u.room.EnterRoom(ctx, []store.Stay{stay})
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
			u.settler.stays.leave(stay)
		}
	default:
		err = errNoPlace
	}
	if errors.Is(err, errNoPlace) || messagesize.IsTooLarge(err) {
		u.metrics.RoomRefused(string(room.Steady), 1)
	}
	return before, err
}

// reportAgain returns the entry of a key that has changed again to the room.
func (u *updater) reportAgain(l life, c candidate, since store.Change) {
	if _, err := u.keepReport(l.ending(), c.message, c.event, since); err != nil {
		u.settler.nak(c.message, jitter(undecidedDelay))
		return
	}
	u.settler.settle(settlement{message: c.message, goesOn: true})
}

// report stores the reports about the flapping keys of folded events, unless the room has them. It adds to comeBack the events that come back.
func (f *folds) report(ctx context.Context, folded []foldedEvent, comeBack map[*message]time.Duration) error {
	for _, one := range folded {
		until, _ := f.reports.Peek(one.request.Pair)
		if !one.end.fold.Flaps || time.Now().Before(until) {
			continue
		}
		due, err := f.updater.keepReport(ctx, one.message, one.event, one.request.Change())
		switch {
		case errors.Is(err, errNoPlace):
			f.reports.Add(one.request.Pair, comesBack(one, comeBack))
		case messagesize.IsTooLarge(err): // another change stores the report
		case err != nil:
			return err
		default:
			f.reports.Add(one.request.Pair, time.Now().Add(-f.updater.streams.Clock.Since(due)/2))
		}
	}
	return nil
}
