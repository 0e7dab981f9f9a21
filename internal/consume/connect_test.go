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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/servertest"
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
			log := &logBuffer{}
			o.Logger = log.logger()
			c, err := Connect(o)
			if err == nil {
				c.Conn.Close()
				t.Fatal("there is no error")
			}
			if strings.Contains(err.Error(), "canary") || len(log.lines("canary")) > 0 {
				t.Errorf("a secret is shown: %v", err)
			}
		})
	}
}

// A server that is not there yet is waited for, and said to be away once.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Kill()
	c := f.connect(f.server.URL)
	f.eventually("the log says that it is away", func() bool { return len(f.log.lines("nats cannot be reached")) > 0 })
	if err := c.Failure(); err == nil {
		t.Error("why it cannot be reached is not known")
	}
	f.server.Restart()
	f.eventually("it is connected", c.Conn.IsConnected)
	f.eventually("the log says so", func() bool { return len(f.log.lines("nats is connected")) > 0 })
	if lines := f.log.lines("nats cannot be reached"); len(lines) != 1 {
		t.Errorf("that it is away was logged %d times, want once", len(lines))
	}
}

// Wrong credentials are said once, without them, and do not end the connection: they may be mended.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.Username, o.Password = "user", "right" })
	f := newFixtureOn(t, n, nats.UserInfo("user", "right"))
	c := f.connectAs(ConnectOptions{URL: n.URL, User: "user", Password: "canary"})
	f.eventually("the log says so", func() bool { return len(f.log.lines("Authorization Violation")) > 0 })
	if c.Conn.IsConnected() || c.Conn.IsClosed() {
		t.Errorf("connected %t, closed %t; want neither", c.Conn.IsConnected(), c.Conn.IsClosed())
	}
	if lines := f.log.lines("canary"); len(lines) > 0 {
		t.Errorf("the password is logged: %q", lines)
	}
}

func (f *fixture) check(c *Connection, names Names, provision bool, ackWait time.Duration) []Finding {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	return Check(ctx, c, names, provision, ackWait)
}

// sampleServer is a server with the sample of configs, where everything is provisioned by its operator.
func sampleServer(t *testing.T) *fixture {
	t.Helper()
	for _, user := range []string{"OPERATOR", "LIMITS", "NOTIFIER", "REPLAYER", "PRODUCER"} {
		t.Setenv("NATS_"+user+"_PASSWORD", "secret")
	}
	sample, err := server.ProcessConfigFile("../../configs/nats/notifier.conf")
	if err != nil {
		t.Fatal(err)
	}
	sample.HTTPPort = 0 // a fixed port, which may be taken
	return newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { *o = *sample.Clone() }), nats.UserInfo("operator", "secret"))
}

// A worker does all of its work with the rights of the sample, and none is denied.
func TestSampleRightsAreEnough(t *testing.T) {
	f := sampleServer(t)
	names := Names{Stream: "NOTIFICATIONS", Subject: "notify", Consumer: "notifier", DeadLetterStream: "NOTIFICATIONS_DLQ", DeadLetterSubject: "notify-dlq", LongestDelay: time.Hour}
	if _, err := names.provision(t.Context(), f.js, 3*time.Second, true, f.log.logger()); err != nil {
		t.Fatal(err)
	}
	c := f.connectAs(ConnectOptions{URL: f.server.URL, User: "notifier", Password: "secret", Inbox: InboxPrefix})
	f.eventually("it is connected", c.Conn.IsConnected)
	for _, finding := range f.check(c, names, false, 3*time.Second) {
		if finding.Err != nil {
			t.Errorf("check: %s: %v", finding.Subject, finding.Err)
		}
	}

	// An event that is sent after its lease was renewed, one that is given back, one that becomes a dead letter, one that
	// waits for a slot, one that resolves nothing, and several in one message.
	release := newGate(t)
	f.throttle.judge = func(_ context.Context, candidate Candidate) (Decision, error) {
		if candidate.Event.ID == "wait" && len(f.throttle.asked()) < 3 {
			return Decision{Verdict: Wait, Wait: time.Millisecond}, nil
		}
		switch {
		case candidate.Event.ID == "resolved":
			return Decision{Verdict: Unpaired}, nil
		case candidate.Event.ID == "delay" && !candidate.Waited:
			return Decision{Verdict: Deny, Level: "the rule", Wait: time.Second}, nil
		}
		return f.throttle.admit(candidate), nil
	}
	f.throttle.delay = comeBackIn(time.Second)
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) *Failure {
		_ = release.pass(ctx)
		return nil
	}
	w := f.start(func(o *Options) {
		mayDelay(o)
		o.Connection, o.Names, o.Provision, o.AckWait = c, names, false, 3*time.Second
	})
	f.event("payments", "slow")
	f.event("payments", "wait")
	f.event("payments", "delay")
	f.group()
	f.status(event.StatusResolved)
	f.publish("notify.payments", "{broken")
	f.eventually("a lease is renewed", func() bool { return f.journal.count("extend slow") > 0 })
	release.open()
	f.eventually("all end", func() bool { return f.metrics.ended() == 7 })
	f.requireOutcomes(map[string]int{"sent payments": 5, "dead payments": 1, "dropped payments": 1})
	w.stop()
	if denied := c.Denied(); len(denied) > 0 || len(f.log.lines("permission")) > 0 {
		t.Errorf("denied: %q, logged: %q", denied, f.log.lines("permission"))
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
	if err := c.Conn.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	if lines := f.log.lines("nats permission is missing"); len(lines) != 1 || !strings.Contains(lines[0], info) {
		t.Errorf("logged: %q, want the subject, once", lines)
	}
}

