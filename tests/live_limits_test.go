package tests

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// bucketName is the bucket of live limits.
const bucketName = "notifier-limits"

// limits runs `notifier limits`, which has to work, and returns what it prints.
func (d *deployment) limits(arguments ...string) string {
	d.t.Helper()
	p := run(d.t, d.settings("NATS_URL", d.url(), "HTTP_ADDR", "off"), append([]string{"limits"}, arguments...)...)
	if status := p.wait(); status != 0 {
		d.t.Fatalf("limits %q ended with status %d: %s", arguments, status, p.all())
	}
	return p.stdout.String()
}

func (d *deployment) url() string { return d.js.Conn().ConnectedUrl() }

// put stores a value in the bucket, as any other program may.
func (d *deployment) put(key, value string) {
	d.t.Helper()
	kv := testkit.Must(d.js.KeyValue(d.t.Context(), bucketName))(d.t)
	testkit.Must(kv.PutString(d.t.Context(), key, value))(d.t)
}

// judged publishes events to a category, waits until all have ended, and returns how many of the category were posted so far.
func (d *deployment) judged(category string, ids ...string) int {
	d.t.Helper()
	for _, id := range ids {
		d.publish(subjectPrefix+"."+category, eventBody(category+"-"+id))
	}
	d.awaitEmpty()
	return count(d.slack.Accepted(), "category")[category]
}

// wantJudged does that, and wants so many posts.
func (d *deployment) wantJudged(want int, category string, ids ...string) {
	d.t.Helper()
	if got := d.judged(category, ids...); got != want {
		d.t.Errorf("of %s %d events were posted, want %d", category, got, want)
	}
}

func (f fleet) awaitLog(want int, text string) {
	f[0].t.Helper()
	for _, w := range f {
		testkit.Await(w.t, fmt.Sprintf("%d times %q in the log of %s", want, text, w.name), func() error {
			if got := w.logLines(text); got != want {
				return fmt.Errorf("%d times", got)
			}
			return nil
		})
	}
}

// TestLiveLimits changes limits under two busy workers, and counts what Slack got of categories that began after the change
// showed: never more than the new limit.
func TestLiveLimits(t *testing.T) {
	t.Parallel()
	const remembered = 10 * time.Second // how long the deny cache would go by an old limit
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "4/1h", "DENY_CACHE_TTL", remembered.String())
	d.wantJudged(4, "flood", "1", "2", "3", "4", "5", "6")
	dropped := 0
	testkit.Await(t, "each worker to know that a limit is full", func() error {
		dropped++
		d.wantJudged(4, "flood", fmt.Sprint("dropped-", dropped))
		for _, w := range workers {
			if w.alone().sum("notifier_decisions_total", "source", "cache") == 0 {
				return errMissing
			}
		}
		return nil
	})

	// A lowered limit: the first category in which it holds, and from then on all.
	probes := 0
	probe := func() int { // three events each
		probes++
		return d.judged(fmt.Sprintf("probe-%d", probes), "1", "2", "3")
	}
	lower := func(limit int) time.Duration {
		d.limits("set", "category", fmt.Sprintf("%d/1h", limit))
		changed := time.Now()
		testkit.Await(t, "the lowered limit", func() error {
			if got := probe(); got != limit {
				return fmt.Errorf("%d posts", got)
			}
			return nil
		})
		took := time.Since(changed)
		for range 4 {
			if got := probe(); got != limit {
				t.Errorf("after a limit of %d showed, %d events were posted", limit, got)
			}
		}
		return took
	}
	took := []time.Duration{lower(2), lower(1)}

	// A raised one, of the category that every worker remembers to be full.
	d.limits("set", "flood", "7/1h")
	changed := time.Now()
	workers.awaitLog(1, `"limits in force","revision":3`)
	d.wantJudged(7, "flood", "7", "8", "9")
	took = append(took, time.Since(changed))
	d.wantJudged(7, "flood", "10", "11", "12", "13", "14", "15")

	slices.Sort(took)
	if took[1] > time.Second || took[2] > remembered/2 {
		t.Errorf("changes showed after %v, want most of them within a second", took)
	}
	for _, w := range workers {
		if w.alone().sum("notifier_decisions_total") == 0 {
			t.Errorf("%s has decided nothing", w.name)
		}
	}
	workers.awaitEvents(len(d.slack.Accepted()), "outcome", "sent")

	// What the settings say holds again.
	d.limits("unset", "category")
	testkit.Await(t, "the limit of the settings", func() error {
		if got := probe(); got != 3 {
			return fmt.Errorf("%d posts", got)
		}
		return nil
	})
	if shown := d.limits(); !strings.Contains(shown, "7 of 7") {
		t.Errorf("limits prints\n%s", shown)
	}
}

