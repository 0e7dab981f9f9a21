package tests

import (
	"fmt"
	"html"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/hostile"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// How a digest tells what it does, in one line.
var (
	digestText   = regexp.MustCompile(`^(at least )?(\d+) notifications? (?:was|were) suppressed (?:between .*? and|at) .*? UTC(?:: (.*))?$`)
	pathText     = regexp.MustCompile(`^(\d+) × (other paths below )?([a-z0-9_.-]+)(?: \(.*\))?$`)
	moreText     = regexp.MustCompile(`^and (at least )?(\d+) more paths?: (\d+)$`)
	unpairedText = regexp.MustCompile(`^(\d+) resolved alerts? had no open notification$`)
	doubtfulText = regexp.MustCompile(`^including (\d+) that may have been told before$`)
)

func isDigest(post slacktest.Post) bool { return digestText.MatchString(post.Message.Text) }

// digest is what a channel was told of drops.
type digest struct {
	slacktest.Post
	dropped, unpaired, doubtful int
	atLeast, moreAtLeast        bool
	paths                       map[string]int // those below one are path.>
	morePaths, moreDropped      int
	others                      []string // what else it says
}

func readDigest(post slacktest.Post) digest {
	parts := digestText.FindStringSubmatch(html.UnescapeString(post.Message.Text))
	d := digest{Post: post, atLeast: parts[1] != "", dropped: toInt(parts[2]), paths: make(map[string]int)}
	for text := range strings.SplitSeq(parts[3], "; ") {
		if parts := pathText.FindStringSubmatch(text); parts != nil {
			name := parts[3]
			if parts[2] != "" {
				name += ".>"
			}
			d.paths[name] = toInt(parts[1])
		} else if parts := moreText.FindStringSubmatch(text); parts != nil {
			d.moreAtLeast, d.morePaths, d.moreDropped = parts[1] != "", toInt(parts[2]), toInt(parts[3])
		} else if parts := unpairedText.FindStringSubmatch(text); parts != nil {
			d.unpaired = toInt(parts[1])
		} else if parts := doubtfulText.FindStringSubmatch(text); parts != nil {
			d.doubtful = toInt(parts[1])
		} else {
			d.others = append(d.others, text)
		}
	}
	return d
}

func toInt(digits string) int {
	n, _ := strconv.Atoi(digits) // at most too large
	return n
}

// wantSum checks that the counts of a digest add up.
func (d digest) wantSum(t testing.TB) {
	t.Helper()
	sum := d.unpaired + d.moreDropped
	for _, n := range d.paths {
		sum += n
	}
	if sum != d.dropped || len(d.paths) > 10 {
		t.Errorf("a digest of %d drops has %d paths, and counts that add up to %d: %s", d.dropped, len(d.paths), sum, d.Message.Text)
	}
}

func (d digest) shows(text string) bool {
	return slices.ContainsFunc(d.Message.Texts(), func(t slacktest.Text) bool { return strings.Contains(t.Text, text) })
}

// digests are those that Slack took for a channel, the oldest first.
func (d *deployment) digests(channel string) []digest {
	var told []digest
	for _, post := range postsTo(d.slack.Accepted(), channel) {
		if isDigest(post) {
			told = append(told, readDigest(post))
		}
	}
	return told
}

// told adds up the counts of digests.
func told(digests []digest) int {
	sum := 0
	for _, digest := range digests {
		sum += digest.dropped
	}
	return sum
}

// awaitTold waits until the digests of a channel tell of so many drops.
func (d *deployment) awaitTold(channel string, dropped int) {
	d.t.Helper()
	testkit.Await(d.t, fmt.Sprintf("digests of %d drops in %s", dropped, channel), func() error {
		if got := told(d.digests(channel)); got != dropped {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// notifications are the posts that are no digests.
func notifications(posts []slacktest.Post) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), isDigest)
}

// flood stores events with titles, each as often as it says, all titles in turns, and returns the title of each ID.
func (d *deployment) flood(category, name string, titles map[string]int) map[string]string {
	d.t.Helper()
	byID := make(map[string]string)
	left := maps.Clone(titles)
	for len(left) > 0 {
		for title := range left {
			id := fmt.Sprintf("%s-%s-%d", category, name, len(byID))
			byID[id] = title
			message := nats.NewMsg("notify." + category)
			message.Data = fmt.Appendf(nil, `{"id":%q,"title":%q}`, id, title)
			if _, err := d.js.PublishMsgAsync(message); err != nil {
				d.t.Fatalf("publish %s: %v", id, err)
			}
			if left[title]--; left[title] == 0 {
				delete(left, title)
			}
		}
	}
	d.awaitStored()
	return byID
}

// awaitStored waits until everything that is being published is stored.
func (d *deployment) awaitStored() {
	d.t.Helper()
	select {
	case <-d.js.PublishAsyncComplete():
	case <-time.After(patience):
		d.t.Fatalf("events are not stored after %v", patience)
	}
}

// escaper writes text as Slack wants it.
var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// TestDigests floods three categories of two channels twice, with drops in between, and replaces a worker meanwhile.
func TestDigests(t *testing.T) {
	t.Parallel()
	const (
		instances = 3
		slots     = 5
		interval  = 4 * time.Second
		window    = 6 * time.Second
	)
	channels := map[string][]string{defaultChannel: {"errors", "late"}, "#payments": {"payments"}}
	p := pace{100 * time.Millisecond, 10}
	d := newDeployment(t)
	stalls := measureStalls(t)
	workers := d.startFleet(instances, p.settings("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", fmt.Sprintf("%d/%v", slots, window),
		"SUMMARY_INTERVAL", interval.String(), "SLACK_ROUTES", "payments=#payments")...)
	published := make(map[string]int) // by channel
	flood := func(name string, counts map[string]int) {
		for channel, categories := range channels {
			for _, category := range categories {
				published[channel] += len(d.flood(category, name, counts))
			}
		}
	}
	flood("first", map[string]int{"<!channel> disk full": 80})
	for channel, categories := range channels {
		d.awaitTold(channel, len(categories)*(80-slots))
	}
	for channel, categories := range channels {
		digests, events := d.digests(channel), notifications(postsTo(d.slack.Accepted(), channel))
		if len(digests) != 1 || digests[0].atLeast || len(events) != len(categories)*slots {
			t.Errorf("%d digests in %s after %d posts; want an exact one after %d", len(digests), channel, len(events), len(categories)*slots)
		}
		digests[0].wantSum(t)
		for _, category := range categories {
			if got := digests[0].paths[category]; got != 80-slots {
				t.Errorf("the digest tells of %d drops of %s, want %d", got, category, 80-slots)
			}
			if entries := d.log(rootLog + ":" + category); len(entries) != slots {
				t.Errorf("%d slots of %s are taken, want %d: digests take none", len(entries), category, slots)
			}
		}
		for _, want := range []string{
			fmt.Sprintf("%d × %s\n%s", 80-slots, categories[0], escaper.Replace("<!channel> disk full")),
			fmt.Sprintf("category %d/%v", slots, window), "next slot opens <!date^",
		} {
			if !digests[0].shows(want) {
				t.Errorf("the digest in %s does not show %q: %v", channel, want, digests[0].Message.Texts())
			}
		}
		// A whole flood may be dropped in one call, at one time.
		line := fmt.Sprintf("%d notifications were suppressed ", len(categories)*(80-slots))
		if !digests[0].shows(line+"between <!date^") && !digests[0].shows(line+"at <!date^") {
			t.Errorf("the digest in %s does not show %q and when: %v", channel, line, digests[0].Message.Texts())
		}
	}

	// The window is full, so all of these are dropped; they are not told before the interval is over.
	flood("between", map[string]int{"in between": 10})
	d.awaitEmpty()
	last := slices.MaxFunc(notifications(d.slack.Accepted()), func(a, b slacktest.Post) int { return a.Received.Compare(b.Received) })
	time.Sleep(time.Until(last.Received.Add(window + 100*time.Millisecond))) // until every slot is free again
	flood("last", map[string]int{"again": 50})
	d.awaitEmpty()
	workers[0].stop()
	for channel, categories := range channels {
		d.awaitTold(channel, len(categories)*(80+10+50-2*slots))
	}
	for _, w := range workers[1:] {
		w.stop()
	}

	posts := d.slack.Posts()
	for channel, categories := range channels {
		events, digests := notifications(postsTo(posts, channel)), d.digests(channel)
		if want := len(categories) * 2 * slots; len(events) != want || repeats(events) != 0 {
			t.Errorf("%d posts in %s, %d of them repeated; want %d in two windows", len(events), channel, repeats(events), want)
		}
		if got, want := told(digests), published[channel]-len(events); got != want {
			t.Errorf("digests in %s tell of %d drops, want %d", channel, got, want)
		}
		wantApart(t, digests, interval)
		for _, digest := range digests {
			digest.wantSum(t)
			if digest.atLeast || digest.doubtful != 0 {
				t.Errorf("a digest is in doubt, though no worker was killed: %s", digest.Message.Text)
			}
		}
		p.wantPaced(t, postsTo(posts, channel), stalls.tolerance())
	}
}

func postsTo(posts []slacktest.Post, channel string) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), func(post slacktest.Post) bool { return post.Channel != channel })
}

