package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// What is absent is made; what is there stays as it is, and is used as it is.
func TestProvision(t *testing.T) {
	t.Parallel()
	config := func(change func(*jetstream.ConsumerConfig)) *jetstream.ConsumerConfig {
		c := &jetstream.ConsumerConfig{Durable: testNames.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: patience, MaxDeliver: -1}
		change(c)
		return c
	}
	for name, test := range map[string]struct {
		existing *jetstream.ConsumerConfig
		maxAge   time.Duration // of the existing stream
		ackWait  time.Duration
		remarks  []string
		err      string
	}{
		"nothing is there":        {ackWait: patience},
		"as it is made":           {existing: config(func(*jetstream.ConsumerConfig) {}), maxAge: time.Hour, ackWait: patience},
		"shorter ack wait":        {existing: config(func(c *jetstream.ConsumerConfig) { c.AckWait = 7 * time.Second }), ackWait: 7 * time.Second, remarks: []string{"acknowledgement wait is 7s, not 30s"}},
		"longer ack wait":         {existing: config(func(c *jetstream.ConsumerConfig) { c.AckWait = time.Hour }), ackWait: time.Hour, remarks: []string{"acknowledgement wait is 1h0m0s, not 30s"}},
		"bounded deliveries":      {existing: config(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 }), ackWait: patience, remarks: []string{"at most 3 times"}},
		"push":                    {existing: config(func(c *jetstream.ConsumerConfig) { c.DeliverSubject = "deliver" }), err: "not a pull consumer"},
		"without acknowledgement": {existing: config(func(c *jetstream.ConsumerConfig) { c.AckPolicy, c.AckWait = jetstream.AckNonePolicy, 0 }), err: "acknowledgement policy"},
		"with a back-off": {existing: config(func(c *jetstream.ConsumerConfig) {
			c.BackOff, c.MaxDeliver = []time.Duration{4 * time.Second, 2 * time.Second, time.Minute}, 5
		}), ackWait: 2 * time.Second, remarks: []string{"back-off", "at most 5 times", "acknowledgement wait is 2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			before := ""
			if test.existing != nil {
				stream := jetstream.StreamConfig{Name: testNames.Stream, Subjects: []string{"notify.>"}, MaxAge: test.maxAge, Description: "by hand"}
				if _, err := f.js.CreateStream(t.Context(), stream); err != nil {
					t.Fatal(err)
				}
				if err := f.createConsumer(*test.existing); err != nil {
					t.Fatal(err)
				}
				if test.err == "" {
					before = f.state()
				}
			}
			w := f.newWorker(nil)
			found, err := w.names.provision(t.Context(), f.js, patience, true, f.log.logger())
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("the error is %v, want one that says %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if found.ackWait != test.ackWait || found.streamAge != test.maxAge {
				t.Errorf("found %v and %v, want an acknowledgement wait of %v and a maximum age of %v", found.ackWait, found.streamAge, test.ackWait, test.maxAge)
			}
			if lines := f.log.lines("consumer differs from the settings"); len(lines) != len(test.remarks) {
				t.Errorf("remarks: %q, want %d", lines, len(test.remarks))
			}
			for _, remark := range test.remarks {
				if len(f.log.lines(remark)) != 1 {
					t.Errorf("no remark says %q", remark)
				}
			}
			if before == "" {
				f.requireProvisioned()
				before = f.state()
			}
			if _, err := w.names.provision(t.Context(), f.js, time.Minute, true, f.log.logger()); err != nil {
				t.Fatal(err)
			}
			if after := f.state(); after != before {
				t.Errorf("what was there was altered:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// state is how stream and consumer are set up.
func (f *fixture) state() string {
	f.Helper()
	return fmt.Sprintf("%+v\n%+v", f.streamInfo(testNames.Stream).Config, f.consumerConfig())
}

func (f *fixture) consumerConfig() jetstream.ConsumerConfig {
	f.Helper()
	config := f.consumerInfo().Config
	config.Metadata = nil // the server's own
	return config
}

// createConsumer makes a pull consumer or a push consumer, as configured.
func (f *fixture) createConsumer(config jetstream.ConsumerConfig) error {
	f.Helper()
	if config.DeliverSubject != "" {
		_, err := f.js.CreatePushConsumer(f.Context(), testNames.Stream, config)
		return err
	}
	_, err := f.js.CreateConsumer(f.Context(), testNames.Stream, config)
	return err
}

func (f *fixture) requireProvisioned() {
	f.Helper()
	for name, subjects := range map[string]string{testNames.Stream: "[notify notify.>]", testNames.DeadLetterStream: "[notify-dlq.>]"} {
		c := f.streamInfo(name).Config
		if c.Retention != jetstream.WorkQueuePolicy || c.Storage != jetstream.FileStorage || c.MaxAge != 0 || fmt.Sprint(c.Subjects) != subjects {
			f.Errorf("stream %s: %+v, want a work queue on file of %s, without an age", name, c, subjects)
		}
	}
	c := f.consumerConfig()
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.MaxDeliver != -1 || c.AckWait != patience || c.MaxAckPending != maxAckPending || c.Durable != testNames.Consumer {
		f.Errorf("consumer: %+v", c)
	}
}

// Several instances that start at once agree on one consumer.
func TestProvisionTogether(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const instances = 5
	errs := make(chan error, instances)
	for range instances {
		w := f.newWorker(nil)
		go func() {
			_, _, err := w.Prepare(context.WithoutCancel(t.Context()))
			errs <- err
		}()
	}
	for range instances {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	f.requireProvisioned()
}

// Without provisioning a worker waits for the consumer, says so once, is not ready, and begins when it is there.
func TestConsumerIsAwaited(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *Options) { o.Provision = false })
	if err := w.Ready(); err == nil {
		t.Error("it is ready before it has looked for the consumer")
	}
	prepared := make(chan error, 1)
	go func() {
		_, _, err := w.Prepare(context.WithoutCancel(t.Context()))
		prepared <- err
	}()
	f.eventually("the log says what is missing", func() bool { return len(f.log.lines("the consumer is not there")) == 1 })
	if err := w.Ready(); err == nil || !strings.Contains(err.Error(), `consumer "notifier" of stream "EVENTS"`) {
		t.Errorf("ready: %v, want an error that names the consumer", err)
	}
	f.provision(patience)
	if err := <-prepared; err != nil {
		t.Fatal(err)
	}
	if err := w.Ready(); err != nil {
		t.Errorf("ready: %v, want no error", err)
	}
	if lines := f.log.lines("the consumer is"); len(lines) != 2 {
		t.Errorf("logged: %q, want that it is away, and that it is there", lines)
	}
}

// Preparing ends with its context.
func TestPrepareEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.newWorker(func(o *Options) { o.Provision = false })
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errScripted) })
	if _, _, err := w.Prepare(ctx); err == nil || !strings.Contains(err.Error(), errScripted.Error()) {
		t.Errorf("the error is %v, want the context's cause", err)
	}
}

