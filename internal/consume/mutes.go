package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/lane"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Mutes are the mutes of a [throttle.Limiter]. Its methods return nil if no mute covers an event, and may be called concurrently.
type Mutes interface {
	// Muted returns a denial only if the limits of this worker were confirmed lately. KnownMutes returns the mutes that cover a category, as
	// far as this worker knows. UnreportedMutes returns the texts of these mutes and of past ones whose reports may not be posted yet.
	Muted(category string, severity event.Severity) *store.Denial
	KnownMutes(category string) store.Mutes
	UnreportedMutes(category string) []string

	// CheckMute is called right before a post. It returns by when the post must begin; zero: at any time. After an error there must be no post.
	CheckMute(ctx context.Context, category string, severity event.Severity) (by time.Time, err error)
}

// anySeverity stands for a severity that is not known. Mutes may except this severity.
const anySeverity = event.SeverityCritical

type muteCheck struct {
	mutes Mutes
	pacer lane.Pacer
}

// known returns the denial of an admitted event that has been muted since; nil: it is not muted. An event that resolves a posted event
// is never muted. While a channel is paused for long, its events wait in the room, and are muted only if they still are at the end.
func (c muteCheck) known(d *delivery) *store.Denial {
	if d.event.Resolves() || c.pacer.Paused(d.destination) > lane.MemoryWait {
		return nil
	}
	return c.mutes.KnownMutes(d.event.Category).Of(d.event.Severity)
}

func (c muteCheck) covers(d *delivery) bool { return c.known(d) != nil }

// ofPost returns the check of the requests that post an event, and whether one of them was refused. If the event is muted, dropMuted ends it. A
// request must begin before the lease ends, even if the process is suspended meanwhile: then another worker may have the event.
func (c muteCheck) ofPost(d *delivery) (check sink.Check, refused *bool) {
	refused = new(bool)
	return func(ctx context.Context) (by time.Time, err error) {
		if !d.event.Resolves() {
			by, err = c.mutes.CheckMute(ctx, d.event.Category, d.event.Severity)
		}
		*refused = err != nil
		if ends := d.message.Lease.Ends(); by.IsZero() || ends.Before(by) {
			by = ends
		}
		return by, err
	}, refused
}

// dropMuted ends the delivery of a muted event, and reports whether it did. The event's slot returns.
func (v *deliverer) dropMuted(l stage.Life, d *delivery) bool {
	denial := v.mutes.known(d)
	if denial == nil || d.admission.Doubt.Open || d.lost.Load() || d.message.Lease.Left() <= 0 {
		return false
	}
	owed := d.admission.EndUndelivered(l.Ending())
	v.settler.SettleAfter(owed, outcome.Settlement{Message: d.message, Outcome: journal.Dropped, Denial: denial})
	return true
}
