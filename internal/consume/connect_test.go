package consume

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// sampleServer starts a server with the sample of configs. The operator provisions everything.
func sampleServer(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartSampleNATS(t, "../../configs/nats/notifier.conf"), nats.UserInfo("operator", "secret"))
}

// sampleNames are the default names, for which the sample of configs is written. The dead-letter stream is small.
var sampleNames = stream.Names{
	Stream: "NOTIFICATIONS", Subject: "notify", Consumer: "notifier", MaxBytes: 1 << 30, MaxAge: 7 * 24 * time.Hour,
	RoomStream: "NOTIFICATIONS_ROOM", LongestWait: time.Hour,
	DeadLetterStream: "NOTIFICATIONS_DLQ", DeadLetterSubject: "notify-dlq",
	DeadLetters: stream.DeadLetterBounds{PerSubject: 100, Bytes: 1 << 20, Age: time.Hour},
}

func (f *fixture) decideByID() {
	f.throttle.answers(func(c store.Request) store.Decision {
		switch {
		case shown(c) == "wait" && len(f.throttle.asked()) < 3:
			return store.Decision{Verdict: store.Leased, Wait: time.Millisecond}
		case shown(c) == "resolved":
			return store.Decision{Verdict: store.Unpaired}
		case shown(c) == "delay" && !c.HasWaited:
			return denied(time.Second)
		}
		return f.throttle.admit(c)
	})
	f.throttle.delay = comeBackIn(time.Second)
}

// TestSampleRightsAreEnough has a worker do all kinds of its work with the rights of the sample.
func TestSampleRightsAreEnough(t *testing.T) {
	f := sampleServer(t)
	testkit.Must(sampleNames.Provision(t.Context(), f.js, 3*time.Second, f.log.Logger()))(t)
	c := f.connectAs(stream.ConnectOptions{URL: f.server.URL, User: "notifier", Password: "secret", Inbox: "_INBOX_notifier"})
	f.eventually("it is connected", c.Conn.IsConnected)
	for _, finding := range stream.Check(t.Context(), stream.Options{Connection: c, Names: sampleNames, AckWait: 3 * time.Second}) {
		if finding.Err != nil && !finding.Warning {
			t.Errorf("check of %s: got %v, want no error", finding.Subject, finding.Err)
		}
	}

	// The IDs name the kinds. A group and more dead letters than the stream takes follow.
	release := newGate(t)
	f.decideByID()
	f.holdPosts(release)
	f.pacer.Pause(t.Context(), "paused", 3*time.Second)
	w := f.start(func(o *setup) {
		mayDelay(o)
		o.Pace = time.Millisecond
		o.client.Connection, o.client.Names, o.client.Provision, o.client.AckWait = c, sampleNames, false, 3*time.Second
	})
	f.event("payments", "slow")
	f.event("payments", "wait")
	f.event("payments", "delay")
	f.event("paused", "held")
	f.publish("notify.payments", `{"id": "resolved", "title": "x", "status": "resolved", "key": "k"}`)
	f.publish("notify.payments", `{"alerts": [
		{"status": "firing", "labels": {"alertname": "First"}, "fingerprint": "f1"},
		{"status": "firing", "labels": {"alertname": "Second"}, "fingerprint": "f2"}]}`)
	const letters = 8
	for range letters {
		f.publish("notify.payments", "{"+strings.Repeat("x", 200_000))
	}
	f.eventually("a lease is renewed", func() bool { return f.calls.count("extend slow") > 0 })
	release.open()
	f.eventually("all end", func() bool { return f.metrics.ended() == 7+letters })
	f.requireOutcomes(map[string]int{"sent payments": 5, "sent paused": 1, "dead payments": letters, "dropped payments": 1})
	w.stop()
	if f.metrics.Get("letters discarded") == 0 {
		t.Error("discarded letters: got none, want some")
	}
	if denied := c.Denied(); len(denied) > 0 || len(f.log.Lines("permission")) > 0 {
		t.Errorf("denials: got %q and the lines %q, want none", denied, f.log.Lines("permission"))
	}
}

// forgetful is a consumer of which the server tells nothing for so many questions.
type forgetful struct {
	jetstream.Consumer
	infos chan struct{} // has an element for each question about the consumer
	dumb  int           // how many of these questions have no answer
}

func (c *forgetful) Info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	c.infos <- struct{}{}
	if c.dumb > 0 {
		c.dumb--
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Consumer.Info(ctx)
}

// TestConsumerAskedForAfterReconnect loses the connection with a question about the consumer. The worker asks anew when the connection is
// there again, and does not report the consumer as absent.
func TestConsumerAskedForAfterReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	consumer := &forgetful{Consumer: w.streams.Layout().Consumer, infos: make(chan struct{}), dumb: 1}
	ended := make(chan error, 1)
	go func() { ended <- w.puller.pullFailed(t.Context(), consumer, nats.ErrNoResponders) }()
	receive(t, "the first question", consumer.infos)
	testkit.NoError(t, w.streams.Connection.Conn.ForceReconnect())
	receive(t, "the question after the reconnect", consumer.infos)
	testkit.NoError(t, receive(t, "the end of the questions", ended))
	testkit.NoError(t, w.Ready())
	f.log.WantCount(t, 0, "consumer not found")
	f.log.WantCount(t, 0, "nats does not answer")
}
