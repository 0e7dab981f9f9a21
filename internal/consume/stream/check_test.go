package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Subjects of findings.
const (
	eventStream, roomStream, letterStream = `nats stream "EVENTS"`, `nats stream "ROOM"`, `nats stream "DEAD"`
	eventConsumer, roomConsumer           = `nats consumer "notifier" of stream "EVENTS"`, `nats consumer "notifier-room" of stream "ROOM"`
	roomStored, lettersStored             = `nats events that wait on "notify-room.>"`, `nats dead letters on "notify-dlq.>"`
	permissionsFound, replicasFound       = "nats permissions", "nats replicas"
	accountFound                          = "nats account"
	journalStream, journalStored          = `nats stream "JOURNAL"`, `nats journal on "notify-journal.>"`
)

var testJournal = journal.Names{Stream: "JOURNAL", Subject: testNames.Subject, Age: 24 * time.Hour, MaxBytes: 1 << 20}

// expected has a part of the note for each subject, of the error after "!", or of the warning after "?".
type expected map[string]string

type checkCase struct {
	setUp     func(*fixture)
	denied    []string
	provision bool
	names     func(*Names)
	want      expected
}

func provisioned(f *fixture) {
	f.provision()
	testkit.Must(f.js.CreateKeyValue(f.Context(), jetstream.KeyValueConfig{Bucket: "limits"}))(f)
	f.event("payments", "order-1")
}

// bare is the description of a stream without a consumer.
const bare = "without a consumer"

// withStreams replaces each stream that differs after the change.
func withStreams(change func(*jetstream.StreamConfig)) func(*fixture) {
	return func(f *fixture) {
		f.provision()
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
			consumer := testNames.ConsumerConfig(ackWait, c.Subjects)
			if c.Name == testNames.RoomStream {
				consumer = testNames.RoomConsumerConfig(ackWait)
				if !slices.Contains(c.Subjects, testNames.Room().All()) {
					consumer.FilterSubjects = c.Subjects
				}
			}
			testkit.Must(f.js.CreateConsumer(f.Context(), c.Name, consumer))(f)
		}
	}
}

func withStream(name string, change func(*jetstream.StreamConfig)) func(*fixture) {
	return withStreams(func(c *jetstream.StreamConfig) {
		if c.Name == name {
			change(c)
		}
	})
}

func withConsumer(change func(*jetstream.ConsumerConfig)) func(*fixture) {
	return func(f *fixture) {
		withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare })(f)
		c := jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait}
		change(&c)
		testkit.NoError(f, f.createConsumer(c))
	}
}

var checksOfPresence = map[string]checkCase{
	"all is there": {setUp: provisioned, want: expected{
		eventConsumer: "1 events are waiting", roomConsumer: "0 events are waiting", eventStream: "at most 64MiB, for 7d; replicas: 1", roomStream: "no bound in bytes, for 7d",
		letterStream: "at most 64MiB, 100 messages on each subject, for 30d", roomStored: "would be stored", lettersStored: "would be stored", permissionsFound: "is allowed",
		replicasFound: "?one server keeps EVENTS, ROOM, DEAD, KV_limits: a power failure", accountFound: "?$G, which is the account of every user who has no other one",
	}},
	"nothing is there": {want: expected{
		eventConsumer: "!run notifier provision", roomConsumer: "!run notifier provision", eventStream: "!run notifier provision", roomStream: "!run notifier provision", letterStream: "!run notifier provision", roomStored: "!no stream takes them",
		lettersStored: "!no stream takes them", permissionsFound: "is allowed",
	}},
	"another stream has the subjects": {setUp: provisioned, provision: true, names: func(n *Names) { n.Stream, n.RoomStream, n.DeadLetterStream = "E", "R", "D" }, want: expected{
		`nats stream "E"`: "!no worker can create it: another stream has a subject of notify, notify.>; correct NOTIFIER_NATS_STREAM, or NOTIFIER_NATS_SUBJECT if", `nats stream "R"`: "!correct NOTIFIER_ROOM_STREAM",
		`nats stream "D"`: "!correct NOTIFIER_DLQ_STREAM, or NOTIFIER_DLQ_SUBJECT if this is another deployment",
	}},
	"nothing is there, and can be made": {provision: true, want: expected{
		eventConsumer: "the worker creates it", roomConsumer: "the worker creates it", eventStream: "creates it: at most 64MiB, for 7d", roomStream: "creates it: no bound",
		letterStream: "the worker creates it", roomStored: "the worker creates it", lettersStored: "the worker creates it", permissionsFound: "is allowed",
	}},
	"no room in the stream": {setUp: func(f *fixture) {
		withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.MaxBytes = 1<<18 + headerBytes })(f)
		f.event("payments", "order-1")
	}, want: expected{eventStream: "?in 1 messages: it refuses events until workers have taken some"}},
	"no consumer":         {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare }), want: expected{eventConsumer: "!run notifier provision"}},
	"no consumer of room": {setUp: withStream(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Description = bare }), want: expected{roomConsumer: "!run notifier provision"}},
	"push":                {setUp: withConsumer(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }), want: expected{eventConsumer: "!not a pull consumer"}},
	"an ack wait shorter than a post": {setUp: withConsumer(func(c *jetstream.ConsumerConfig) { c.AckWait = time.Second }),
		want: expected{eventConsumer: "!has an acknowledgement wait of 1s, and one post may take 2s"}},
	"other settings": {setUp: withConsumer(func(c *jetstream.ConsumerConfig) { c.AckWait, c.MaxDeliver = time.Minute, 4 }),
		want: expected{eventConsumer: "?at most 4 times"}},
	"some of the events": {setUp: withConsumer(func(c *jetstream.ConsumerConfig) { c.FilterSubject = "notify.payments" }),
		want: expected{eventConsumer: "!takes notify.payments, expected the filter notify, notify.>; notifier provision corrects it"}},
	"paused": {setUp: withConsumer(func(c *jetstream.ConsumerConfig) { c.PauseUntil = new(time.Now().Add(time.Hour)) }),
		want: expected{eventConsumer: "?it delivers nothing: somebody paused it until 20"}},
}

