package tests

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// limits runs `notifier limits`, wants success, and returns the output.
func (d *deployment) limits(arguments ...string) string {
	d.t.Helper()
	return d.notifier(append([]string{"limits"}, arguments...)...)
}

// wantEvaluated publishes events of a category, waits until all have outcomes, and wants a number of posts of the category so far.
func (d *deployment) wantEvaluated(want int, category string, ids ...string) {
	d.t.Helper()
	for _, id := range ids {
		d.publish(subjectPrefix+"."+category, eventBody(category+"-"+id))
	}
	d.awaitEmpty()
	testkit.Equal(d.t, count(d.slack.Accepted(), "category")[category], want, "posts of %s", category)
}

func (f fleet) awaitLog(want int, text string) {
	f[0].t.Helper()
	for _, w := range f {
		awaitNumber(w.t, want, fmt.Sprintf("lines with %q of %s", text, w.name), func() (int, error) { return w.logLines(text), nil })
	}
}

// TestLiveLimits changes limits under two workers, each of which has a full limit in its deny cache.
func TestLiveLimits(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "4/1h", "DENY_CACHE_TTL", "10m")
	d.wantEvaluated(4, "flood", "1", "2", "3", "4", "5", "6")
	dropped := 0
	testkit.Eventually(t, "each worker to know that a limit is full", func() bool {
		dropped++
		d.wantEvaluated(4, "flood", fmt.Sprint("dropped-", dropped))
		return !slices.ContainsFunc(workers, func(w *worker) bool { return w.alone().sum("notifier_decisions_total", "source", "cache") == 0 })
	})

	d.limits("set", "category", "2/1h")
	d.wantEvaluated(2, "lowered", "1", "2", "3")

	d.limits("set", "flood", "7/1h")
	workers.awaitLog(1, `"limits in force","revision":2`)
	d.wantEvaluated(7, "flood", "7", "8", "9")
	d.wantEvaluated(7, "flood", "10", "11", "12", "13", "14", "15")

	d.limits("unset", "category")
	d.wantEvaluated(4, "restored", "1", "2", "3", "4", "5")
	workers.awaitEvents(len(d.slack.Accepted()), "outcome", "sent")
	testkit.Contains(t, "shown", d.limits(), "7 of 7")
}

// TestLiveLimitIsInForceAtOnce sets a limit while the only worker is suspended. The worker decides no event by the older limit after the command
// has returned, although nobody else has decided one.
func TestLiveLimitIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	worker := d.startReady("worker", quick("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "100/1h")...)
	d.wantEvaluated(1, "payments", "before")
	worker.signal(syscall.SIGSTOP)
	d.limits("set", "payments", "0/1h")
	for i := range 50 {
		d.publish(subjectPrefix+".payments", eventBody(fmt.Sprint("after-", i)))
	}
	worker.signal(syscall.SIGCONT)
	d.awaitEmpty()
	testkit.Equal(t, count(d.slack.Accepted(), "category")["payments"], 1, "posts of payments")
}

// TestLimitsSetWarns sets a limit of a path that is not known to the worker. The history names the author.
func TestLimitsSetWarns(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startReady("worker", quick("LIMITS", "payments=5/1h")...)
	testkit.Contains(t, "shown", d.limits("set", "paymets", "1/1h"), "warning: no recent event of paymets is known; payments exists\n")
	shown := d.notifier("mute", "pyments", "--every", "Tue 02:00-02:01 UTC", "--reason", "backup")
	testkit.Contains(t, "shown", shown, "warning: no recent event of pyments is known; payments exists\n")
	me, err := user.Current()
	testkit.NoError(t, err)
	testkit.Contains(t, "shown", d.limits("history"), " "+me.Username+"@")
}

// TestLiveLimitEnds sets a limit for three seconds. One worker and NATS restart meanwhile. Then the previous limit is in force in both
// workers.
func TestLiveLimitEnds(t *testing.T) {
	t.Parallel()
	d := deploy(t, servertest.StartNATSProcess(t, ""))
	changes := quick("CATEGORY_LIMIT", "5/1h", "LIMITS", "payments=9/1h,payments.refunds=9/1h", "DENY_CACHE_TTL", "0")
	workers := fleet{d.startReady("worker 1", changes...), d.startReady("worker 2", changes...)}
	workers.awaitLog(1, "9/1h of payments.refunds never denies anything: payments above it allows no more than 9/1h")
	d.limits("set", "category", "2/1h", "--as", "ann")
	testkit.Contains(t, "shown", d.limits("set", "category", "4/1h", "--as", "bob", "--for", "3s"), "category is 4/1h until ", ", then 2/1h again (revision 2)")
	workers.awaitLog(1, `"limits in force","revision":2,"overrides":1,"limits":["global=100/30m","category=4/1h"`)
	workers[1].stop()
	d.nats.Kill()
	d.nats.Restart()
	servertest.AwaitAnswer(t, d.js)
	workers[1] = d.startReady("worker 2 again", changes...)
	workers.awaitLog(1, `"limits in force","revision":3,"overrides":1,"limits":["global=100/30m","category=2/1h"`)
	for _, category := range []string{"a", "b", "c"} {
		d.wantEvaluated(2, category, "1", "2", "3", "4", "5")
	}
	testkit.Contains(t, "shown", d.limits("history"), "4/1h for 3s, until ", "2/1h, as revision 2 has ended")
	testkit.Contains(t, "shown", run(t, d.settings("HTTP_ADDR", "off"), "check").stdout.String(), "limits: from 2 workers (revision 3)",
		"warn  limit without effect: 9/1h of payments.refunds never denies anything")
}

// TestGuarantees floods two categories. The guaranteed slots of a third one stay free.
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
	noise, security := counts["noise"]+counts["more.noise"], counts["security"]+counts["security.login"]
	testkit.Check(t, noise == 10 && security == 20, "posted were %v, want 10 of the flood and 20 of security", counts)
	workers.awaitSum(80, "notifier_dropped_total", "level", "global")
}

