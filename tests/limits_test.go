package tests

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestDuplicates publishes events whose IDs were seen before, where JetStream's own window no longer knows them.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if _, err := d.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: streamName, Subjects: []string{"notify", "notify.>"}, Retention: jetstream.WorkQueuePolicy, Duplicates: 100 * time.Millisecond,
	}); err != nil {
		t.Fatal(err)
	}
	workers := d.startFleet(2)
	ended := 0
	publish := func(outcome string, subject, body string, headers ...string) {
		t.Helper()
		before := workers.sum("notifier_events_total", "outcome", outcome)
		d.publish(subject, body, headers...)
		workers.awaitEvents(before+1, "outcome", outcome)
		ended++
	}
	publish("sent", "notify.errors", "by header", "Nats-Msg-Id", "h1")
	publish("sent", "notify.errors", `{"text":"by body","id":"b1"}`)
	publish("sent", "notify.errors", `{"specversion":"1.0","source":"/s","id":"c1","type":"t","data":"by CloudEvent"}`)
	publish("sent", "notify.errors", "by nothing")
	publish("sent", "notify.errors", "by nothing")
	testkit.Await(t, "the end of JetStream's window", func() error {
		ack, err := d.js.Publish(t.Context(), "notify.errors", []byte("by header"), jetstream.WithMsgID("h1"))
		if err == nil && ack.Duplicate {
			err = errMissing
		}
		return err
	})
	workers.awaitEvents(1, "outcome", "duplicate")
	ended++
	publish("duplicate", "notify.errors", `{"text":"again","id":"b1"}`)
	publish("sent", "notify.other.category", `{"text":"an ID belongs to its category","id":"b1"}`)
	publish("duplicate", "notify.errors", `{"text":"the header's ID in the body","id":"h1"}`)
	publish("duplicate", "notify.errors", "binary", "ce-specversion", "1.0", "ce-source", "/s", "ce-id", "c1", "ce-type", "t")
	publish("sent", "notify.errors", `{"text":"the header wins","id":"b1"}`, "Nats-Msg-Id", "h2")
	publish("sent", "notify.errors", `{"specversion":"1.0","source":"/other","id":"c1","type":"t","data":"of another source"}`)
	d.awaitEmpty()
	workers.awaitSum(ended, "notifier_events_total")
	testkit.Equal(t, len(d.slack.Accepted()), 8, "posts")
	testkit.Equal(t, d.redis.CLI("zcard", rootLog), "8", "slots are taken")
}

// TestDroppedEventJudgedAnew publishes an event again that was dropped, once a slot is free.
func TestDroppedEventJudgedAnew(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "GLOBAL_LIMIT", "1/2s", "DENY_CACHE_TTL", "0")
	d.publish("notify.errors", `{"text":"x","id":"first"}`)
	d.publish("notify.errors", `{"text":"x","id":"second"}`)
	w.alone().awaitEvents(1, "outcome", "dropped")
	testkit.Await(t, "a free slot", func() error {
		d.publish("notify.errors", `{"text":"x","id":"second"}`)
		if w.alone().sum("notifier_events_total", "outcome", "sent") < 2 {
			return errMissing
		}
		return nil
	})
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), []string{"first", "second"})
}

// TestLimits has one worker and one batch of events for each kind of limit: what is posted of each category, and which rule
// drops the rest.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		settings []string
		publish  map[string]int // category -> events
		sent     map[string]int
		dropped  map[string]int // by level
	}{
		{"a deep tree", []string{"LIMITS", "payments=6/30m,payments.*=4/30m,payments.refunds.failed=1/30m"},
			map[string]int{"payments.refunds": 3, "payments.refunds.failed": 5, "payments.cards": 5, "payments.cards.visa.eu": 3, "errors": 12},
			nil,
			nil},
		{"blocked", []string{"LIMITS", "debug=0/1h"},
			map[string]int{"debug": 5, "debug.deep": 2, "errors": 3},
			map[string]int{"errors": 3},
			map[string]int{"debug": 7}},
		{"no limit", []string{"GLOBAL_LIMIT", "none", "LIMITS", "security=none"},
			map[string]int{"security": 50, "errors": 20},
			map[string]int{"security": 50, "errors": 10},
			map[string]int{"category": 10}},
		{"no category limit, but the global one", []string{"GLOBAL_LIMIT", "15/30m", "LIMITS", "security=none"},
			map[string]int{"security": 50},
			map[string]int{"security": 15},
			map[string]int{"global": 35}},
		{"several limits together", []string{"CATEGORY_LIMIT", "10/30m+3/29m"},
			map[string]int{"errors": 8},
			map[string]int{"errors": 3},
			map[string]int{"category": 5}},
		{"everything blocked", []string{"GLOBAL_LIMIT", "0/1h"},
			map[string]int{"errors": 8},
			map[string]int{},
			map[string]int{"global": 8}},
		{"the most specific rule", []string{"LIMITS", "a.b=2/1h,a.*=1/1h,*.c=3/1h"},
			map[string]int{"a.b": 5, "a.c": 5, "z.c": 5},
			map[string]int{"a.b": 2, "a.c": 1, "z.c": 3},
			map[string]int{"a.b": 3, "a.*": 4, "*.c": 2}},
		{"shadow", []string{"GLOBAL_LIMIT", "4/30m", "SHADOW", "true"},
			map[string]int{"errors": 12},
			map[string]int{"errors": 12},
			map[string]int{"global": 8}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			w := d.startReady("worker", test.settings...)
			total := 0
			for category, n := range test.publish {
				d.publishEvents([]string{category}, n)
				total += n
			}
			w.alone().awaitEvents(total)
			d.awaitEmpty()
			sent := count(d.slack.Accepted(), "category")
			if test.sent == nil {
				wantDeepTree(t, sent)
				return
			}
			posts := 0
			for category := range test.publish {
				posts += sent[category]
				testkit.Equal(t, sent[category], test.sent[category], "events of %s were posted", category)
				w.alone().awaitSum(test.sent[category], "notifier_events_total", "category", category, "outcome", "sent")
			}
			w.alone().awaitSum(posts, "notifier_events_total", "outcome", "sent")
			drops := 0
			for level, n := range test.dropped {
				drops += n
				w.alone().awaitSum(n, "notifier_dropped_total", "level", level)
			}
			w.alone().awaitSum(drops, "notifier_dropped_total")
		})
	}
}