// queueConsumer is the subject of a finding about the queue of the channel "ops".
var queueConsumer = fmt.Sprintf(`nats consumer %q of stream "ROOM", of the channel ops`, testNames.ChannelConsumer(room.Token("ops")))

// unnamedQueue is the subject of a finding about the queue of a channel that the settings do not name.
func unnamedQueue(channel string) string {
	return fmt.Sprintf(`nats consumer %q of stream "ROOM", of a channel that the settings here do not name`, testNames.ChannelConsumer(room.Token(channel)))
}

func withQueue(change func(*jetstream.ConsumerConfig)) func(*fixture) {
	return func(f *fixture) {
		f.provision()
		c := testNames.ChannelConsumerConfig(room.Token("ops"), ackWait)
		change(&c)
		testkit.Must(f.js.CreateConsumer(f.Context(), testNames.RoomStream, c))(f)
	}
}

var checksOfQueues = map[string]checkCase{
	"a queue without bodies": {setUp: withQueue(func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true }),
		want: expected{queueConsumer: "!(headers_only); nats consumer rm ROOM " + testNames.ChannelConsumer(room.Token("ops")) + ": a worker recreates it"}},
	"a queue of small batches": {setUp: withQueue(func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 1 }), want: expected{queueConsumer: "!exceed its max_batch"}},
	"a queue of few bytes":     {setUp: withQueue(func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 100 }), want: expected{queueConsumer: "!exceed its max_batch, max_bytes"}},
	"a queue of short requests": {setUp: withQueue(func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Second }),
		want: expected{queueConsumer: "!max_expires"}},
	"a queue of a channel without a name here": {setUp: func(f *fixture) {
		f.provision()
		for _, first := range []string{"payments", "security"} {
			testkit.Must(f.js.Publish(f.Context(), testNames.Room().Channel(room.Token("earlier"), first), nil))(f)
		}
		c := testNames.ChannelConsumerConfig(room.Token("later"), ackWait)
		c.HeadersOnly = true
		testkit.Must(f.js.CreateConsumer(f.Context(), testNames.RoomStream, c))(f)
		testkit.Must(f.js.Publish(f.Context(), testNames.Room().Channel(room.Token("later"), "security"), nil))(f)
	}, want: expected{
		unnamedQueue("earlier"): "2 events wait; every worker reads the queue", unnamedQueue("later"): "!(headers_only)",
	}},
	"a queue of groups": {setUp: withQueue(func(c *jetstream.ConsumerConfig) {
		c.PriorityGroups, c.PriorityPolicy = []string{"a"}, jetstream.PriorityPolicyOverflow
	}), want: expected{queueConsumer: "!priority_groups"}},
	"a queue that gives up": {setUp: withQueue(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 4 }), want: expected{queueConsumer: "?at most 4 times"}},
}