// TestLiveLimitsAtStart starts a worker when there are events and so many overrides that reading them takes a moment: it
// reads them first.
func TestLiveLimitsAtStart(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.createStream()
	d.limits("set", "category", "2/1h")
	d.limits("set", "errors", "3/1h")
	for i := range 2000 {
		testkit.Must(d.js.PublishAsync(fmt.Sprintf("$KV.%s.unused-%d", bucketName, i), []byte("1/1h")))(t)
	}
	<-d.js.PublishAsyncComplete()
	d.publishEvents([]string{"errors", "other"}, 20)
	w := d.startReady("worker")
	d.awaitEmpty()
	w.alone().awaitEvents(5, "outcome", "sent")
	w.alone().awaitSum(17, "notifier_dropped_total", "level", "errors")
	w.stop()
	d.limits("set", "errors", "4/1h")
	d.publishEvents([]string{"errors.later"}, 5)
	d.startReady("worker again")
	d.awaitEmpty()
	counts := count(d.slack.Accepted(), "category")
	if counts["errors"] != 3 || counts["errors.later"] != 1 || counts["other"] != 2 {
		t.Errorf("posted were %v, want 3 of errors, 1 of errors.later and 2 of other", counts)
	}
}

// TestBadLiveLimit puts what is no limit into the bucket, and deletes the bucket: the last limits stay, also after a restart.
func TestBadLiveLimit(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startReady("creates what is absent").stop()
	workers := d.startFleet(2, "NATS_PROVISION", "false")
	d.limits("set", "category", "2/1h")
	workers.awaitLog(1, `"overrides":1`)
	d.wantJudged(2, "a", "1", "2", "3")

	d.put("category", "lots")
	workers.awaitLog(1, "bad live limit is ignored")
	d.put("errors", "1/1h") // another change does not bring the complaint again
	workers.awaitLog(1, `"overrides":2`)
	d.wantJudged(2, "b", "1", "2", "3")
	d.wantJudged(1, "errors", "1", "2", "3")
	workers[1].stop()
	workers[1] = d.startReady("worker 2 again", "NATS_PROVISION", "false")
	d.wantJudged(2, "c", "1", "2", "3")
	workers.awaitLog(1, "bad live limit is ignored")

	testkit.NoError(t, d.js.DeleteKeyValue(t.Context(), bucketName))
	workers.awaitLog(1, "limits bucket is away, last known limits stay in force")
	d.wantJudged(2, "d", "1", "2", "3")
	for _, w := range workers {
		w.awaitReady()
	}
	d.limits("set", "category", "1/1h") // creates it anew
	workers.awaitLog(1, "limits bucket is back")
	d.wantJudged(1, "e", "1", "2", "3")
	workers.awaitLog(1, "limits bucket is away")
}

// TestGuarantees floods one category, and then finds all of the slots that belong to another.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "30/30m", "CATEGORY_LIMIT", "none", "GUARANTEES", "security=20")
	d.publishEvents([]string{"noise", "more.noise"}, 40)
	workers.awaitEvents(80)
	d.publishEvents([]string{"security", "security.login"}, 15)
	workers.awaitEvents(110)
	d.awaitEmpty()
	counts := count(d.slack.Accepted(), "category")
	if noise, security := counts["noise"]+counts["more.noise"], counts["security"]+counts["security.login"]; noise != 10 || security != 20 {
		t.Errorf("posted were %v, want 10 of the flood and 20 of security", counts)
	}
	workers.awaitSum(80, "notifier_dropped_total", "level", "global")
}

// TestShadowLimits judges events by limits that have no effect.
func TestShadowLimits(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "CATEGORY_LIMIT", "5/30m", "SHADOW_LIMITS", "category=2/30m,debug=0/1h").alone()
	want := func(level, verdict string, n int) {
		t.Helper()
		w.awaitSum(n, "notifier_shadow_decisions_total", "level", level, "verdict", verdict)
	}
	want("category", "denied", 0)
	d.wantJudged(5, "errors", "1", "2", "3", "4", "5", "6", "7", "8")
	d.wantJudged(3, "debug", "1", "2", "3")
	want("none", "admitted", 2)
	want("category", "denied", 6)
	want("debug", "exceeds_capacity", 3)

	d.limits("set", "category", "4/30m", "--shadow")
	w.awaitLog(1, `"overrides":1`)
	d.wantJudged(5, "others", "1", "2", "3", "4", "5", "6")
	want("none", "admitted", 6)
	want("category", "denied", 8)
	w.awaitEvents(13, "outcome", "sent")
	w.awaitEvents(4, "outcome", "dropped")
	w.awaitSum(4, "notifier_dropped_total", "level", "category")
	w.awaitSum(17, "notifier_shadow_decisions_total")
	testkit.Equal(t, len(d.log(rootLog)), 13, "slots are taken")
}

