package consume

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/outcome"
	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stage"
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
func (u *doubts) nameOf(c received.Candidate) string {
	return sink.NameOf(u.deployment, c.Request().ID, c.Entry.Origin.String())
}

// about returns the doubt about an event that was just admitted. Redis may have lost the record of an attempt: then only an earlier
// delivery of the message, or its header from the room, shows that there may have been an attempt.
func (u *doubts) about(c received.Candidate, decision *store.Decision) outcome.Doubt {
	attempted := c.Attempted()
	if !decision.InDoubt && (decision.Verdict != store.Admitted || attempted.IsZero()) {
		return outcome.Doubt{}
	}
	first := attempted
	if first.IsZero() {
		first = c.Meta.Timestamp
	}
	return outcome.Doubt{Open: true, First: c.Received.Add(-u.streams.Clock.At(c.Received).Sub(first)), Last: c.Received}
}

// settleDoubt looks up the post of an event that an attempt may have made. It returns true if the event may be posted: it certainly was not
// posted or nobody can look for it. Otherwise the delivery has ended. While look-ups fail, the event is not posted.
func (v *deliverer) settleDoubt(l stage.Life, d *delivery) (mayPost bool) {
	for tries := 0; d.admission.Doubt.Open; tries++ {
		posted := d.toSend()
		posted.Opened = d.opened // an earlier attempt may have replied in a thread that is lost by now
		found, err := v.doubts.finder.Find(l.Waiting, sink.Doubt{Delivery: posted, First: d.admission.Doubt.First, Last: d.admission.Doubt.Last})
		if l.Waiting.Err() == nil {
			v.doubts.finding.Note(err)
		}
		if failure := sink.FailureOf(err, d.destination); failure != nil {
			pause := max(failure.RetryAfter, stage.RetryDelay(stage.FirstBackoff, tries))
			if !await.For(l.Waiting, pause) {
				v.postpone(l, d, 0)
				return false
			}
			if v.reporter.Reader.TooOld(time.Now(), d.message) {
				v.settler.Expire(l, d.message, d.admission)
				return false
			}
			continue
		}
		d.admission.Doubt.Open = false
		switch found.Presence {
		case sink.Present:
			v.record(l, d, found.Receipt)
			return false
		case sink.Absent:
			d.admission.Doubt = outcome.Doubt{}
		case sink.Unsearchable:
			d.admission.Doubt.Unsearchable = true
		}
	}
	return true
}
