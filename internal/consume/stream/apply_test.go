package stream

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// provisioning is that of the test's names.
func (f *fixture) provisioning(change func(*Provisioning)) Provisioning {
	p := Provisioning{JetStream: f.js, Names: testNames, AckWait: ackWait}
	p.Names.Journal = testJournal
	if change != nil {
		change(&p)
	}
	return p
}

// applied provisions, and returns what was changed, by subject. Nothing may fail.
func (f *fixture) applied(p Provisioning) map[string]string {
	f.Helper()
	changes := make(map[string]string)
	for _, done := range p.Apply(f.Context()) {
		testkit.NoError(f, done.Err)
		if len(done.Changes) > 0 || done.Created {
			changes[done.Subject] = strings.Join(done.Changes, "; ")
		}
	}
	return changes
}

// TestApplyMakesWhatWorkersMake compares streams and consumers with those that a worker makes.
func TestApplyMakesWhatWorkersMake(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	created := f.applied(f.provisioning(nil))
	testkit.Equal(t, len(created), 6, "created streams and consumers")
	f.requireProvisioned()
	before := f.state()
	testkit.EqualMaps(t, f.applied(f.provisioning(nil)), map[string]string{}, "changes of another run")
	f.provision()
	testkit.Equal(t, f.state(), before, "configuration after a worker's start")
}

// TestApplyUpdates provisions after others have changed everything that the settings decide, first without an effect.
func TestApplyUpdates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.Must(f.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: testNames.Stream, Subjects: []string{"notify.>", "more"}, Retention: jetstream.WorkQueuePolicy, AllowRollup: true, Description: "mine",
	}))(t)
	testkit.NoError(t, f.createConsumer(jetstream.ConsumerConfig{
		Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, MaxAckPending: 10,
		BackOff: []time.Duration{time.Second, 2 * time.Second}, FilterSubject: "notify.payments",
		HeadersOnly: true, MaxRequestBatch: 1, MaxRequestMaxBytes: 1000, MaxRequestExpires: time.Second,
		PriorityGroups: []string{"group"}, PriorityPolicy: jetstream.PriorityPolicyPinned, PinnedTTL: time.Minute,
	}))
	f.event("payments", "order-1")

	altered := f.state()
	want := map[string]string{
		"stream EVENTS": "subject notify; max_bytes 64MiB, was unlimited; max_age 7d, was unlimited; discard DiscardNew, was DiscardOld; " +
			"allow_rollup_hdrs false, was true; deny_purge true, was false",
		"consumer notifier of stream EVENTS": "filter notify, notify.>, was notify.payments; no backoff; no priority_groups; ack_wait 30s, was 1s; " +
			"max_deliver unlimited, was 3; max_ack_pending 20000, was 10; headers_only false, was true; " +
			"max_batch unlimited, was 1; max_bytes unlimited, was 1000; max_expires unlimited, was 1s; created anew",
	}
	dry := f.applied(f.provisioning(func(p *Provisioning) { p.DryRun = true }))
	testkit.Equal(t, f.state(), altered, "configuration after a dry run")
	done := f.applied(f.provisioning(nil))
	testkit.EqualSlices(t, slices.Sorted(maps.Keys(done)), slices.Sorted(maps.Keys(dry)), "what is changed, and what a dry run names")
	for subject, changes := range want {
		testkit.EqualSlices(t, []string{dry[subject], done[subject]}, []string{changes, changes}, "changes of %s", subject)
	}
	testkit.EqualMaps(t, f.applied(f.provisioning(nil)), map[string]string{}, "changes of another run")

	// What others added, and the settings do not decide, stays.
	config := f.streamInfo(testNames.Stream).Config
	testkit.EqualSlices(t, slices.Sorted(slices.Values(config.Subjects)), []string{"more", "notify", "notify.>"}, "subjects")
	testkit.Equal(t, config.Description, "mine", "description")
	testkit.Equal(t, f.streamInfo(testNames.Stream).State.Msgs, 1, "stored events")
}

// TestApplyUndoesWhatLosesEvents provisions streams that refuse large events, push out old ones, store events under other subjects, copy them and
// confirm none. A larger bound stays.
func TestApplyUndoesWhatLosesEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	withStreams(func(c *jetstream.StreamConfig) {
		c.MaxMsgSize, c.NoAck = 1000, true
		if c.Name == testNames.RoomStream {
			c.MaxMsgs = 10
		}
		c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: c.Subjects[0], Destination: "elsewhere." + c.Subjects[0]}
		c.RePublish = &jetstream.RePublish{Source: ">", Destination: "copies.>"}
	})(f)
	const maxBody = 1 << 18
	sufficient := func(p *Provisioning) { p.MaxBody = maxBody }
	dry := f.applied(f.provisioning(func(p *Provisioning) { p.MaxBody, p.DryRun = maxBody, true }))
	done := f.applied(f.provisioning(sufficient))
	for _, name := range []string{testNames.Stream, testNames.RoomStream, testNames.DeadLetterStream} {
		want := "max_msg_size 260KiB, was 1000 bytes; no subject_transform; no republish; no_ack false, was true"
		if name == testNames.RoomStream {
			want = strings.Replace(want, "no_ack", "max_msgs unlimited, was 10; no_ack", 1)
		}
		testkit.EqualSlices(t, []string{dry["stream "+name], done["stream "+name]}, []string{want, want}, "changes of %s", name)
		config := f.streamInfo(name).Config
		testkit.Equal(t, config.SubjectTransform == nil && config.RePublish == nil, true, "%s neither changes subjects nor copies", name)
		testkit.Equal(t, config.MaxMsgSize, maxBody+headerBytes, "max_msg_size of %s", name)
	}
	testkit.EqualMaps(t, f.applied(f.provisioning(sufficient)), map[string]string{}, "changes of another run")
	testkit.EqualMaps(t, f.applied(f.provisioning(func(p *Provisioning) { p.MaxBody = 1000 })), map[string]string{}, "changes for smaller events")
}