var checksOfSettings = map[string]checkCase{
	"producers may roll up": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.AllowRollup, c.DenyPurge = true, false }),
		want: expected{eventStream: "!allows roll-ups"}},
	"producers may schedule": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) {
		c.AllowMsgSchedules, c.DenyPurge, c.Discard = true, false, jetstream.DiscardOld
	}), want: expected{eventStream: "!allows message schedules"}},
	"without bounds": {setUp: withStreams(func(c *jetstream.StreamConfig) {
		c.MaxBytes, c.MaxAge, c.MaxMsgsPerSubject, c.DiscardNewPerSubject = 0, 0, 0, false
	}), want: expected{
		eventStream: "?no bound in bytes, for ever; replicas: 1; one that is created has at most 64MiB", roomStream: "no bound in bytes, for ever",
		letterStream: "?no bound for each subject, so one producer takes the room of all; expected 100",
	}},
	"in memory": {setUp: withStreams(func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }), want: expected{
		eventStream: "?Memory storage, which loses all messages when its servers stop; expected File", roomStream: "?Memory storage", letterStream: "?Memory storage",
	}},
	"few messages": {setUp: withStreams(func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }), want: expected{eventStream: "at most 64MiB, at most 10 messages"}},
	"the oldest go": {setUp: withStreams(func(c *jetstream.StreamConfig) { c.Discard, c.DiscardNewPerSubject = jetstream.DiscardOld, false }),
		want: expected{eventStream: "?loses its oldest messages, whoever they belong to", letterStream: "?loses its oldest messages"}},
	"with the wrong bounds": {setUp: withStreams(func(c *jetstream.StreamConfig) {
		c.Discard, c.MaxBytes, c.MaxMsgs, c.MaxMsgsPerSubject, c.DiscardNewPerSubject = jetstream.DiscardOld, 0, 0, 100, false
	}), want: expected{eventStream: "?loses its oldest messages, whoever", roomStream: "?loses its oldest messages; expected no bound in messages or bytes", letterStream: "?nobody counts it"}},
	"dead letters go uncounted": {setUp: withStream(testNames.DeadLetterStream, func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = false }),
		want: expected{letterStream: "?on a full subject it loses the oldest message, and nobody counts it; expected discard_new_per_subject"}},
	"few messages of a subject": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 10 }),
		want: expected{eventStream: "?on a full subject it loses the oldest message; expected no bound for each subject"}},
	"small messages": {setUp: withStreams(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 18 }), want: expected{
		eventStream: "?more than 256KiB (max_msg_size); expected at least 260KiB", roomStream: "?max_msg_size", letterStream: "?max_msg_size",
	}},
	"messages of any event": {setUp: withStreams(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 260 << 10 }), want: expected{
		eventStream: "at most 64MiB", roomStream: "no bound in bytes", letterStream: "at most 64MiB",
	}},
	"stored elsewhere": {setUp: withStreams(func(c *jetstream.StreamConfig) {
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: c.Subjects[len(c.Subjects)-1], Destination: "elsewhere.>"}
	}), want: expected{eventStream: "?subject_transform to elsewhere.>", roomStream: "?subject_transform", letterStream: "?subject_transform"}},
	"copied": {setUp: withStreams(func(c *jetstream.StreamConfig) {
		c.RePublish = &jetstream.RePublish{Source: c.Subjects[len(c.Subjects)-1], Destination: "elsewhere.>"}
	}), want: expected{eventStream: "?republish to elsewhere.>", roomStream: "?republish", letterStream: "?republish"}},
	"unconfirmed": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.NoAck = true }),
		want: expected{eventStream: "?it does not confirm what it stores (no_ack)"}},
	"sealed": {setUp: func(f *fixture) {
		f.provision()
		config := f.streamInfo(testNames.Stream).Config
		config.Sealed = true
		testkit.Must(f.js.UpdateStream(f.Context(), config))(f)
	}, want: expected{eventStream: "?it is sealed"}},
	"a journal": {
		setUp: func(f *fixture) {
			f.provision()
			testkit.NoError(f, testJournal.Provision(f.Context(), f.js))
		},
		names: func(n *Names) { n.Journal = testJournal },
		want:  expected{journalStream: "at most 1MiB, for 1d; replicas: 1", journalStored: "would be stored"},
	},
	"no journal": {
		setUp: provisioned, names: func(n *Names) { n.Journal = testJournal },
		want: expected{journalStream: "?run notifier provision", journalStored: "?no stream takes them"},
	},
	"a room without schedules": {setUp: withStream(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.AllowMsgSchedules, c.AllowRollup = false, false }),
		want: expected{roomStream: "!does not allow message schedules"}},
	"a producers' stream of limits": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }),
		want: expected{eventStream: "!has retention Limits"}},
	"a room of limits": {setUp: withStream(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }),
		want: expected{roomStream: "!has retention Limits"}},
	"a room of another subject": {setUp: withStream(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Subjects = []string{"notify-room.due.>"} }),
		want: expected{roomStream: "!lacks the subject notify-room.>", roomStored: "!no stream takes them", roomConsumer: "!takes notify-room.due.>"}},
	"a room that forgets too soon": {setUp: provisioned, names: func(n *Names) { n.LongestWait = 8 * 24 * time.Hour },
		want: expected{roomStream: "!keeps messages for 168h0m0s, and a message may wait for 192h0m0s"}},
	"a consumer of the room that takes all": {setUp: func(f *fixture) {
		withStream(testNames.RoomStream, func(c *jetstream.StreamConfig) { c.Description = bare })(f)
		c := jetstream.ConsumerConfig{Durable: testNames.roomConsumer(), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait}
		testkit.Must(f.js.CreateConsumer(f.Context(), testNames.RoomStream, c))(f)
	}, want: expected{roomConsumer: "!takes everything, expected the filter notify-room.due.>, notify-room.part.>, notify-room.replay.>"}},
}

