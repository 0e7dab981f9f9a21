package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Finder looks up posts that an attempt may have made: a [sink.Finder]. Its method may be called concurrently.
type Finder interface {
	// Find waits until a post would be visible, and looks for it by its name. After an error, a *sink.Error, nothing is known.
	Find(ctx context.Context, d sink.Doubt) (sink.Finding, error)
}

// doubts names posts, and finds out which of them an earlier attempt has made.
type doubts struct {
	finder     Finder
	deployment string
	streams    *stream.Client
	finding    *oplog.Condition
}

func newDoubts(o Options) *doubts {
	return &doubts{
		finder: o.Finder, deployment: o.Deployment, streams: o.Streams,
		finding: oplog.NewCondition(o.Logger, "cannot look up posts in doubt", "looking up posts in doubt again"),
	}
}

// nameOf returns the name of the post of an event, which is the same in every attempt of every worker.
func (u *doubts) nameOf(c candidate) string {
	return sink.NameOf(u.deployment, c.request().ID, c.entry.Origin.String())
}

// about returns the doubt about an event that was just admitted. Redis may have lost the record of an attempt: then only an earlier
// delivery of the message, or its header from the room, shows that there may have been an attempt.
func (u *doubts) about(c candidate, decision *store.Decision) doubt {
	attempted := c.attempted()
	if !decision.InDoubt && (decision.Verdict != store.Admitted || attempted.IsZero()) {
		return doubt{}
	}
	first := attempted
	if first.IsZero() {
		first = c.meta.Timestamp
	}
	return doubt{open: true, first: c.received.Add(-u.streams.Clock.At(c.received).Sub(first)), last: c.received}
}

// settleDoubt looks up the post of an event that an attempt may have made. It returns true if the event may be posted: it certainly was not
// posted or nobody can look for it. Otherwise the delivery has ended. While look-ups fail, the event is not posted.
func (v *deliverer) settleDoubt(l life, d *delivery) (mayPost bool) {
	for tries := 0; d.admission.doubt.open; tries++ {
		posted := d.toSend()
		posted.Opened = d.opened // an earlier attempt may have replied in a thread that is lost by now
		found, err := v.doubts.finder.Find(l.waiting, sink.Doubt{Delivery: posted, First: d.admission.doubt.first, Last: d.admission.doubt.last})
		if l.waiting.Err() == nil {
			v.doubts.finding.Note(err)
		}
		if failure := sink.FailureOf(err, d.destination); failure != nil {
			pause := max(failure.RetryAfter, retryDelay(firstBackoff, tries))
			if !await.For(l.waiting, pause) {
				v.postpone(l, d, 0)
				return false
			}
			if v.reporter.reader.tooOld(time.Now(), d.message) {
				v.settler.expire(l, d.message, d.admission)
				return false
			}
			continue
		}
		d.admission.doubt.open = false
		switch found.Presence {
		case sink.Present:
			v.record(l, d, found.Receipt)
			return false
		case sink.Absent:
			d.admission.doubt = doubt{}
		case sink.Unsearchable:
			d.admission.doubt.unsearchable = true
		}
	}
	return true
}