// TestApplyKeepsConsumers provisions consumers that take everything, and a consumer whose filter cannot be widened. None is lost.
func TestApplyKeepsConsumers(t *testing.T) {
	t.Parallel()
	type keptCase struct {
		filter []string
		others string // the filter of another consumer; "": there is no other
		fails  bool
	}
	testkit.Each(t, map[string]keptCase{
		"all subjects":              {filter: testNames.Subjects()},
		"everything":                {filter: []string{">"}},
		"beside another consumer's": {filter: []string{"notify.payments"}, others: "notify.audit", fails: true},
	}, func(t *testing.T, test keptCase) {
		f := newFixture(t)
		testkit.Must(f.js.CreateStream(t.Context(), testNames.StreamConfig()))(t)
		config := testNames.ConsumerConfig(ackWait, nil)
		config.FilterSubjects = test.filter
		testkit.NoError(t, f.createConsumer(config))
		if test.others != "" {
			testkit.NoError(t, f.createConsumer(jetstream.ConsumerConfig{Durable: "others", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: test.others}))
		}
		info := func() *jetstream.ConsumerInfo {
			return testkit.Must(f.js.Consumer(t.Context(), testNames.Stream, testNames.Consumer))(t).CachedInfo()
		}
		before := info()
		done := f.provisioning(nil).Apply(t.Context())[1]
		testkit.Equal(t, done.Err != nil, test.fails, "failure: %v", done.Err)
		if test.fails {
			testkit.EqualSlices(t, filtersOf(info().Config), test.filter, "filter of the consumer")
		} else {
			testkit.Equal(t, info().Created, before.Created, "creation of the consumer")
		}
	})
}

// TestApplyCreatesADeletedConsumer has NATS hang when a consumer that was deleted is to be created anew, and a person interrupt the command. The consumer
// is created, or the error says how.
func TestApplyCreatesADeletedConsumer(t *testing.T) {
	t.Parallel()
	type deletedCase struct {
		hangs int // times
		says  string
	}
	testkit.Each(t, map[string]deletedCase{
		"for a moment": {hangs: createTries - 1},
		"for long":     {hangs: createTries, says: "is absent now, so no worker gets events: run notifier provision again, which creates it"},
	}, func(t *testing.T, test deletedCase) {
		f := newFixture(t)
		testkit.Must(f.js.CreateStream(t.Context(), testNames.StreamConfig()))(t)
		config := testNames.ConsumerConfig(ackWait, nil)
		config.FilterSubjects = []string{"notify.payments"}
		testkit.NoError(t, f.createConsumer(config))
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		hanging := &hangingJetStream{JetStream: f.js, interrupt: interrupt, hangs: test.hangs}
		done := f.provisioning(func(p *Provisioning) { p.JetStream = hanging }).Apply(ctx)[1]
		_, err := f.js.Consumer(t.Context(), testNames.Stream, testNames.Consumer)
		if test.says == "" {
			testkit.NoError(t, done.Err)
			testkit.NoError(t, err)
			return
		}
		testkit.Fails(t, "error", done.Err, context.DeadlineExceeded, test.says)
		testkit.Fails(t, "the consumer", err, jetstream.ErrConsumerNotFound)
		again := f.provisioning(nil).Apply(t.Context())[1]
		testkit.Equal(t, again.Created, true, "created by another run")
	})
}

// hangingJetStream interrupts the command when it has deleted a consumer, and does not answer when the consumer is created.
type hangingJetStream struct {
	jetstream.JetStream
	interrupt func()
	hangs     int
}

func (h *hangingJetStream) DeleteConsumer(ctx context.Context, stream, consumer string) error {
	err := h.JetStream.DeleteConsumer(ctx, stream, consumer)
	h.interrupt()
	return err
}

func (h *hangingJetStream) CreateConsumer(ctx context.Context, stream string, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if h.hangs > 0 && config.Durable == testNames.Consumer {
		h.hangs--
		return nil, context.DeadlineExceeded
	}
	return h.JetStream.CreateConsumer(ctx, stream, config)
}

// TestApplyRefuses wants an error for each stream that no update makes fit for use, and the others provisioned.
func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.Must(f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: testNames.Stream, Subjects: testNames.Subjects(), AllowMsgSchedules: true}))(t)
	testkit.Must(f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: testNames.RoomStream, Subjects: []string{"notify-room.>"}}))(t)
	for _, done := range f.provisioning(nil).Apply(t.Context()) {
		unfit := done.Subject == "stream EVENTS" || done.Subject == "stream ROOM"
		if errors.Is(done.Err, ErrUnfit) != unfit || done.Err != nil && len(done.Changes) > 0 {
			t.Errorf("%s: got the error %v and the changes %v, want an error: %t", done.Subject, done.Err, done.Changes, unfit)
		}
	}
	testkit.Equal(t, f.streamInfo(testNames.Stream).Config.MaxBytes, -1, "bytes of a stream that is not fit for use")
	testkit.Must(f.js.Stream(t.Context(), testNames.DeadLetterStream))(t)
}