// wantApart checks that the digests of one channel are an interval apart, but for the time that one took to be posted.
func wantApart(t testing.TB, digests []digest, interval time.Duration) {
	t.Helper()
	const underWay = 500 * time.Millisecond
	for i := 1; i < len(digests); i++ {
		if apart := digests[i].Received.Sub(digests[i-1].Received); apart < interval-underWay {
			t.Errorf("digests came %v apart, want %v", apart, interval)
		}
	}
}

// TestDigestOfManyPaths drops thousands of paths below one category, then a neighbour of that, then hundreds of categories once each.
// The channel gets one message, in which the counts add up, and the neighbour is not pushed out.
func TestDigestOfManyPaths(t *testing.T) {
	t.Parallel()
	const slots, quiet = 5, 40
	categories, junk := hostile.Times(t, 300, 300), hostile.Times(t, 5000, 5000)
	d := newDeployment(t)
	workers := d.startFleet(2, "GLOBAL_LIMIT", fmt.Sprintf("%d/1h", slots), "SUMMARY_INTERVAL", "1m")
	published := 0
	publish := func(category string) {
		if published++; published%1000 == 0 {
			d.awaitStored()
		}
		testkit.Must(d.js.PublishAsync("notify."+category, []byte(eventBody(fmt.Sprint("e", published)))))(t)
	}
	for i := range junk {
		publish(fmt.Sprintf("payments.x%d", i))
	}
	for range quiet {
		publish("security.login")
	}
	d.awaitStored()
	testkit.Await(t, "counts of the neighbour", func() error { // a thousand first levels have a place, those that come first
		if d.redis.CLI("hexists", "{notifier}:drops:counts:"+defaultChannel, "security") != "1" {
			return errMissing
		}
		return nil
	})
	for i := range categories {
		publish(fmt.Sprintf("category%d", i))
	}
	d.awaitStored()
	d.awaitTold(defaultChannel, published-slots)
	workers.awaitSum(1, "notifier_summaries_total", "result", "sent")
	workers.stopFrom(0)
	digests := d.digests(defaultChannel)
	if len(digests) != 1 || len(notifications(d.slack.Posts())) != slots {
		t.Fatalf("%d digests and %d other posts, want one and %d", len(digests), len(notifications(d.slack.Posts())), slots)
	}
	digests[0].wantSum(t)
	shown := digests[0]
	// Of the paths below one 20 are counted by name.
	if got := shown.paths["payments.>"]; got < junk-slots-20 {
		t.Errorf("%d drops of other paths below payments, want %d", got, junk-20)
	}
	testkit.Equal(t, shown.paths["security.login"], quiet, "drops of the neighbour")
	// Ten paths are shown, and of first levels a thousand are counted by name.
	if want := min(categories, 1000) - 10; !shown.moreAtLeast || shown.morePaths < want {
		t.Errorf("%d more paths, at least: %t, want at least %d", shown.morePaths, shown.moreAtLeast, want)
	}
}

