package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// floods publishes floods of three categories of two channels.
type floods struct {
	*deployment
	published map[string]int // by channel
}

const (
	digestSlots    = 5
	digestInterval = 4 * time.Second
	digestWindow   = 6 * time.Second
)

var floodedChannels = map[string][]string{defaultChannel: {"errors", "late"}, "#payments": {"payments"}}

// flood publishes events of all categories.
func (f floods) flood(name, title string, count int) {
	for channel, categories := range floodedChannels {
		for _, category := range categories {
			f.published[channel] += f.deployment.flood(category, name, title, count)
		}
	}
}

// awaitReported waits until the digests of each channel count all events but those sent of each category.
func (f floods) awaitReported(sent int) {
	f.t.Helper()
	for channel, categories := range floodedChannels {
		f.deployment.awaitReported(channel, f.published[channel]-len(categories)*sent)
	}
}

// TestDigests floods twice, with drops in between, and stops a worker meanwhile.
func TestDigests(t *testing.T) {
	t.Parallel()
	p := pace{100 * time.Millisecond, 10}
	d := floods{newDeployment(t), make(map[string]int)}
	stalls := measureStalls(t)
	workers := d.startFleet(3, p.settings("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", fmt.Sprintf("%d/%v", digestSlots, digestWindow),
		"SUMMARY_INTERVAL", digestInterval.String(), "SLACK_ROUTES", "payments=#payments")...)
	d.flood("first", "<!channel> disk full", 80)
	d.awaitReported(digestSlots)
	for channel, categories := range floodedChannels {
		d.wantFirstDigest(channel, categories)
	}

	// The window is full, so all of these are dropped. The next digest comes after the interval.
	d.flood("between", "in between", 10)
	d.awaitEmpty()
	last := slices.MaxFunc(notifications(d.slack.Accepted()), func(a, b slacktest.Post) int { return a.Received.Compare(b.Received) })
	time.Sleep(time.Until(last.Received.Add(digestWindow + 100*time.Millisecond))) // until every slot is free again
	d.flood("last", "again", 50)
	d.awaitEmpty()
	workers[0].stop()
	d.awaitReported(2 * digestSlots)
	workers[1:].stop()

	posts := d.slack.Posts()
	for channel, categories := range floodedChannels {
		events, digests := notifications(postsTo(posts, channel)), d.digests(channel)
		testkit.Equal(t, len(events), len(categories)*2*digestSlots, "posts in %s in two windows", channel)
		testkit.Equal(t, repeats(events), 0, "repeated posts in %s", channel)
		testkit.Equal(t, reportedIn(digests), d.published[channel]-len(events), "reported drops in %s", channel)
		wantApart(t, digests, digestInterval)
		for _, digest := range digests {
			digest.wantSum(t)
			testkit.Equal(t, digest.atLeast || digest.doubtful != 0, false, "a digest is in doubt, though no worker was killed: %s", digest.Message.Text)
		}
		p.wantPaced(t, postsTo(posts, channel), stalls.tolerance())
	}
}

// wantFirstDigest checks the one digest in a channel after the first flood.
func (f floods) wantFirstDigest(channel string, categories []string) {
	f.t.Helper()
	const dropped = 80 - digestSlots
	digests, events := f.digests(channel), notifications(postsTo(f.slack.Accepted(), channel))
	testkit.Require(f.t, len(digests) == 1 && !digests[0].atLeast && len(events) == len(categories)*digestSlots,
		"%d digests in %s after %d posts; want an exact one after %d", len(digests), channel, len(events), len(categories)*digestSlots)
	digests[0].wantSum(f.t)
	for _, category := range categories {
		testkit.Equal(f.t, digests[0].paths[category], dropped, "drops of %s that the digest reports", category)
		testkit.Equal(f.t, len(f.log(rootLog+":"+category)), digestSlots, "slots of %s that are taken: digests take none", category)
	}
	testkit.Contains(f.t, "shown", text(digests[0].Message), fmt.Sprintf("%d × %s\n%s", dropped, categories[0], "&lt;!channel&gt; disk full"),
		fmt.Sprintf("category %d/%v", digestSlots, digestWindow), "next slot opens <!date^")
	// A whole flood may be dropped in one call, at one time.
	line := fmt.Sprintf("%d notifications were suppressed ", len(categories)*dropped)
	if !digests[0].shows(line+"between <!date^") && !digests[0].shows(line+"at <!date^") {
		f.t.Errorf("the digest in %s does not show %q and when: %v", channel, line, digests[0].Message.Texts())
	}
}

