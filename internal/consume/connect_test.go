package consume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// What waiting does not mend is an error at once, and names no secret.
func TestConnectErrors(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]ConnectOptions{
		"no file of credentials": {URL: "nats://127.0.0.1:1", CredsFile: filepath.Join(t.TempDir(), "absent.creds")},
		"not a URL":              {URL: "nats://user:canary@127.0.0.1:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := testkit.NewLog(t)
			o.Logger = log.Logger()
			c, err := Connect(o)
			if err == nil {
				c.Conn.Close()
				t.Fatal("there is no error")
			}
			if strings.Contains(err.Error(), "canary") || len(log.Lines("canary")) > 0 {
				t.Errorf("a secret is shown: %v", err)
			}
		})
	}
}

// A server that is not there yet is waited for, and said to be unavailable once.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Kill()
	c := f.connect(f.server.URL)
	f.eventually("the log says that it is unavailable", func() bool { return len(f.log.Lines("nats cannot be reached")) > 0 })
	if err := c.Failure(); err == nil {
		t.Error("why it cannot be reached is not known")
	}
	f.server.Restart()
	f.eventually("it is connected", c.Conn.IsConnected)
	f.eventually("the log says so", func() bool { return len(f.log.Lines("nats is connected")) > 0 })
	f.log.WantCount(t, 1, "nats cannot be reached")
}

// Wrong credentials are said once, without them, and do not end the connection: they may be mended.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "right" })
	f := newFixtureOn(t, n, nats.UserInfo("user", "right"))
	c := f.connectAs(ConnectOptions{URL: n.URL, User: "user", Password: "canary"})
	f.eventually("the log says so", func() bool { return len(f.log.Lines("Authorization Violation")) > 0 })
	if c.Conn.IsConnected() || c.Conn.IsClosed() {
		t.Errorf("connected %t, closed %t; want neither", c.Conn.IsConnected(), c.Conn.IsClosed())
	}
	if lines := f.log.Lines("canary"); len(lines) > 0 {
		t.Errorf("the password is logged: %q", lines)
	}
}

// sampleServer is a server with the sample of configs, where everything is provisioned by its operator.
func sampleServer(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartSampleNATS(t, "../../configs/nats/notifier.conf"), nats.UserInfo("operator", "secret"))
}

// sampleNames are the defaults, for which the sample of configs is written. The dead letters have little room.
var sampleNames = Names{
	Stream: "NOTIFICATIONS", Subject: "notify", Consumer: "notifier", MaxBytes: 1 << 30, MaxAge: 7 * 24 * time.Hour,
	RoomStream: "NOTIFICATIONS_ROOM", LongestDelay: time.Hour,
	DeadLetterStream: "NOTIFICATIONS_DLQ", DeadLetterSubject: "notify-dlq",
	DeadLetters: DeadLetterBounds{PerSubject: 100, Bytes: 1 << 20, Age: time.Hour},
}

// decideByID decides about events by their IDs.
func (f *fixture) decideByID() {
	f.throttle.answers(func(c throttle.Request) throttle.Decision {
		switch {
		case shown(c) == "wait" && len(f.throttle.asked()) < 3:
			return throttle.Decision{Verdict: throttle.Leased, Wait: time.Millisecond}
		case shown(c) == "resolved":
			return throttle.Decision{Verdict: throttle.Unpaired}
		case shown(c) == "delay" && !c.HasWaited:
			return denied(time.Second)
		}
		return f.throttle.admit(c)
	})
	f.throttle.delay = comeBackIn(time.Second)
}