// TestDigestWaitsForEvents has drops of 600 categories in a channel, at the pace that is the default, with events that wait for
// it: they go first, none of them is late for the digest, and the digest has failed nothing.
func TestDigestWaitsForEvents(t *testing.T) {
	t.Parallel()
	const dropped, events = 600, 14
	p := pace{time.Second, 5}
	d := newDeployment(t)
	stalls := measureStalls(t)
	workers := d.startFleet(2, p.settings("CATEGORY_LIMIT", "0/1h", "LIMITS", "security=100/1h,security.*=none", "SUMMARY_INTERVAL", "10s")...)
	var categories []string
	for i := range dropped {
		categories = append(categories, fmt.Sprintf("category%d", i))
	}
	ids := d.publishEvents([]string{"security"}, events)
	d.publishEvents(categories, 1)
	d.awaitTold(defaultChannel, dropped)
	d.awaitEmpty()
	workers.awaitSum(1, "notifier_summaries_total", "result", "sent")
	workers.awaitSum(1, "notifier_summaries_total")
	workers.stopFrom(0)

	posts := d.slack.Posts()
	wantPostedOnce(t, notifications(posts), ids)
	p.wantPaced(t, posts, stalls.tolerance())
	digests := d.digests(defaultChannel)
	if len(digests) != 1 {
		t.Fatalf("%d digests, want one", len(digests))
	}
	digests[0].wantSum(t)
	for _, post := range notifications(posts) {
		if post.Received.After(digests[0].Received) {
			t.Errorf("%s was posted %v after the digest, want before it", origin(post, "id"), post.Received.Sub(digests[0].Received))
		}
	}
	for _, w := range workers {
		if n := w.logLines("digest is not posted yet"); n != 0 {
			t.Errorf("%s says %d times that the digest failed", w.name, n)
		}
	}
}

