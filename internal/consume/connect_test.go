package consume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
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

// A server that is not there yet is waited for, and said to be away once.
func TestConnectWaits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.server.Kill()
	c := f.connect(f.server.URL)
	f.eventually("the log says that it is away", func() bool { return len(f.log.Lines("nats cannot be reached")) > 0 })
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
	sample := testkit.Must(server.ProcessConfigFile("../../configs/nats/notifier.conf"))(t)
	sample.HTTPPort = 0 // a fixed port, which may be taken
	return newFixtureOn(t, servertest.StartNATS(t, func(o *server.Options) { *o = *sample.Clone() }), nats.UserInfo("operator", "secret"))
}

// sampleNames are the defaults, for which the sample of configs is written. The dead letters have little room.
var sampleNames = Names{
	Stream: "NOTIFICATIONS", Subject: "notify", Consumer: "notifier", MaxBytes: 1 << 30, MaxAge: 7 * 24 * time.Hour,
	RoomStream: "NOTIFICATIONS_ROOM", LongestDelay: time.Hour,
	DeadLetterStream: "NOTIFICATIONS_DLQ", DeadLetterSubject: "notify-dlq",
	DeadLetters: DeadLetterBounds{PerSubject: 100, Bytes: 1 << 20, Age: time.Hour},
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

	// An event that is sent after its lease was renewed, one that is given back, one that waits for a slot, one that waits for
	// its channel, one that resolves nothing, several in one message, and more dead letters than there is room for.
	release := newGate(t)
	f.throttle.judge = func(_ context.Context, candidate throttle.Request) (throttle.Decision, error) {
		if shown(candidate) == "wait" && len(f.throttle.asked()) < 3 {
			return throttle.Decision{Verdict: throttle.Leased, Wait: time.Millisecond}, nil
		}
		switch {
		case shown(candidate) == "resolved":
			return throttle.Decision{Verdict: throttle.Unpaired}, nil
		case shown(candidate) == "delay" && !candidate.HasWaited:
			return throttle.Decision{Verdict: throttle.Denied, Node: limits.Node{Level: "the rule"}, Wait: time.Second}, nil
		}
		return f.throttle.admit(candidate), nil
	}
	f.throttle.delay = func(throttle.Request, time.Duration) (throttle.DelayVerdict, time.Duration, error) {
		return throttle.ComesBack, time.Second, nil
	}
	f.sink.send = func(ctx context.Context, _ event.Event, _ int) error {
		_ = release.pass(ctx)
		return nil
	}
	f.throttle.Pause(t.Context(), "rests", 3*time.Second)
	w := f.start(func(o *Options) {
		o.Delay = func(string) time.Duration { return time.Hour }
		o.Pace = time.Millisecond
		o.Connection, o.Names, o.Provision, o.AckWait = c, sampleNames, false, 3*time.Second
	})
	f.event("payments", "slow")
	f.event("payments", "wait")
	f.event("payments", "delay")
	f.event("rests", "held")
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
	f.requireOutcomes(map[string]int{"sent payments": 5, "sent rests": 1, "dead payments": letters, "dropped payments": 1})
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

// Check finds each thing that would keep a worker from its work, says how the streams are bounded, and changes nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	const (
		events, waiting, letters = `nats stream "EVENTS"`, `nats stream "ROOM"`, `nats stream "DEAD"`
		consumer, readies        = `nats consumer "notifier" of stream "EVENTS"`, `nats consumer "notifier-room" of stream "ROOM"`
		stays, buried            = `nats events that wait on "notify-room.>"`, `nats dead letters on "notify-dlq.>"`
		permissions, replicas    = "nats permissions", "nats replicas"
	)
	const bare = "without a consumer"
	type expected map[string]string // by subject: in the note or the error; "!" before an error, "?" before a warning
	all := func(f *fixture) { f.provision(patience) }
	stream := func(change func(*jetstream.StreamConfig)) func(*fixture) {
		return func(f *fixture) {
			f.provision(patience)
			for _, c := range []jetstream.StreamConfig{testNames.StreamConfig(), testNames.RoomConfig(), testNames.DeadLetterConfig()} {
				was := fmt.Sprint(c)
				if change(&c); fmt.Sprint(c) == was {
					continue
				}
				_ = f.js.DeleteStream(f.Context(), c.Name)
				testkit.Must(f.js.CreateStream(f.Context(), c))(f)
				if c.Description == bare || c.Name == testNames.DeadLetterStream {
					continue
				}
				consumer := testNames.consumerConfig(patience, c.Subjects)
				if c.Name == testNames.RoomStream {
					consumer = testNames.roomConsumerConfig(patience)
				}
				if c.Name == testNames.RoomStream && !slices.Contains(c.Subjects, testNames.room().All()) {
					consumer.FilterSubjects = c.Subjects
				}
				testkit.Must(f.js.CreateConsumer(f.Context(), c.Name, consumer))(f)
			}
		}
	}
	of := func(name string, change func(*jetstream.StreamConfig)) func(*fixture) {
		return stream(func(c *jetstream.StreamConfig) {
			if c.Name == name {
				change(c)
			}
		})
	}
	work := func(change func(*jetstream.ConsumerConfig)) func(*fixture) {
		return func(f *fixture) {
			of(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare })(f)
			c := jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience}
			change(&c)
			testkit.NoError(f, f.createConsumer(c))
		}
	}
	for name, test := range map[string]struct {
		setUp     func(*fixture)
		denied    []string
		provision bool
		names     func(*Names)
		want      expected
	}{
		"all is there": {setUp: all, want: expected{
			consumer: "0 events are waiting", readies: "0 events are waiting", events: "at most 64MiB, for 7d; replicas: 1", waiting: "no bound in bytes, for 7d",
			letters: "at most 64MiB, 100 messages on each subject, for 30d", stays: "would be stored", buried: "would be stored", permissions: "is allowed",
			replicas: "?one server keeps EVENTS, ROOM, DEAD: a power failure",
		}},
		"nothing is there": {want: expected{
			consumer: "!create it", readies: "!create it", events: "!create it", waiting: "!create it", letters: "!create it", stays: "!no stream takes them",
			buried: "!no stream takes them", permissions: "is allowed",
		}},
		"nothing is there, and can be made": {provision: true, want: expected{
			consumer: "the worker creates it", readies: "the worker creates it", events: "creates it: at most 64MiB, for 7d", waiting: "creates it: no bound",
			letters: "the worker creates it", stays: "the worker creates it", buried: "the worker creates it", permissions: "is allowed",
		}},
		"no consumer":         {setUp: of(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare }), want: expected{consumer: "!create it"}},
		"no consumer of room": {setUp: of(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Description = bare }), want: expected{readies: "!create it"}},
		"push":                {setUp: work(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }), want: expected{consumer: "!not a pull consumer"}},
		"other settings": {setUp: work(func(c *jetstream.ConsumerConfig) { c.AckWait, c.MaxDeliver = time.Minute, 4 }),
			want: expected{consumer: "?at most 4 times"}},

		"producers may roll up": {setUp: of(testNames.Stream, func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }),
			want: expected{events: "!allows roll-ups"}},
		"producers may schedule": {setUp: of(testNames.Stream, func(c *jetstream.StreamConfig) {
			c.AllowMsgSchedules, c.DenyPurge, c.Discard = true, false, jetstream.DiscardOld
		}), want: expected{events: "!allows message schedules"}},
		"without bounds": {setUp: stream(func(c *jetstream.StreamConfig) {
			c.MaxBytes, c.MaxAge, c.MaxMsgsPerSubject = 0, 0, 0
		}), want: expected{
			events: "?no bound in bytes, for ever; replicas: 1; one that is created has at most 64MiB", waiting: "no bound in bytes, for ever",
			letters: "?no bound for each subject, so one producer takes the room of all; expected 100",
		}},
		"the oldest go": {setUp: stream(func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }),
			want: expected{events: "?loses its oldest messages, whoever they belong to", letters: "?loses its oldest messages"}},
		"a room without schedules": {setUp: of(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.AllowMsgSchedules, c.AllowRollup = false, false }),
			want: expected{waiting: "!does not allow message schedules"}},
		"a room of limits": {setUp: of(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }),
			want: expected{waiting: "!has retention Limits"}},
		"a room of another subject": {setUp: of(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Subjects = []string{"notify-room.due.>"} }),
			want: expected{waiting: "!lacks the subject notify-room.>", stays: "!no stream takes them", readies: "!takes notify-room.due.>"}},
		"a room that forgets too soon": {setUp: all, names: func(n *Names) { n.LongestDelay = 8 * 24 * time.Hour },
			want: expected{waiting: "!keeps messages for 168h0m0s, and events may wait for 192h0m0s"}},
		"a consumer of the room that takes all": {setUp: func(f *fixture) {
			of(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Description = bare })(f)
			c := jetstream.ConsumerConfig{Durable: testNames.roomConsumer(), AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience}
			testkit.Must(f.js.CreateConsumer(f.Context(), testNames.RoomStream, c))(f)
		}, want: expected{readies: "!takes everything, expected the filter notify-room.due.>, notify-room.part.>, notify-room.replay.>"}},

		"nothing is there, and no right to make streams": {provision: true, denied: []string{"$JS.API.STREAM.CREATE.>"},
			want: expected{permissions: "!STREAM.CREATE.EVENTS"}},
		"no consumer, and no right to make one": {setUp: of(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare }), provision: true,
			denied: []string{"$JS.API.CONSUMER.CREATE.EVENTS.>"}, want: expected{consumer: "the worker creates it", permissions: "!CONSUMER.CREATE.EVENTS.notifier"}},
		"no right to take events":        {setUp: all, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.EVENTS.>"}, want: expected{permissions: "!CONSUMER.MSG.NEXT.EVENTS.notifier"}},
		"no right to take from the room": {setUp: all, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.ROOM.>"}, want: expected{permissions: "!CONSUMER.MSG.NEXT.ROOM.notifier-"}},
		"no right to settle them":        {setUp: all, denied: []string{"$JS.ACK.EVENTS.>"}, want: expected{permissions: "!$JS.ACK.EVENTS.notifier"}},
		"no right to serve channels":     {setUp: all, denied: []string{"$JS.API.CONSUMER.CREATE.ROOM.>"}, want: expected{permissions: "!CONSUMER.CREATE.ROOM.notifier-channel-check"}},
		"no right to make room":          {setUp: all, denied: []string{"$JS.API.STREAM.PURGE.DEAD"}, want: expected{permissions: "!STREAM.PURGE.DEAD"}},
		"no right to store in the room":  {setUp: all, denied: []string{"notify-room.>"}, want: expected{stays: "!notify-room.part.check"}},
		"no right to store dead letters": {setUp: all, denied: []string{"notify-dlq.>"}, want: expected{buried: "!notify-dlq.check"}},
		"no right to see the consumer":   {setUp: all, denied: []string{"$JS.API.CONSUMER.INFO.EVENTS.>"}, want: expected{consumer: "!CONSUMER.INFO.EVENTS.notifier"}},
		"no right to see the streams":    {setUp: all, denied: []string{"$JS.API.STREAM.INFO.EVENTS"}, want: expected{events: "!STREAM.INFO.EVENTS"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := limited(t, test.denied...)
			if test.setUp != nil {
				test.setUp(f)
			}
			names := testNames
			if test.names != nil {
				test.names(&names)
			}
			before := f.streams()
			findings := f.check(f.connectLimited(), names, test.provision, patience)
			for subject, want := range test.want {
				if !slices.ContainsFunc(findings, func(found Finding) bool { return found.Subject == subject && found.says(want) }) {
					t.Errorf("nothing says %q of %s: %v", want, subject, findings)
				}
			}
			for _, found := range findings {
				if want, named := test.want[found.Subject]; found.Err != nil && !found.Warning && (!named || !strings.HasPrefix(want, "!")) && len(test.denied) == 0 {
					t.Errorf("%s: %v, want nothing wrong", found.Subject, found.Err)
				}
			}
			if after := f.streams(); after != before {
				t.Errorf("after the check there is\n%s\nand before it there was\n%s", after, before)
			}
		})
	}
}

// says tells whether a finding is as expected.
func (f Finding) says(want string) bool {
	wrong, isWrong := strings.CutPrefix(want, "!")
	text, isWarning := strings.CutPrefix(wrong, "?")
	if !isWrong && !isWarning {
		return f.Err == nil && strings.Contains(f.Note, text)
	}
	return f.Err != nil && f.Warning == isWarning && strings.Contains(f.Err.Error(), text)
}

// streams is how all streams and consumers are set up, and what they hold.
func (f *fixture) streams() string {
	f.Helper()
	var text strings.Builder
	list := f.js.ListStreams(f.Context())
	for info := range list.Info() {
		fmt.Fprintf(&text, "%+v %d to %d\n", info.Config, info.State.FirstSeq, info.State.LastSeq)
		stream := testkit.Must(f.js.Stream(f.Context(), info.Config.Name))(f)
		consumers := stream.ListConsumers(f.Context())
		for consumer := range consumers.Info() {
			fmt.Fprintf(&text, "  %s %v\n", consumer.Name, consumer.Delivered)
		}
	}
	if list.Err() != nil {
		f.Fatal(list.Err())
	}
	return text.String()
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