// A consumer or a stream that is deleted under a running worker is made anew where that is wanted, and waited for where
// it is not.
func TestDeletedWhileRunning(t *testing.T) {
	t.Parallel()
	deletions := map[string]func(*fixture) error{
		"consumer": func(f *fixture) error { return f.js.DeleteConsumer(f.Context(), testNames.Stream, testNames.Consumer) },
		"stream":   func(f *fixture) error { return f.js.DeleteStream(f.Context(), testNames.Stream) },
	}
	for what, remove := range deletions {
		for _, provision := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, provision %t", what, provision), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				f.provision(patience)
				w := f.start(func(o *Options) { o.Provision = provision })
				f.event("payments", "before")
				f.awaitSettled(1)
				if err := remove(f); err != nil {
					t.Fatal(err)
				}
				f.eventually("that is noticed", func() bool { return len(f.log.lines("the consumer is not there")) == 1 })
				if !provision {
					if err := w.Ready(); err == nil {
						t.Error("it is ready without a consumer")
					}
					f.provision(patience)
				}
				f.eventually("it is ready", func() bool { return w.Ready() == nil })
				f.eventually("the stream takes messages", f.streamAnswers)
				f.event("payments", "after")
				f.awaitSettled(2)
				f.requireHistory("after", "send", "finish")
				f.requireOutcomes(map[string]int{"sent payments": 2})
				if lines := f.log.lines("the consumer is there"); len(lines) != 1 {
					t.Errorf("logged %d times that it is there again, want once", len(lines))
				}
			})
		}
	}
}

// streamAnswers tells whether the stream answers who publishes to it: a server takes a moment to do so after the stream was
// made anew. The message that asks is refused.
func (f *fixture) streamAnswers() bool {
	ctx, cancel := context.WithTimeout(f.Context(), time.Second)
	defer cancel()
	_, err := f.js.Publish(ctx, testNames.Subject+".check", nil, jetstream.WithExpectStream("another"))
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && refusal.ErrorCode == errUnexpected
}

// While a connection is lost events wait; they go on when it is back, and nothing is logged for each try.
func TestConnectionLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.start(nil)
	f.event("payments", "before")
	f.awaitSettled(1)
	f.server.Kill()
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	f.server.Restart()
	f.eventually("it is ready", func() bool { return w.Ready() == nil })
	f.event("payments", "after")
	f.awaitSettled(2)
	f.requireHistory("after", "send", "finish")
	for _, line := range []string{"nats is away", "nats is connected again"} {
		if lines := f.log.lines(line); len(lines) != 1 {
			t.Errorf("%q was logged %d times, want once", line, len(lines))
		}
	}
	if lines := f.log.lines("nats cannot be reached"); len(lines) > 1 {
		t.Errorf("that it cannot be reached was logged %d times: %q", len(lines), lines)
	}
}