// What is remembered of denials is one for each subject, in order, without those that a worker does without, and bounded.
func TestDenied(t *testing.T) {
	t.Parallel()
	log := &logBuffer{}
	c := &Connection{}
	deny := func(subject string) {
		c.asyncError(log.logger(), nil, fmt.Errorf("%w: Permissions Violation for Publish to %q", nats.ErrPermissionViolation, subject))
	}
	for _, subject := range []string{"b", "$JS.ACK.S.C.1.2.3.4.5", "a", "b", "$JS.API.STREAM.INFO.S", "$JS.ACK.S.C.6.7.8.9.0"} {
		deny(subject)
	}
	denied := c.Denied()
	if len(denied) != 3 || !strings.Contains(denied[0], `"b"`) || !strings.Contains(denied[1], `"$JS.ACK.S.C.>"`) || !strings.Contains(denied[2], `"a"`) {
		t.Errorf("denied: %q", denied)
	}
	if lines := log.lines("nats permission is missing"); len(lines) != 3 {
		t.Errorf("logged: %q, want each once", lines)
	}
	for i := range 2 * mostDenied {
		deny(fmt.Sprint(i))
	}
	if n := len(c.denied); n != mostDenied {
		t.Errorf("%d denials are remembered, want %d at most", n, mostDenied)
	}
}