// TestDigestOfWhatHasNoLimit has resolved events that resolve nothing, and a limit that was changed.
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
	d.awaitTold(defaultChannel, 7)
	workers.stopFrom(0)
	unpaired, paths, changed := 0, make(map[string]int), 0
	for _, digest := range d.digests(defaultChannel) { // one, unless the machine stands still in between
		digest.wantSum(t)
		unpaired += digest.unpaired
		for path, n := range digest.paths {
			paths[path] += n
		}
		for _, text := range digest.others {
			if !strings.HasPrefix(text, "the live limit of errors was set to 1/1h at ") {
				t.Errorf("a digest tells %q", text)
			}
			changed++
		}
		if strings.Contains(digest.Message.Text, "unpaired") || digest.paths["errors"] > 0 && !digest.shows("errors 1/1h") {
			t.Errorf("digest %s; want the limit of errors, and no other one", digest.Message.Text)
		}
	}
	if unpaired != 3 || !maps.Equal(paths, map[string]int{"errors": 4}) || changed != 1 {
		t.Errorf("digests of %d resolved alerts and %v, that tell %d times of a change; want 3, 4 of errors, and once", unpaired, paths, changed)
	}
}

// TestDigestsOfAKilledWorker kills a worker in the middle of a flood: what it had not told in its last second is missing,
// and the digests say so.
func TestDigestsOfAKilledWorker(t *testing.T) {
	t.Parallel()
	const interval = 4 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(3, quick("GLOBAL_LIMIT", "none", "SUMMARY_INTERVAL", interval.String())...)
	var (
		published []time.Time
		killed    time.Time
	)
	for begin := time.Now(); killed.IsZero() || time.Since(killed) < time.Second; time.Sleep(2 * time.Millisecond) { // the pace of a flood
		id := fmt.Sprintf("errors-%d", len(published))
		if _, err := d.js.PublishAsync("notify.errors", []byte(eventBody(id))); err != nil {
			t.Fatalf("publish %s: %v", id, err)
		}
		published = append(published, time.Now())
		if killed.IsZero() && time.Since(begin) > 2500*time.Millisecond && len(published) > 100 {
			killed = time.Now()
			workers[0].kill()
		}
	}
	d.awaitStored()
	d.awaitEmpty()
	dropped := len(published) - len(count(notifications(d.slack.Accepted()), "id"))
	atStake := 0
	for _, at := range published {
		if before := killed.Sub(at); before > 0 && before < 1500*time.Millisecond {
			atStake++
		}
	}
	testkit.Await(t, "digests of what the workers had told", func() error {
		if got := told(d.digests(defaultChannel)); got < dropped-atStake {
			return fmt.Errorf("%d of %d", got, dropped)
		}
		return nil
	})
	workers.stopFrom(1)
	digests := d.digests(defaultChannel)
	if got := told(digests); got > dropped {
		t.Errorf("digests tell of %d drops, there were %d", got, dropped)
	}
	if !slices.ContainsFunc(digests, func(d digest) bool { return d.atLeast && d.shows("at least ") }) {
		t.Errorf("none of %d digests says at least", len(digests))
	}
	wantApart(t, digests, interval)
}