// wantDeepTree checks what may be posted whatever the order in which the events came.
func wantDeepTree(t testing.TB, sent map[string]int) {
	t.Helper()
	under := func(node string) int {
		total := 0
		for category, n := range sent {
			if category == node || strings.HasPrefix(category, node+".") {
				total += n
			}
		}
		return total
	}
	for node, limit := range map[string]int{"payments": 6, "payments.refunds": 4, "payments.cards": 4, "payments.refunds.failed": 1, "errors": 10} {
		if got := under(node); got > limit {
			t.Errorf("%d events of %s and below were posted, the limit is %d", got, node, limit)
		}
	}
	if under("payments") != 6 || under("errors") != 10 {
		t.Errorf("posted were %v, want 6 of payments and 10 of errors", sent)
	}
}

// TestCost takes several slots for one event, or none.
func TestCost(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "GLOBAL_LIMIT", "10/30m", "DENY_CACHE_TTL", "0")
	step := func(outcome string, id string, cost int) {
		t.Helper()
		before := w.alone().sum("notifier_events_total", "outcome", outcome)
		d.publish("notify.errors", fmt.Sprintf(`{"text":"x","id":%q,"cost":%d}`, id, cost))
		w.alone().awaitEvents(before+1, "outcome", outcome)
	}
	step("sent", "seven", 7)
	step("dropped", "five", 5)
	step("sent", "three", 3)
	step("dropped", "one", 1)
	step("dropped", "never", 100)
	step("dropped", "never again", 100)
	wantPostedOnce(t, d.slack.Accepted(), []string{"seven", "three"})
	testkit.Equal(t, d.redis.CLI("zcard", rootLog), "10", "slots are taken")
	w.wantLogLines(1, "never") // once for the category
}

// TestRollingWindow waits for slots to open, and checks every window by the times in the log.
func TestRollingWindow(t *testing.T) {
	t.Parallel()
	const limit, window = 5, 2 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", fmt.Sprintf("%d/%s", limit, window), "DENY_CACHE_TTL", "500ms")
	var times []int64
	seen := make(map[string]bool)
	i := 0
	testkit.Await(t, "three windows' worth of events", func() error {
		d.publish("notify.errors", eventBody(fmt.Sprintf("event-%d", i)))
		i++
		for id, at := range d.log(rootLog + ":errors") {
			if !seen[id] {
				seen[id] = true
				var microseconds int64
				if _, err := fmt.Sscan(at, &microseconds); err != nil {
					return err
				}
				times = append(times, microseconds)
			}
		}
		if len(times) < 3*limit {
			return fmt.Errorf("%d", len(times))
		}
		return nil
	})
	d.awaitEmpty()
	for _, end := range times {
		within := 0
		for _, at := range times {
			if at <= end && at > end-window.Microseconds() {
				within++
			}
		}
		if within > limit {
			t.Errorf("%d events were admitted in the window that ends at %d, the limit is %d", within, end, limit)
		}
	}
	sent := len(d.slack.Accepted())
	workers.awaitEvents(sent, "outcome", "sent")
	workers.awaitEvents(i-sent, "outcome", "dropped")
	if i == sent {
		t.Error("nothing was dropped")
	}
}

