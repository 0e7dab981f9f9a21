package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// publishOfKeys publishes events of each key, in turns. The ID begins with the key.
func (d *deployment) publishOfKeys(category, round string, keys []string, count int) {
	d.t.Helper()
	for i := range count {
		for _, key := range keys {
			body := fmt.Sprintf(`{"id":"%s/%s/%d","title":"an event of %[1]s","key":%[1]q}`, key, round, i)
			testkit.Must(d.js.PublishAsync(subjectPrefix+"."+category, []byte(body)))(d.t)
		}
	}
	d.awaitStored()
}

// wantOfKeys wants a number of events of each key in Slack, and of no other key. Repeated posts of an event count once.
func (d *deployment) wantOfKeys(want int, keys []string) {
	d.t.Helper()
	wanted, posted := make(map[string]int), make(map[string]int)
	for _, key := range keys {
		wanted[key] = want
	}
	for id := range count(d.slack.Accepted(), "id") {
		key, _, _ := strings.Cut(id, "/")
		posted[key]++
	}
	testkit.EqualMaps(d.t, posted, wanted, "events in Slack by key")
}

// TestLimitOfEachKey sets limits of each key under four workers, two of which are killed. Each key has its own slots, exactly, and nothing but
// the rule is shown.
func TestLimitOfEachKey(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	slowPosts(d.slack, 20*time.Millisecond)
	workers := d.startFleet(4, quick("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "SLACK_SETTLE", "5s")...)
	d.limits("set", "payments@key", "1/1h")
	keys := numbered("secret-host-", 60)
	d.publishOfKeys("payments", "first", keys, 10)
	d.awaitPosts(5)
	workers[0].kill()
	d.awaitPosts(20)
	workers[1].kill()
	d.awaitEmpty()
	d.wantOfKeys(1, keys)
	testkit.Equal(t, len(d.slack.Accepted()), len(keys), "posts, none of which a kill repeats")

	// A raised limit gives each key one slot more, and a key below the path counts with it.
	d.limits("set", "payments@key", "2/1h")
	d.publishOfKeys("payments.refunds", "second", keys, 5)
	d.awaitEmpty()
	d.wantOfKeys(2, keys)

	// Events without a key and of other categories have no such limit.
	d.wantEvaluated(len(keys)+5, "payments", "1", "2", "3", "4", "5") // the first event of each key was one of payments
	d.wantEvaluated(3, "deploys", "1", "2", "3")

	testkit.Contains(t, "shown", d.limits("payments@"+keys[7]), "payments@"+keys[7], "2 of 2", "would be denied now by payments@key 2/1h")
	testkit.Contains(t, "shown", d.limits("payments@another"), "0 of 2", "would be sent now")
	sent := postedIn(d.slack.Accepted(), "payments.refunds")[0]
	testkit.Contains(t, "shown", d.notifier("why", sent), "sent at ", `with the key "`+strings.Split(sent, "/")[0]+`" would be denied now by payments@key 2/1h`)
	testkit.Contains(t, "shown", d.limits(), "60 keys in use")
	d.publish(subjectPrefix+".payments", `{"id":"late","title":"late","key":"secret-host-7"}`)
	d.awaitEmpty()
	d.wantWhy("dropped", "by payments@key 2/1h: 2 of 2 used", "late")
	for _, w := range workers[2:] {
		if _, shown := w.get("/metrics"); strings.Contains(shown, "secret") || !strings.Contains(shown, `level="payments@key"`) {
			t.Errorf("%s: the metrics name a key, or lack the rule", w.name)
		}
		testkit.Equal(t, w.logLines("secret"), 0, "log lines of %s with a key", w.name)
	}
	for _, suppressed := range d.status().Suppressed {
		testkit.Equal(t, suppressed.Level, "payments@key", "level of suppressed events")
	}
	for name := range strings.FieldsSeq(d.redis.CLI("keys", "*@*")) {
		testkit.Lacks(t, "key in Redis", name, "secret")
		ttl := d.redis.CLI("ttl", name)
		testkit.Check(t, !strings.HasPrefix(ttl, "-"), "the Redis key %s stays: ttl %s", name, ttl)
	}
}

// TestPairsOfALimitedKey resolves an event whose key is full: a resolved event takes no slot.
func TestPairsOfALimitedKey(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startReady("worker", quick("LIMITS", "payments@key=1/1h")...)
	d.publish(subjectPrefix+".payments", firing("fires", "db-1"))
	d.publish(subjectPrefix+".payments", firing("fires-too", "db-2"))
	d.awaitPosts(2)
	d.publish(subjectPrefix+".payments", firing("fires-again", "db-1"))
	d.publish(subjectPrefix+".payments", resolved("is-over", "db-1"))
	d.awaitEmpty()
	d.wantNotPosted("fires-again")
	d.wantResolved("fires", "is-over")
}