// Check finds each thing that would keep a worker from its work, and changes nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	const fine = "fine"
	stream := func(f *fixture) {
		config := jetstream.StreamConfig{Name: testNames.Stream, Subjects: []string{"notify", "notify.>"}}
		if _, err := f.js.CreateStream(f.Context(), config); err != nil {
			f.Fatal(err)
		}
	}
	consumer := func(change func(*jetstream.ConsumerConfig)) func(*fixture) {
		return func(f *fixture) {
			stream(f)
			c := jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience}
			change(&c)
			if err := f.createConsumer(c); err != nil {
				f.Fatal(err)
			}
		}
	}
	all := func(f *fixture) { f.provision(patience) }
	for name, test := range map[string]struct {
		setUp                              func(*fixture)
		denied                             []string
		provision                          bool
		consumer, deadLetters, permissions string // in the note or the error; "!" before an error, "?" before a warning
	}{
		"all is there":                      {setUp: all, consumer: "0 events are waiting", deadLetters: "would be stored", permissions: "is allowed"},
		"nothing is there":                  {consumer: "!create it", deadLetters: "!no stream takes them", permissions: "is allowed"},
		"nothing is there, and can be made": {provision: true, consumer: "the worker creates it", deadLetters: "the worker creates it", permissions: "is allowed"},
		"no consumer":                       {setUp: stream, consumer: "!create it", deadLetters: "!no stream takes them", permissions: "is allowed"},
		"push": {setUp: consumer(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }),
			consumer: "!not a pull consumer", deadLetters: "!no stream", permissions: "is allowed"},
		"no acknowledgements": {setUp: consumer(func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy }),
			consumer: "!acknowledgement policy", deadLetters: "!no stream", permissions: "is allowed"},
		"other settings": {setUp: consumer(func(c *jetstream.ConsumerConfig) { c.AckWait, c.MaxDeliver = time.Minute, 4 }),
			consumer: "?at most 4 times", deadLetters: "!no stream", permissions: "is allowed"},
		"nothing is there, and no right to make streams": {provision: true, denied: []string{"$JS.API.STREAM.CREATE.>"},
			consumer: "the worker creates it", deadLetters: "the worker creates it", permissions: "!STREAM.CREATE.EVENTS"},
		"no consumer, and no right to make one": {setUp: stream, provision: true, denied: []string{"$JS.API.CONSUMER.CREATE.>"},
			consumer: "the worker creates it", deadLetters: "the worker creates it", permissions: "!CONSUMER.CREATE.EVENTS.notifier"},
		"no right to take events": {setUp: all, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.>"},
			consumer: "0 events are waiting", deadLetters: "would be stored", permissions: "!CONSUMER.MSG.NEXT.EVENTS.notifier"},
		"no right to settle them": {setUp: all, denied: []string{"$JS.ACK.>"},
			consumer: "0 events are waiting", deadLetters: "would be stored", permissions: "!$JS.ACK.EVENTS.notifier"},
		"no right to store dead letters, nor to settle": {setUp: all, denied: []string{"notify-dlq.>", "$JS.ACK.>"},
			consumer: "0 events are waiting", deadLetters: "!notify-dlq.check", permissions: "!$JS.ACK.EVENTS.notifier"},
		"no right to see the consumer": {setUp: all, denied: []string{"$JS.API.CONSUMER.INFO.>"},
			consumer: "!CONSUMER.INFO.EVENTS.notifier", deadLetters: "would be stored", permissions: fine},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := limited(t, test.denied...)
			if test.setUp != nil {
				test.setUp(f)
			}
			findings := f.check(f.connectLimited(), testNames, test.provision, patience)
			if len(findings) < 3 {
				t.Fatalf("findings: %+v, want one for each question", findings)
			}
			for i, want := range []string{test.consumer, test.deadLetters, test.permissions} {
				finding := findings[i]
				wrong, isWrong := strings.CutPrefix(want, "!")
				warned, isWarning := strings.CutPrefix(wrong, "?")
				switch {
				case want == fine:
					if finding.Err != nil {
						t.Errorf("%s: %v, want nothing wrong", finding.Subject, finding.Err)
					}
				case isWrong || isWarning:
					if finding.Err == nil || !strings.Contains(finding.Err.Error(), warned) || finding.Warning != isWarning {
						t.Errorf("%s: %v (warning %t), want %q", finding.Subject, finding.Err, finding.Warning, want)
					}
				case finding.Err != nil || !strings.Contains(finding.Note, want):
					t.Errorf("%s: %q, %v; want %q", finding.Subject, finding.Note, finding.Err, want)
				}
			}
			for _, denied := range findings[3:] {
				if denied.Subject != findings[2].Subject || denied.Err == nil {
					t.Errorf("%s: %q, %v; want nothing but further rights that are missing", denied.Subject, denied.Note, denied.Err)
				}
			}
			if test.setUp == nil {
				if _, err := f.js.Stream(t.Context(), testNames.Stream); !errors.Is(err, jetstream.ErrStreamNotFound) {
					t.Errorf("after the check, looking for the stream gives %v, want that there is none", err)
				}
			}
		})
	}
}

// Check stores nothing and takes nothing.
func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.event("payments", "e")
	c := f.connect(f.server.URL)
	f.eventually("it is connected", c.Conn.IsConnected)
	f.check(c, testNames, true, patience)
	if info := f.consumerInfo(); info.NumPending != 1 || info.NumAckPending != 0 || info.NumWaiting != 0 {
		t.Errorf("%d events wait, %d are taken, %d requests are open; want 1, 0, 0", info.NumPending, info.NumAckPending, info.NumWaiting)
	}
	if letters := f.deadLetters(); len(letters) > 0 {
		t.Errorf("%d dead letters are stored, want none", len(letters))
	}
}

// A server without JetStream is named as such.
func TestCheckWithoutJetStream(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.JetStream = false })
	f := newFixtureOn(t, n)
	c := f.connect(n.URL)
	f.eventually("it is connected", c.Conn.IsConnected)
	findings := f.check(c, testNames, true, patience)
	if len(findings) == 0 || findings[0].Err == nil || !strings.Contains(findings[0].Err.Error(), "is JetStream enabled") {
		t.Errorf("findings: %+v, want that JetStream is not there", findings)
	}
}
