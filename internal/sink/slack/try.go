package slack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/render"
)

// Try posts a test message to a channel, updates it, looks it up, and reports what Slack answered. A webhook posts to its own channel,
// where nothing can be updated or looked up.
func (s *Sink) Try(ctx context.Context, channel string) []sink.Checked {
	name, began := sink.NameOf("check", rand.Text(), ""), time.Now()
	to := place{destination: channel, channel: channel, name: name}
	if s.o.WebhookURL != "" {
		to.destination = webhookDestination
	}
	posted, failure := s.post(ctx, to, render.Message{Text: "A test message of notifier check."})
	tried := []sink.Checked{trial("Slack post to "+to.destination, "taken", failure)}
	if failure != nil {
		return tried
	}
	if s.o.WebhookURL != "" {
		err := errors.New("a webhook cannot update messages or look them up: a resolved event is a message of its own, and an event may be posted a second time")
		return append(tried, sink.Checked{Subject: "Slack update and look-up", Err: err, Warning: true})
	}
	tried[0].Note = fmt.Sprintf("taken as message %s of channel %s", posted.ts, posted.channel)
	failure = s.update(ctx, s.o.Timeout, place{to.destination, posted.channel, posted.ts, ""}, render.Message{Text: "A test message of notifier check, updated."})
	tried = append(tried, trial("Slack update", "taken", failure))
	at, found, failure := s.find(ctx, search{name: name, first: began, last: time.Now(), destination: channel})
	lookUp := trial("Slack look-up", "found the message "+at.timestamp, failure)
	switch {
	case failure != nil:
	case found.Presence == sink.Unsearchable:
		lookUp.Err, lookUp.Warning = fmt.Errorf("not possible: %s; an event may be posted a second time", found.Reason), true
	case found.Presence == sink.Absent:
		lookUp.Err = fmt.Errorf("the message is not in the history %v after its post: raise NOTIFIER_SLACK_SETTLE", s.o.Settle)
	}
	return append(tried, lookUp)
}

// trial is the result of a request.
func trial(subject, note string, failure *sink.Error) sink.Checked {
	if failure != nil {
		return sink.Checked{Subject: subject, Err: fmt.Errorf("%s: %w", failure.Class, failure.Err)}
	}
	return sink.Checked{Subject: subject, Note: note}
}