// TestStopWhileADigestWaits stops a worker whose digest waits for its channel: it ends in good order all the same, and the counts
// wait for another one.
func TestStopWhileADigestWaits(t *testing.T) {
	t.Parallel()
	const dropped = 9
	p := pace{20 * time.Second, 1}
	d := newDeployment(t)
	changes := p.settings("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "1/1h", "SUMMARY_INTERVAL", "1s")
	w := d.startReady("worker", changes...)
	d.flood("errors", "first", map[string]int{"disk full": 1 + dropped})
	d.awaitEmpty()
	testkit.Await(t, "a digest that is due", func() error {
		due, err := strconv.ParseFloat(d.redis.CLI("ZSCORE", "{notifier}:drops:due", defaultChannel), 64)
		if err != nil || time.UnixMicro(int64(due)).After(time.Now().Add(-2*time.Second)) {
			return fmt.Errorf("%v, %w", time.UnixMicro(int64(due)), err)
		}
		return nil
	})
	w.stop()
	if n := w.logLines("notifier has stopped"); n != 1 {
		t.Errorf("the log says %d times that it has stopped", n)
	}
	testkit.Equal(t, len(d.digests(defaultChannel)), 0, "digests, before the channel took one")
	other := d.startReady("another worker", changes...)
	d.awaitTold(defaultChannel, dropped)
	other.stop()
}

// stopFrom ends the workers of these places and later ones in good order.
func (f fleet) stopFrom(first int) {
	f[0].t.Helper()
	for _, w := range f[first:] {
		w.stop()
	}
}

// TestDigestRefused has Slack refuse digests, and nothing else.
func TestDigestRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		refusal slacktest.Answer
		times   int // that it is refused; then it is taken
		posts   int // of the digest
		result  string
	}{
		{"once", slacktest.Status(500, "rollup_error"), 1, 2, "sent"},
		{"with 429 seven times", slacktest.RateLimited(time.Second), 7, 8, "sent"}, // that is no failure
		{"for good", slacktest.Code("msg_too_long"), 100, 1, "given_up"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			var tried atomic.Int64
			d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				if isDigest(post) && tried.Add(1) <= int64(test.times) {
					return test.refusal
				}
				return slacktest.OK()
			})
			workers := d.startFleet(2, "SUMMARY_INTERVAL", "1s")
			ids := d.publishEvents([]string{"errors"}, 20)
			d.awaitEmpty()
			workers.awaitSum(1, "notifier_summaries_total", "result", test.result)
			workers.awaitSum(1, "notifier_summaries_total")
			workers.stopFrom(0)

			posts := d.slack.Posts()
			if got := len(posts) - len(notifications(posts)); got != test.posts {
				t.Errorf("the digest was posted %d times, want %d", got, test.posts)
			}
			givenUp, taken := 0, told(d.digests(defaultChannel))
			for _, w := range workers {
				givenUp += w.logLines("digest is given up")
			}
			wantTaken, wantGivenUp := len(ids)-10, 0
			if test.result == "given_up" {
				wantTaken, wantGivenUp = 0, 1
			}
			if taken != wantTaken || givenUp != wantGivenUp {
				t.Errorf("digests tell of %d drops, and %d are given up by the log; want %d and %d", taken, givenUp, wantTaken, wantGivenUp)
			}
			if counts := "{notifier}:drops:counts:" + defaultChannel; d.redis.CLI("hexists", counts, "\nclaimed") != "0" {
				t.Errorf("the digest is left after its end: %s", d.redis.CLI("hget", counts, "\nclaimed"))
			}
		})
	}
}

// TestNoDigests turns them off: nothing is told, and nothing is counted for it.
func TestNoDigests(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "SUMMARY_INTERVAL", "0")
	ids := d.publishEvents([]string{"errors"}, 50)
	workers.awaitEvents(len(ids))
	workers.stopFrom(0)
	testkit.Equal(t, len(d.slack.Posts()), 10, "posts")
	if d.redis.CLI("exists", "{notifier}:drops:due", "{notifier}:drops:merged") != "0" {
		t.Errorf("drops are counted: %s", d.redis.CLI("zrange", "{notifier}:drops:due", "0", "-1"))
	}
}