// delivered is how often the consumer has given a message to a worker.
func (d *deployment) delivered() uint64 {
	d.t.Helper()
	consumer := testkit.Must(d.js.Consumer(d.t.Context(), streamName, consumerName))(d.t)
	return consumer.CachedInfo().Delivered.Consumer
}

const (
	wordOlder   = "limits here are older than those in force, no events are taken"
	wordCurrent = "limits here are those in force again"
)

// TestStaleWorker has one of two workers unable to read the live limits. Once the other has used newer ones, the first one
// is not ready and takes nothing, and all events go to the other.
func TestStaleWorker(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, fmt.Sprintf(`
		accounts { A { jetstream: enabled, users: [
			{ user: all, password: all }
			{ user: blind, password: blind, permissions: { subscribe: ">", publish: { deny: "$JS.API.STREAM.INFO.KV_%s" } } }
		] } }`, bucketName))
	d := deploy(t, nil, servertest.StartRedis(t))
	d.js = servertest.JetStream(t, n.URL, nats.UserInfo("all", "all"))
	as := func(user string) []string {
		return quick("NATS_URL", n.URL, "NATS_USER", user, "NATS_PASSWORD", user, "CATEGORY_LIMIT", "5/1h", "DENY_CACHE_TTL", "0")
	}
	seeing := d.startReady("seeing", as("all")...)
	blind := d.startReady("blind", as("blind")...)
	workers := fleet{seeing, blind}
	if p := run(t, d.settings(as("all")...), "limits", "set", "category", "2/1h"); p.wait() != 0 {
		t.Fatal(p.all())
	}
	seeing.alone().awaitLog(1, `"overrides":1`)
	blind.awaitReady()
	ended := 0
	testkit.Await(t, "an event that the seeing worker has judged", func() error {
		d.publish("notify.first", "event")
		ended++
		if seeing.alone().sum("notifier_decisions_total") == 0 {
			return errMissing
		}
		return nil
	})
	const right = "the right to publish $JS.API.STREAM.INFO.KV_" + bucketName
	for _, says := range []string{"newer limits are in force: revision 1 of generation ", "here is none", right} {
		blind.awaitStatus("/readyz", http.StatusServiceUnavailable, says)
	}
	blind.alone().awaitLog(1, wordOlder)
	seeing.awaitReady()
	d.awaitEmpty()

	workers.awaitEvents(ended)
	before, delivered := blind.alone().sum("notifier_decisions_total"), d.delivered()
	categories := []string{"a", "b", "c", "d", "e"}
	ids := d.publishEvents(categories, 10)
	d.awaitEmpty()
	for _, category := range categories {
		if got := count(d.slack.Accepted(), "category")[category]; got != 2 {
			t.Errorf("of %s %d events were posted, want 2", category, got)
		}
	}
	workers.awaitEvents(ended + len(ids))
	if after := blind.alone().sum("notifier_decisions_total"); after != before {
		t.Errorf("the blind worker has decided %d times after newer limits were in use", after-before)
	}
	if got := d.delivered() - delivered; got != uint64(len(ids)) {
		t.Errorf("%d events were given out %d times, want once each, to the seeing worker", len(ids), got)
	}
	blind.alone().awaitSum(0, "notifier_degraded")
	p := run(t, d.settings(as("blind")...), "check")
	p.want(1, "FAIL  live limits: ", right, "a worker would take no events")

	// Redis loses what it knows, so what the blind worker has is in force again. It has no event to find that out by.
	seeing.stop()
	d.redis.CLI("del", "{notifier}:limits")
	blind.awaitReady()
	blind.alone().awaitLog(1, wordCurrent)
	d.wantJudged(5, "later", "1", "2", "3", "4", "5", "6")
	blind.alone().awaitLog(1, wordOlder)
}