// TestShadowLimits wants shadow limits to count decisions, and to deny no event.
func TestShadowLimits(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	w := d.startReady("worker", "CATEGORY_LIMIT", "5/30m", "SHADOW_LIMITS", "category=2/30m,debug=0/1h").alone()
	want := func(level, verdict string, n int) {
		t.Helper()
		w.awaitSum(n, "notifier_shadow_decisions_total", "level", level, "verdict", verdict)
	}
	want("category", "denied", 0)
	d.wantEvaluated(5, "errors", "1", "2", "3", "4", "5", "6", "7", "8")
	d.wantEvaluated(3, "debug", "1", "2", "3")
	want("none", "admitted", 2)
	want("category", "denied", 6)
	want("debug", "exceeds_capacity", 3)

	d.limits("set", "category", "4/30m", "--shadow")
	w.awaitLog(1, `"overrides":1`)
	d.wantEvaluated(5, "others", "1", "2", "3", "4", "5", "6")
	want("none", "admitted", 6)
	want("category", "denied", 8)
	w.awaitOutcomes(map[string]int{"sent": 13, "dropped": 4})
	w.awaitSum(4, "notifier_dropped_total", "level", "category")
	w.awaitSum(17, "notifier_shadow_decisions_total")
	testkit.Equal(t, len(d.log(rootLog)), 13, "slots are taken")
}

const (
	wordOlder   = "limits are outdated: pulling no events"
	wordCurrent = "limits are current again"
)

// restore kills NATS, replaces its data, and starts it again. It returns when NATS answers the test.
func (d *deployment) restore(replace func() error) {
	d.t.Helper()
	d.nats.Kill()
	testkit.NoError(d.t, replace())
	d.nats.Restart()
	servertest.AwaitAnswer(d.t, d.js)
}

// TestBucketRestored restores an older state of NATS under a running worker, and starts a second one. Both wait until the operator adopts
// the older limits.
func TestBucketRestored(t *testing.T) {
	t.Parallel()
	d := deploy(t, servertest.StartNATSProcess(t, ""))
	changes := quick("CATEGORY_LIMIT", "9/1h", "DENY_CACHE_TTL", "0")
	running := d.startReady("running", changes...)
	d.limits("set", "category", "5/1h", "--as", "ann")
	running.alone().awaitLog(1, `"limits in force","revision":1`)
	backup := t.TempDir()
	d.restore(func() error { return os.CopyFS(backup, os.DirFS(d.nats.Dir)) })
	running.awaitReady()
	d.limits("set", "category", "2/1h")
	running.alone().awaitLog(1, `"limits in force","revision":2`)
	d.wantEvaluated(2, "before", "1", "2", "3")

	d.restore(func() error {
		return errors.Join(os.RemoveAll(filepath.Join(d.nats.Dir, "jetstream")), os.CopyFS(d.nats.Dir, os.DirFS(backup)))
	})
	workers := fleet{running, d.startWorker("starting", changes...)}
	for _, says := range []string{"newer limits are in force: revision 2 of generation ", "here is revision 1 of generation ", "notifier limits adopt"} {
		workers.awaitUnready(says)
	}
	for _, line := range []string{wordOlder, `"newer_generation":1`, `"newer_revision":2`} {
		workers.awaitLog(1, line)
	}
	delivered := d.delivered()
	ids := d.publishEvents([]string{"after"}, 7)
	with := d.settings(quick("HTTP_ADDR", "off")...)
	run(t, with, "check").want(1, "FAIL  live limits: ", "holds revision 1 of generation ", "in force, revision 2 of generation ", "limits adopt")
	run(t, with, "limits", "adopt").want(2, "confirm with --yes")
	workers.awaitUnready("limits adopt")
	testkit.Equal(t, d.delivered(), delivered, "deliveries while no event could be decided")

	run(t, with, "limits", "adopt", "--yes").want(0, "5/1h", "ann", "in force is revision 2 of generation ", "replacing revision 2 of generation ")
	workers.awaitReady()
	d.awaitEmpty()
	testkit.Equal(t, count(d.slack.Accepted(), "category")["after"], 5, "events were posted")
	testkit.Equal(t, d.delivered()-delivered, uint64(len(ids)), "deliveries, one of each event")
	run(t, with, "check").want(0, "ok    live limits: ")
	workers.awaitLog(1, wordCurrent)
	workers.awaitLog(1, wordOlder)
}

// TestFunctions runs the scripts as functions, and flushes them once.
func TestFunctions(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	if !servertest.HasFunctions(t) {
		w := d.startWorker("worker", "REDIS_SCRIPTING", "function", "REDIS_FAILURE", "hold")
		w.awaitUnready("redis")
		return
	}
	w := d.startReady("worker", "REDIS_SCRIPTING", "function", "REDIS_FAILURE", "hold", "CATEGORY_LIMIT", "3/1h").alone()
	d.wantEvaluated(2, "errors", "1", "2")
	d.redis.CLI("function", "flush")
	d.wantEvaluated(3, "errors", "3", "4", "5")
	w.awaitOutcomes(map[string]int{"sent": 3, "dropped": 2})
	calls := d.redis.CLI("info", "commandstats")
	testkit.Contains(t, "calls", calls, "cmdstat_fcall:")
	testkit.Lacks(t, "calls", calls, "cmdstat_eval")
}