var checksOfRights = map[string]checkCase{
	"nothing is there, and no right to make streams": {provision: true, denied: []string{"$JS.API.STREAM.CREATE.>"},
		want: expected{permissionsFound: "!STREAM.CREATE.EVENTS"}},
	"no consumer, and no right to make one": {setUp: withStream(testNames.Stream, func(c *jetstream.StreamConfig) { c.Description = bare }), provision: true,
		denied: []string{"$JS.API.CONSUMER.CREATE.EVENTS.>"}, want: expected{eventConsumer: "the worker creates it", permissionsFound: "!CONSUMER.CREATE.EVENTS.notifier"}},
	"no right to take events":        {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.EVENTS.>"}, want: expected{permissionsFound: "!CONSUMER.MSG.NEXT.EVENTS.notifier"}},
	"no right to take from the room": {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.ROOM.>"}, want: expected{permissionsFound: "!CONSUMER.MSG.NEXT.ROOM.notifier-"}},
	"no right to settle them":        {setUp: provisioned, denied: []string{"$JS.ACK.EVENTS.>"}, want: expected{permissionsFound: "!$JS.ACK.EVENTS.notifier"}},
	"no right to serve channels":     {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.CREATE.ROOM.>"}, want: expected{permissionsFound: "!CONSUMER.CREATE.ROOM.notifier-channel-check"}},
	"no right to make room":          {setUp: provisioned, denied: []string{"$JS.API.STREAM.PURGE.DEAD"}, want: expected{permissionsFound: "!STREAM.PURGE.DEAD"}},
	"no right to store in the room":  {setUp: provisioned, denied: []string{"notify-room.>"}, want: expected{roomStored: "!notify-room.part.check"}},
	"no right to store dead letters": {setUp: provisioned, denied: []string{"notify-dlq.>"}, want: expected{lettersStored: "!notify-dlq.check"}},
	"no right to see the consumer":   {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.INFO.EVENTS.>"}, want: expected{eventConsumer: "!CONSUMER.INFO.EVENTS.notifier"}},
	"no right to see the account":    {setUp: provisioned, denied: []string{"$SYS.REQ.USER.INFO"}, want: expected{accountFound: "?the right to publish $SYS.REQ.USER.INFO is missing"}},
	"no right to remove letters":     {setUp: provisioned, denied: []string{"$JS.API.STREAM.MSG.DELETE.DEAD"}, want: expected{permissionsFound: "!STREAM.MSG.DELETE.DEAD"}},
	"no right to answer":             {setUp: provisioned, denied: []string{"_INBOX.>"}, want: expected{permissionsFound: "!allow_responses"}},
	"no right to ask for settings":   {setUp: provisioned, denied: []string{"$SRV.STATUS.notifier"}, want: expected{permissionsFound: "!$SRV.STATUS.notifier"}},
	"no right to sweep letters":      {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.CREATE.DEAD.>"}, want: expected{permissionsFound: "!CONSUMER.CREATE.DEAD.check.notify-dlq.>"}},
	"no right to read letters":       {setUp: provisioned, denied: []string{"$JS.API.CONSUMER.MSG.NEXT.DEAD.>"}, want: expected{permissionsFound: "!CONSUMER.MSG.NEXT.DEAD.check"}},
	"no right to sweep the journal": {setUp: provisioned, names: func(n *Names) { n.Journal = testJournal }, denied: []string{"$JS.API.STREAM.MSG.DELETE.JOURNAL"},
		want: expected{permissionsFound: "!STREAM.MSG.DELETE.JOURNAL"}},
	"no right to end live limits": {setUp: provisioned, denied: []string{"$KV.limits.>"}, want: expected{permissionsFound: "!$KV.limits.check"}},
	"no right to see the streams": {setUp: provisioned, denied: []string{"$JS.API.STREAM.INFO.EVENTS"}, want: expected{eventStream: "!STREAM.INFO.EVENTS"}},
}

// What the server denies for one subject is no finding of another subject.
func TestCheckOfSeveralDenials(t *testing.T) {
	t.Parallel()
	f := limited(t, "notify-room.>", "notify-dlq.>")
	provisioned(f)
	for _, found := range f.check(Options{Connection: f.connectLimited(), Names: testNames, AckWait: ackWait, Longest: 2 * time.Second}) {
		if found.Subject == lettersStored {
			testkit.Fails(t, lettersStored, found.Err, nil, "notify-dlq.check.check")
			testkit.Lacks(t, lettersStored, found.Err.Error(), "notify-room.", "deadline")
		}
	}
}

// TestCheck finds each fault of a setup and the bounds of the streams. Check changes nothing.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, cases := range []map[string]checkCase{checksOfPresence, checksOfQueues, checksOfSettings, checksOfRights} {
		testkit.Each(t, cases, func(t *testing.T, test checkCase) {
			f := limited(t, test.denied...)
			if test.setUp != nil {
				test.setUp(f)
			}
			names := testNames
			if test.names != nil {
				test.names(&names)
			}
			before := f.streams()
			findings := f.check(Options{Connection: f.connectLimited(), Names: names, Provision: test.provision, AckWait: ackWait, Longest: 2 * time.Second})
			for subject, want := range test.want {
				testkit.Check(t, slices.ContainsFunc(findings, func(found Finding) bool { return found.Subject == subject && found.says(want) }),
					"finding of %s: got %v, want %q", subject, findings, want)
			}
			for _, found := range findings {
				if want, named := test.want[found.Subject]; found.Err != nil && !found.Warning && (!named || !strings.HasPrefix(want, "!")) && len(test.denied) == 0 {
					t.Errorf("%s: got %v, want no error", found.Subject, found.Err)
				}
			}
			testkit.Equal(t, f.streams(), before, "streams after the check")
		})
	}
}

// says reports whether a finding has an expected text.
func (f Finding) says(want string) bool {
	wrong, isWrong := strings.CutPrefix(want, "!")
	text, isWarning := strings.CutPrefix(wrong, "?")
	if !isWrong && !isWarning {
		return f.Err == nil && strings.Contains(f.Note, text)
	}
	return f.Err != nil && f.Warning == isWarning && strings.Contains(f.Err.Error(), text)
}

// streams shows the configuration and the content of all streams and consumers.
func (f *fixture) streams() string {
	f.Helper()
	var text strings.Builder
	list := f.js.ListStreams(f.Context())
	for info := range list.Info() {
		fmt.Fprintf(&text, "%s %d to %d\n", testkit.Must(json.Marshal(info.Config))(f), info.State.FirstSeq, info.State.LastSeq)
		stream := testkit.Must(f.js.Stream(f.Context(), info.Config.Name))(f)
		consumers := stream.ListConsumers(f.Context())
		for consumer := range consumers.Info() {
			fmt.Fprintf(&text, "  %s %v\n", consumer.Name, consumer.Delivered)
		}
	}
	testkit.NoError(f, list.Err())
	return text.String()
}

// TestCheckOfAccounts has producers inside the workers' account and outside. Check warns of those inside.
func TestCheckOfAccounts(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, `accounts {
		WORKERS { jetstream: enabled, exports: [{ service: "notify.>" }], users: [
			{ user: worker, password: secret }, { user: shares, password: secret }
			{ user: blind, password: secret, permissions: { publish: { deny: "$SYS.REQ.ACCOUNT.>" } } } ] }
		PRODUCERS { imports: [{ service: { account: WORKERS, subject: "notify.>" } }], users: [{ user: producer, password: secret }] } }`)
	f := newFixtureOn(t, n, nats.UserInfo("producer", "secret"))
	f.connect(ConnectOptions{URL: n.URL, User: "producer", Password: "secret", Name: "notifier ingest"})
	want := func(user, text string) {
		t.Helper()
		c := f.connect(ConnectOptions{URL: n.URL, User: user, Password: "secret"})
		f.eventually("it is connected", c.Conn.IsConnected)
		findings := f.check(Options{Connection: c, Names: testNames, Provision: true, AckWait: ackWait})
		testkit.Check(t, slices.ContainsFunc(findings, func(found Finding) bool { return found.Subject == accountFound && found.says(text) }),
			"findings of %s: got %v, want %q", user, findings, text)
	}
	want("worker", "WORKERS; only programs of the notifier are connected")
	want("blind", "?WORKERS; who else is connected to it cannot be seen (the right to publish $SYS.REQ.ACCOUNT.PING.CONNZ is missing)")
	for _, name := range []string{"notifier ingest", "", "a", "b", "c", "d", "e"} {
		servertest.Connect(t, n.URL, nats.UserInfo("shares", "secret"), nats.Name(name))
	}
	want("worker", `?WORKERS, to which others are connected too: "a" (user "shares"), "b" (user "shares"), "c" (user "shares"), "d" (user "shares"), `+
		`"e" (user "shares"), and 2 more. If one of them publishes events`)
}

// TestCheckOfStorage fills the storage of an account, which refuses events then. A user who may not ask gets no finding about it.
func TestCheckOfStorage(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, `accounts { WORKERS { jetstream: { max_store: 307200, max_mem: 0 }, users: [
		{ user: worker, password: secret }, { user: blind, password: secret, permissions: { publish: { deny: "$JS.API.INFO" } } } ] } }`)
	f := newFixtureOn(t, n, nats.UserInfo("worker", "secret"))
	found := func(user string) (about []Finding) {
		t.Helper()
		c := f.connect(ConnectOptions{URL: n.URL, User: user, Password: "secret"})
		f.eventually("it is connected", c.Conn.IsConnected)
		findings := f.check(Options{Connection: c, Names: testNames, Provision: true, AckWait: ackWait})
		return slices.DeleteFunc(findings, func(found Finding) bool { return found.Subject != "nats storage" })
	}
	testkit.Must(f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FILLER", Subjects: []string{"filler"}}))(t)
	testkit.EqualSlices(t, found("worker"), nil, "findings about empty storage")
	var refused error
	for refused == nil {
		_, refused = f.js.Publish(t.Context(), "filler", make([]byte, 50<<10))
	}
	testkit.Fails(t, "publish", refused, nil, "resource limits exceeded for account")
	if full := found("worker"); len(full) != 1 || !full[0].says("!of its 307200 bytes: JetStream refuses events") {
		t.Errorf("findings about full storage: got %+v, want one", full)
	}
	testkit.EqualSlices(t, found("blind"), nil, "findings of a user who may not ask")
}

func TestCheckWithoutJetStream(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t, func(o *server.Options) { o.JetStream = false })
	f := newFixtureOn(t, n)
	c := f.connect(ConnectOptions{URL: n.URL})
	f.eventually("it is connected", c.Conn.IsConnected)
	findings := f.check(Options{Connection: c, Names: testNames, Provision: true, AckWait: ackWait})
	testkit.Check(t, len(findings) == 1 && findings[0].says("!is JetStream enabled"), "findings: got %+v, want one error about JetStream", findings)
	for _, provisioned := range (Provisioning{JetStream: f.js, Names: testNames, AckWait: ackWait}).Apply(t.Context()) {
		testkit.Fails(t, provisioned.Subject, provisioned.Err, nil, "is JetStream enabled")
	}
	ctx, cancel := context.WithCancel(t.Context())
	client := testkit.Must(NewClient(Options{Connection: c, Names: testNames, Provision: true, AckWait: ackWait, Logger: f.log.Logger()}))(t)
	var searching sync.WaitGroup
	searching.Go(func() { _ = client.Find(ctx) })
	f.eventually("the worker's log names the cause", func() bool { return len(f.log.Lines("is JetStream enabled")) == 1 })
	cancel()
	searching.Wait()
}