// TestBucketRestored gives NATS an older state than the one that Redis knows, under a worker that runs and before one that
// starts. Both wait until somebody adopts it.
func TestBucketRestored(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATSProcess(t, "")
	d := deploy(t, n, servertest.StartRedis(t))
	running := d.startReady("running", quick("CATEGORY_LIMIT", "9/1h", "DENY_CACHE_TTL", "0")...)
	d.limits("set", "category", "5/1h", "--as", "ann")
	running.alone().awaitLog(1, `"limits in force","revision":1`)
	connected := func() error {
		if !d.js.Conn().IsConnected() {
			return errMissing
		}
		return nil
	}
	backup := t.TempDir()
	n.Kill()
	testkit.NoError(t, os.CopyFS(backup, os.DirFS(n.Dir)))
	n.Restart()
	testkit.Await(t, "the connection", connected)
	running.awaitReady()
	d.limits("set", "category", "2/1h")
	running.alone().awaitLog(1, `"limits in force","revision":2`)
	d.wantJudged(2, "before", "1", "2", "3")

	n.Kill()
	testkit.NoError(t, errors.Join(os.RemoveAll(filepath.Join(n.Dir, "jetstream")), os.CopyFS(n.Dir, os.DirFS(backup))))
	n.Restart()
	testkit.Await(t, "the connection", connected)
	starting := d.startWorker("starting", quick("CATEGORY_LIMIT", "9/1h", "DENY_CACHE_TTL", "0")...)
	workers := fleet{running, starting}
	for _, w := range workers {
		for _, says := range []string{"newer limits are in force: revision 2 of generation ", "here is revision 1 of generation ", "notifier limits adopt"} {
			w.awaitStatus("/readyz", http.StatusServiceUnavailable, says)
		}
	}
	workers.awaitLog(1, wordOlder)
	for _, w := range workers {
		if w.logLines(`"newer_generation":1`) != 1 || w.logLines(`"newer_revision":2`) != 1 {
			t.Errorf("%s does not tell of both states", w.name)
		}
	}
	delivered := d.delivered()
	ids := d.publishEvents([]string{"after"}, 7)
	with := d.settings("HTTP_ADDR", "off")
	run(t, with, "check").want(1, "FAIL  live limits: ", "holds revision 1 of generation ", "in force, revision 2 of generation ", "limits adopt")
	run(t, with, "limits", "adopt").want(2, "use --yes")
	for _, w := range workers {
		w.awaitStatus("/readyz", http.StatusServiceUnavailable, "limits adopt")
	}
	if got := d.delivered(); got != delivered {
		t.Errorf("%d events were taken while none could be decided", got-delivered)
	}

	said := d.limits("adopt", "--yes")
	for _, want := range []string{"5/1h", "ann", "in force is revision 2 of generation ", "in the place of revision 2 of generation "} {
		if !strings.Contains(said, want) {
			t.Errorf("adopt prints\n%s\nwant %q in it", said, want)
		}
	}
	for _, w := range workers {
		w.awaitReady()
	}
	d.awaitEmpty()
	testkit.Equal(t, count(d.slack.Accepted(), "category")["after"], 5, "events were posted")
	if got := d.delivered() - delivered; got != uint64(len(ids)) {
		t.Errorf("%d events were given out %d times, want once each", len(ids), got)
	}
	run(t, with, "check").want(0, "ok    live limits: ")
	workers.awaitLog(1, wordCurrent)
	workers.awaitLog(1, wordOlder)
}

// TestOtherClusterOfThePrefix has a worker begin with a bucket that was made before the one whose limits are in force.
func TestOtherClusterOfThePrefix(t *testing.T) {
	t.Parallel()
	older, newer := newDeployment(t), newDeployment(t)
	older.redis = newer.redis
	older.startReady("makes the older bucket").stop()
	w := newer.startReady("of the newer cluster")
	newer.limits("set", "category", "2/1h")
	w.alone().awaitLog(1, `"overrides":1`)
	newer.wantJudged(2, "a", "1", "2", "3")

	turned := older.startWorker("of the older cluster")
	turned.awaitStatus("/readyz", http.StatusServiceUnavailable, "notifier limits adopt")
	turned.alone().awaitLog(1, wordOlder)
	w.awaitReady()
	w.stop()
	older.limits("adopt", "--yes")
	turned.awaitReady()
	older.wantJudged(3, "b", "1", "2", "3")
	if got := turned.logLines(wordOlder); got != 1 {
		t.Errorf("it is said %d times, want once", got)
	}
}

// TestFunctions runs the scripts as functions, which somebody removes.
func TestFunctions(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if d.redis.CLI("command", "info", "fcall") == "" { // Redis 6.2 has no functions
		w := d.startWorker("worker", "REDIS_SCRIPTING", "function", "REDIS_FAILURE", "hold")
		w.awaitStatus("/readyz", http.StatusServiceUnavailable, "redis")
		return
	}
	w := d.startReady("worker", "REDIS_SCRIPTING", "function", "REDIS_FAILURE", "hold", "CATEGORY_LIMIT", "3/1h").alone()
	d.wantJudged(2, "errors", "1", "2")
	d.redis.CLI("function", "flush")
	d.wantJudged(3, "errors", "3", "4", "5")
	w.awaitEvents(3, "outcome", "sent")
	w.awaitEvents(2, "outcome", "dropped")
	calls := d.redis.CLI("info", "commandstats")
	if !strings.Contains(calls, "cmdstat_fcall:") || strings.Contains(calls, "cmdstat_eval") {
		t.Errorf("the calls were\n%s\nwant functions alone", calls)
	}
}
