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

// identityOf returns the identity of what a candidate delivers.
func identityOf(c candidate) string {
	if c.entry.IsReport() {
		return c.request().ID
	}
	return c.event.Identity()
}

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
	report := waitingReport{entry: entry, stay: stayOf(first, entry, room.Kept(m.Header, m.Data), due.Sub(now)+stayIn), due: due}
	report.subject, report.target = u.streams.Names.Room().Schedule(room.Steady, first, e.Keyed())
	before, err := u.stored(ctx, report.subject)
	stores := err == nil && before.entry.Steady == 0
	if stores {
		before, err = u.storeReport(ctx, m, report)
	}
	if err == nil && before.entry.Steady > 0 {
		due = before.due
		if own := stayOf(first, before.entry, 0, 0).Member == report.stay.Member; !own && (stores || m.entry.IsReport()) {
			u.settler.stays.leave(report.stay)
		}
	}
	if !errors.Is(err, errNoPlace) && !messagesize.IsTooLarge(err) {
		u.log.storing.Note(err)
	}
	return due, err
}

// waitingReport is the entry of a flapping key on its way to the room.
type waitingReport struct {
	entry           room.Entry
	stay            store.Stay
	subject, target string
	due             time.Time
}

// storeReport stores a report if the room has a place for it, and no report of the key yet. It returns the room's entry before.
func (u *updater) storeReport(ctx context.Context, m *message, r waitingReport) (before storedUpdate, err error) {
	mayStay, err := u.room.EnterRoom(ctx, []store.Stay{r.stay})
	switch {
	case err != nil:
	case mayStay[0]:
		before, err = u.replace(ctx, r.subject, func(before storedUpdate) *nats.Msg {
			if before.entry.Steady > 0 {
				return nil
			}
			toStore := r.entry.Message(r.subject, m.Header, m.Data)
			room.ScheduleAt(toStore, r.target, r.due)
			return toStore
		})
		if messagesize.IsTooLarge(err) {
			u.settler.stays.leave(r.stay)
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

// report stores the reports about the keys of folded events that are flapping, unless the room has them. It adds the events that come back to
// comeBack.
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