// A worker does all of its work with the rights of the sample, and none is denied.
func TestSampleRightsAreEnough(t *testing.T) {
	f := sampleServer(t)
	testkit.Must(sampleNames.provision(t.Context(), f.js, 3*time.Second, true, f.log.Logger()))(t)
	c := f.connectAs(ConnectOptions{URL: f.server.URL, User: "notifier", Password: "secret", Inbox: "_INBOX_notifier"})
	f.eventually("it is connected", c.Conn.IsConnected)
	for _, finding := range f.check(c, sampleNames, false, 3*time.Second) {
		if finding.Err != nil && !finding.Warning {
			t.Errorf("check: %s: %v", finding.Subject, finding.Err)
		}
	}

	// An event that is sent after its lease was renewed, one that gets a nak, one that waits for a slot, one that waits for
	// its channel, one that resolves nothing, several in one message, and more dead letters than there is room for.
	release := newGate(t)
	f.decideByID()
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		_ = release.pass(ctx)
		return nil
	}
	f.throttle.Pause(t.Context(), "paused", 3*time.Second)
	w := f.start(func(o *Options) {
		o.Delay = func(string) time.Duration { return time.Hour }
		o.Pace = time.Millisecond
		o.Connection, o.Names, o.Provision, o.AckWait = c, sampleNames, false, 3*time.Second
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
	f.eventually("a lease is renewed", func() bool { return f.journal.count("extend slow") > 0 })
	release.open()
	f.eventually("all end", func() bool { return f.metrics.ended() == 7+letters })
	f.requireOutcomes(map[string]int{"sent payments": 5, "sent paused": 1, "dead payments": letters, "dropped payments": 1})
	w.stop()
	if f.metrics.Get("letters discarded") == 0 {
		t.Error("no dead letter was pushed out")
	}
	if denied := c.Denied(); len(denied) > 0 || len(f.log.Lines("permission")) > 0 {
		t.Errorf("denied: %q, logged: %q", denied, f.log.Lines("permission"))
	}
}

// limited is a server with a user who may do all but publish on some subjects.
func limited(t *testing.T, denied ...string) *fixture {
	t.Helper()
	n := servertest.StartNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "secret"},
			{Username: "limited", Password: "secret", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: denied}}},
		}
	})
	return newFixtureOn(t, n, nats.UserInfo("all", "secret"))
}

func (f *fixture) connectLimited() *Connection {
	f.Helper()
	c := f.connectAs(ConnectOptions{URL: f.server.URL, User: "limited", Password: "secret"})
	f.eventually("it is connected", c.Conn.IsConnected)
	return c
}

// A right that is missing looks like a timeout to whoever asks; the log names it once, and so does the probe.
func TestDenialIsNamed(t *testing.T) {
	t.Parallel()
	const info = "$JS.API.CONSUMER.INFO.EVENTS.notifier"
	f := limited(t, info)
	f.provision(patience)
	c := f.connectLimited()
	w := f.newWorker(func(o *Options) { o.Connection, o.Provision = c, false })
	ctx, cancel := context.WithCancel(t.Context())
	prepared := make(chan error, 1)
	go func() {
		_, _, err := w.Prepare(ctx)
		prepared <- err
	}()
	f.eventually("the probe names it", func() bool { err := w.Ready(); return err != nil && strings.Contains(err.Error(), info) })
	cancel()
	if err := <-prepared; !errors.Is(err, context.Canceled) {
		t.Errorf("preparing ended with %v", err)
	}
	for range 3 { // said again and again
		_ = c.Conn.Publish(info, nil)
	}
	testkit.NoError(t, c.Conn.FlushTimeout(patience))
	if lines := f.log.Lines("nats permission is missing"); len(lines) != 1 || !strings.Contains(lines[0], info) {
		t.Errorf("logged: %q, want the subject, once", lines)
	}
}

// What is remembered of denials is one for each subject, in order, and bounded.
func TestDenied(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	c := &Connection{}
	deny := func(subject string) {
		c.asyncError(log.Logger(), nil, fmt.Errorf("%w: Permissions Violation for Publish to %q", nats.ErrPermissionViolation, subject))
	}
	for _, subject := range []string{"b", "$JS.ACK.S.C.1.2.3.4.5", "a", "b", "$JS.ACK.S.C.6.7.8.9.0"} {
		deny(subject)
	}
	denied := c.Denied()
	if len(denied) != 3 || !strings.Contains(denied[0], `"b"`) || !strings.Contains(denied[1], `"$JS.ACK.S.C.>"`) || !strings.Contains(denied[2], `"a"`) {
		t.Errorf("denied: %q", denied)
	}
	log.WantCount(t, 3, "nats permission is missing")
	for i := range 2 * mostDenied {
		deny(fmt.Sprint(i))
	}
	if n := len(c.denied); n != mostDenied {
		t.Errorf("%d denials are remembered, want %d at most", n, mostDenied)
	}
}