// TestExpired starts a worker after the events have become too old.
func TestExpired(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	d.publishEvents([]string{"old"}, 5)
	d.publish("notify.old", "{")              // broken, but nobody is interested any more
	const maxAge = 5 * time.Second            // a busy machine sends the new events sooner
	time.Sleep(maxAge + 500*time.Millisecond) // the events have to become too old
	w := d.startReady("worker", "EVENT_MAX_AGE", maxAge.String())
	w.alone().awaitEvents(6, "outcome", "expired")
	ids := d.publishEvents([]string{"new"}, 5)
	w.alone().awaitEvents(5, "outcome", "sent")
	d.awaitEmpty()
	wantPostedOnce(t, d.slack.Accepted(), ids)
	w.alone().awaitSum(0, "notifier_dead_letters_total")
	testkit.Equal(t, len(d.log(rootLog)), 5, "slots are taken")
}

// TestLimitChanged restarts a worker with a greater limit: what was admitted counts on.
func TestLimitChanged(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("small", "CATEGORY_LIMIT", "3/30m")
	d.publishEvents([]string{"errors"}, 10)
	w.alone().awaitEvents(10)
	w.stop()
	w = d.startReady("great", "CATEGORY_LIMIT", "5/30m")
	for i := range 10 {
		d.publish("notify.errors", eventBody(fmt.Sprintf("more-%d", i)))
	}
	w.alone().awaitEvents(2, "outcome", "sent")
	w.alone().awaitEvents(8, "outcome", "dropped")
	testkit.Equal(t, len(d.slack.Accepted()), 5, "posts")
}

// TestRedisAwayFromStart has the failure policy decide everything, and tells Redis afterwards.
func TestRedisAwayFromStart(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy        string
		instances     int
		sent, dropped int // of 40 events of two categories, with a limit of 10 for each category
		level         string
	}{
		{"open", 1, 40, 0, ""},
		{"closed", 1, 0, 40, "closed"},
		{"local", 1, 20, 20, "category"},
		{"local", 2, 20, 20, "category"},
		{"hold", 1, 0, 0, ""},
	} {
		t.Run(fmt.Sprintf("%s with %d", test.policy, test.instances), func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			d.createStream()
			changes := append([]string{"REDIS_FAILURE", test.policy, "REDIS_GRACE", "200ms"}, quick()...)
			workers := d.startFleet(test.instances, changes...)
			awaitInstances(t, workers)
			d.redis.Kill()
			if test.policy == "hold" {
				d.publishEvents([]string{"one", "two"}, 20)
				workers[0].awaitStatus("/readyz", http.StatusServiceUnavailable, "redis")
				workers.awaitSum(1, "notifier_degraded", "policy", "hold")
				if left, err := d.left(streamName); err != nil || left != 40 {
					t.Errorf("%d events are left in the stream, error %v, want 40", left, err)
				}
				d.redis.Restart()
				d.awaitEmpty()
				workers.awaitEvents(20, "outcome", "sent")
				return
			}
			// A first event lets each worker find out that Redis is away.
			probes := 0
			testkit.Await(t, "the failure policy on every instance", func() error {
				d.publish("notify", `{"text":"x","category":"probe"}`)
				probes++
				if got := workers.sum("notifier_degraded", "policy", test.policy); got != test.instances {
					return fmt.Errorf("%d", got)
				}
				return nil
			})
			workers.awaitEvents(probes)
			d.publishEvents([]string{"one", "two"}, 20)
			workers.awaitEvents(probes + 40)
			for _, w := range workers {
				w.awaitReady()
				w.wantLogLines(1, "failure policy acts")
			}
			posted := 0
			for category, n := range count(d.slack.Accepted(), "category") {
				if category == "probe" {
					continue
				}
				posted += n
				if test.policy == "local" && n > 10 {
					t.Errorf("%d events of %s were posted, the limit is 10", n, category)
				}
			}
			// The share of an instance that got few events is not used up.
			if posted > test.sent || test.instances == 1 && posted != test.sent || test.sent > 0 && posted == 0 {
				t.Errorf("%d events were posted, want %d", posted, test.sent)
			}
			if test.level != "" {
				for _, category := range []string{"one", "two"} {
					testkit.Await(t, "a drop by "+test.level, func() error { // counted just after its outcome
						if workers.sum("notifier_dropped_total", "category", category, "level", test.level) == 0 {
							return fmt.Errorf("none of %s", category)
						}
						return nil
					})
				}
			}

			d.redis.Restart()
			workers.awaitSum(0, "notifier_degraded")
			if test.policy == "local" {
				known := 0
				for _, category := range []string{"one", "two"} {
					known += len(d.log(rootLog + ":" + category))
				}
				if known != posted {
					t.Errorf("redis knows of %d admissions after its return, want %d", known, posted)
				}
			}
		})
	}
}

// awaitInstances waits until every worker knows how many there are.
func awaitInstances(t testing.TB, workers fleet) {
	t.Helper()
	if len(workers) == 1 {
		return
	}
	for _, w := range workers {
		testkit.Await(t, w.name+" to count the instances", func() error {
			if w.logLines(fmt.Sprintf(`"instances":%d`, len(workers))) == 0 {
				return errMissing
			}
			return nil
		})
	}
}