// TestDigestOfManyPaths drops thousands of paths below one category, one path of a neighbour, and hundreds of categories. The counts of the
// one digest add up, and name the neighbour.
func TestDigestOfManyPaths(t *testing.T) {
	t.Parallel()
	const slots, quiet = 5, 40
	categories, junk := hostile.Times(t, 300, 300), hostile.Times(t, 5000, 5000)
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", fmt.Sprintf("%d/1h", slots), "SUMMARY_INTERVAL", "1m", "METRICS_MAX_CATEGORIES", "10")
	d.publishEvents(numbered("payments.x", junk), 1)
	d.publishEvents([]string{"security.login"}, quiet)
	testkit.Eventually(t, "counts of the neighbour", func() bool { // a thousand first levels have a place, those that come first
		return d.redis.CLI("hexists", "{notifier}:drops:counts:"+defaultChannel, "security") == "1"
	})
	d.publishEvents(numbered("category", categories), 1)
	d.awaitReported(defaultChannel, junk+quiet+categories-slots)
	workers.awaitSum(1, "notifier_summaries_total", "result", "sent")
	testkit.AtLeast(t, workers.sum("notifier_events_total", "category", "other"), junk+categories-2*10, "events without a label of their category")
	workers.stop()
	digests := d.digests(defaultChannel)
	testkit.Require(t, len(digests) == 1 && len(notifications(d.slack.Posts())) == slots,
		"%d digests and %d other posts, want one and %d", len(digests), len(notifications(d.slack.Posts())), slots)
	digests[0].wantSum(t)
	shown := digests[0]
	// Workers count 20 paths below one first level by name.
	testkit.AtLeast(t, shown.paths["payments.>"], junk-slots-20, "drops of other paths below payments")
	testkit.Equal(t, shown.paths["security.login"], quiet, "drops of the neighbour")
	// A digest shows ten paths, and workers count a thousand first levels by name.
	if want := min(categories, 1000) - 10; !shown.moreAtLeast || shown.morePaths < want {
		t.Errorf("%d more paths, at least: %t, want at least %d", shown.morePaths, shown.moreAtLeast, want)
	}
}

// TestDigestOfWhatHasNoLimit wants digests to count resolved events without a pair, and to report a live limit.
func TestDigestOfWhatHasNoLimit(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, quick("CATEGORY_LIMIT", "2/1h", "SUMMARY_INTERVAL", "10s")...)
	d.limits("set", "errors", "1/1h")
	d.limits("set", "errors", "4/1h", "--shadow")
	workers.awaitLog(1, `"overrides":2`)
	for i := range 3 {
		d.publish("notify.disks", resolved(fmt.Sprint("ended", i), fmt.Sprint("key", i)))
	}
	workers.awaitSum(3, "notifier_dropped_total", "level", "unpaired")
	d.publishEvents([]string{"errors"}, 5)
	d.awaitReported(defaultChannel, 7)
	workers.stop()
	unpaired, texts := 0, ""
	for _, digest := range d.digests(defaultChannel) { // one, unless the machine stands still in between
		digest.wantSum(t)
		unpaired += digest.unpaired
		texts += digest.Message.Text
		if digest.paths["errors"] > 0 && !digest.shows("errors 1/1h") {
			t.Errorf("the digest lacks the limit of errors: %s", digest.Message.Text)
		}
	}
	testkit.Equal(t, unpaired, 3, "resolved alerts in the digests")
	testkit.Contains(t, "the digests", texts, "the live limit of errors was set to 1/1h by ")
	testkit.Equal(t, strings.Count(texts, "the live limit of "), 1, "changes of live limits in the digests")
}
