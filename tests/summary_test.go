package tests

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/slacktest"
)

// summaryText is how the text of a summary begins.
var summaryText = regexp.MustCompile(`^(at least )?(\d+) notifications? of (\S+) (?:was|were) suppressed `)

func isSummary(post slacktest.Post) bool { return summaryText.MatchString(post.Message.Text) }

// summary is what a channel was told of one path.
type summary struct {
	slacktest.Post
	path    string
	dropped int
	atLeast bool
}

func (s summary) shows(text string) bool {
	return slices.ContainsFunc(s.Message.Texts(), func(t slacktest.Text) bool { return strings.Contains(t.Text, text) })
}

// summaries are those that Slack took, by path, the oldest first.
func (d *deployment) summaries() map[string][]summary {
	told := make(map[string][]summary)
	for _, post := range d.slack.Accepted() {
		if parts := summaryText.FindStringSubmatch(post.Message.Text); parts != nil {
			dropped, _ := strconv.Atoi(parts[2])
			told[parts[3]] = append(told[parts[3]], summary{post, parts[3], dropped, parts[1] != ""})
		}
	}
	return told
}

// told adds up the counts of summaries.
func told(summaries []summary) int {
	sum := 0
	for _, s := range summaries {
		sum += s.dropped
	}
	return sum
}

// awaitTold waits until the summaries of a path tell of so many drops.
func (d *deployment) awaitTold(path string, dropped int) {
	d.t.Helper()
	await(d.t, fmt.Sprintf("summaries of %d drops of %s", dropped, path), func() error {
		if got := told(d.summaries()[path]); got != dropped {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// notifications are the posts that are no summaries.
func notifications(posts []slacktest.Post) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), isSummary)
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

// mostFrequent is how a summary shows the titles of what was not posted.
func mostFrequent(titles map[string]string, posts []slacktest.Post) string {
	posted := count(posts, "id")
	counts := make(map[string]int)
	for id, title := range titles {
		if posted[id] == 0 {
			counts[title]++
		}
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var lines strings.Builder
	for _, name := range names[:min(3, len(names))] {
		fmt.Fprintf(&lines, "%d × %s\n", counts[name], escaper.Replace(name))
	}
	return "Most frequent:\n" + strings.TrimSpace(lines.String())
}

// escaper writes text as Slack wants it.
var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// TestSummaries floods two categories twice, with drops in between, and replaces a worker meanwhile.
func TestSummaries(t *testing.T) {
	t.Parallel()
	const (
		instances = 3
		slots     = 5
		interval  = 4 * time.Second
		window    = 6 * time.Second
	)
	channels := map[string]string{"errors": defaultChannel, "payments": "#payments"}
	p := pace{100 * time.Millisecond, 10}
	d := newDeployment(t)
	stalls := measureStalls(t)
	workers := d.startFleet(instances, p.settings("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", fmt.Sprintf("%d/%v", slots, window),
		"SUMMARY_INTERVAL", interval.String(), "SLACK_ROUTES", "payments=#payments")...)
	titles := make(map[string]map[string]string) // by category and ID
	flood := func(name string, counts map[string]int) {
		for category := range channels {
			if titles[category] == nil {
				titles[category] = make(map[string]string)
			}
			maps.Copy(titles[category], d.flood(category, name, counts))
		}
	}
	// However the slots fall, the four are dropped in this order of frequency.
	flood("first", map[string]int{"<!channel> disk full": 40, "till & scanner": 25, "late refund": 12, "rare": 3})
	for category := range channels {
		d.awaitTold(category, 80-slots)
	}
	first := d.summaries()
	for category, channel := range channels {
		s := first[category][0]
		events := notifications(postsTo(d.slack.Accepted(), channel))
		if len(first[category]) != 1 || s.atLeast || s.Channel != channel || len(events) != slots {
			t.Errorf("%d summaries of %s, the first one in %s, at least: %t, after %d posts; want one in %s, exact, after %d",
				len(first[category]), category, s.Channel, s.atLeast, len(events), channel, slots)
		}
		for _, want := range []string{
			mostFrequent(titles[category], events),
			fmt.Sprintf("limit category %d/%v", slots, window), "next slot opens <!date^",
		} {
			if !s.shows(want) {
				t.Errorf("the summary of %s does not show %q: %v", category, want, s.Message.Texts())
			}
		}
		// A whole flood may be dropped in one call, at one time.
		line := fmt.Sprintf("%d notifications of %s were suppressed ", 80-slots, category)
		if !s.shows(line+"between <!date^") && !s.shows(line+"at <!date^") {
			t.Errorf("the summary of %s does not show %q and when: %v", category, line, s.Message.Texts())
		}
		if entries := d.log(rootLog + ":" + category); len(entries) != slots {
			t.Errorf("%d slots of %s are taken, want %d: summaries take none", len(entries), category, slots)
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
	for category := range channels {
		d.awaitTold(category, 80+10+50-2*slots)
	}
	for _, w := range workers[1:] {
		w.stop()
	}

	posts := d.slack.Posts()
	for category, channel := range channels {
		events, summaries := notifications(postsTo(posts, channel)), d.summaries()[category]
		if len(events) != 2*slots || repeats(events) != 0 {
			t.Errorf("%d posts of %s, %d of them repeated; want %d in two windows", len(events), category, repeats(events), 2*slots)
		}
		if got, want := told(summaries), len(titles[category])-len(events); got != want {
			t.Errorf("summaries of %s tell of %d drops, want %d", category, got, want)
		}
		wantApart(t, summaries, interval)
		for _, s := range summaries {
			if s.atLeast {
				t.Errorf("a summary of %s says at least, though no worker was killed: %s", category, s.Message.Text)
			}
		}
		p.wantPaced(t, postsTo(posts, channel), stalls.tolerance())
	}
}

func postsTo(posts []slacktest.Post, channel string) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), func(post slacktest.Post) bool { return post.Channel != channel })
}

// wantApart checks that the summaries of one path are an interval apart, but for the time that one took to be posted.
func wantApart(t testing.TB, summaries []summary, interval time.Duration) {
	t.Helper()
	const underWay = 500 * time.Millisecond
	for i := 1; i < len(summaries); i++ {
		if apart := summaries[i].Received.Sub(summaries[i-1].Received); apart < interval-underWay {
			t.Errorf("summaries of %s came %v apart, want %v", summaries[i].path, apart, interval)
		}
	}
}

// TestSummariesOfAKilledWorker kills a worker in the middle of a flood: what it had not told in its last second is missing,
// and the summaries say so.
func TestSummariesOfAKilledWorker(t *testing.T) {
	t.Parallel()
	const interval = 4 * time.Second
	d := newDeployment(t)
	workers := d.startFleet(3, quick("GLOBAL_LIMIT", "none", "SUMMARY_INTERVAL", interval.String())...)
	var (
		published []time.Time
		killed    time.Time
	)
	for begin := time.Now(); killed.IsZero() || time.Since(killed) < time.Second; time.Sleep(2 * time.Millisecond) {
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
	await(t, "summaries of what the workers had told", func() error {
		if got := told(d.summaries()["errors"]); got < dropped-atStake {
			return fmt.Errorf("%d of %d", got, dropped)
		}
		return nil
	})
	workers.stopFrom(1)
	summaries := d.summaries()["errors"]
	if got := told(summaries); got > dropped {
		t.Errorf("summaries tell of %d drops, there were %d", got, dropped)
	}
	if !slices.ContainsFunc(summaries, func(s summary) bool { return s.atLeast && s.shows("At least ") }) {
		t.Errorf("no summary of %d says at least", len(summaries))
	}
	wantApart(t, summaries, interval)
}

// TestStopWhileASummaryWaits stops a worker whose summary waits for its channel: it ends in good order all the same.
func TestStopWhileASummaryWaits(t *testing.T) {
	t.Parallel()
	p := pace{50 * time.Second, 1}
	d := newDeployment(t)
	w := d.startReady("worker", p.settings("GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "1/1h", "SUMMARY_INTERVAL", "1s")...)
	d.flood("errors", "first", map[string]int{"disk full": 10})
	d.awaitEmpty()
	post := d.slack.Accepted()[0].Received
	await(t, "a moment that is reserved for the summary", func() error {
		ends, err := strconv.ParseFloat(d.redis.CLI("ZSCORE", "{notifier}:paces", defaultChannel), 64)
		if err != nil || time.UnixMicro(int64(ends)).Before(post.Add(3*p.interval/2)) {
			return fmt.Errorf("%v, %w", time.UnixMicro(int64(ends)), err)
		}
		return nil
	})
	w.stop()
	if n := w.logLines("notifier has stopped"); n != 1 {
		t.Errorf("the log says %d times that it has stopped", n)
	}
}

// stopFrom ends the workers of these places and later ones in good order.
func (f fleet) stopFrom(first int) {
	f[0].t.Helper()
	for _, w := range f[first:] {
		w.stop()
	}
}

// TestSummaryRefused has Slack refuse summaries, and nothing else.
func TestSummaryRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		refusal slacktest.Answer
		times   int // that it is refused; then it is taken
		posts   int // of the summary, at most
		result  string
	}{
		{"once", slacktest.Status(500, "rollup_error"), 1, 2, "sent"},
		{"with 429 each time", slacktest.RateLimited(time.Second), 100, 5, "given_up"},
		{"for good", slacktest.Code("msg_too_long"), 100, 1, "given_up"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDeployment(t)
			var tried atomic.Int64
			d.slack.Respond(func(post slacktest.Post) slacktest.Answer {
				if isSummary(post) && tried.Add(1) <= int64(test.times) {
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
				t.Errorf("the summary was posted %d times, want %d", got, test.posts)
			}
			givenUp, taken := 0, told(d.summaries()["errors"])
			for _, w := range workers {
				givenUp += w.logLines("summary is given up")
			}
			wantTaken, wantGivenUp := len(ids)-10, 0
			if test.result == "given_up" {
				wantTaken, wantGivenUp = 0, 1
			}
			if taken != wantTaken || givenUp != wantGivenUp {
				t.Errorf("summaries tell of %d drops, and %d are given up by the log; want %d and %d", taken, givenUp, wantTaken, wantGivenUp)
			}
			if d.redis.CLI("hexists", "{notifier}:drops", "errors\n") != "0" {
				t.Errorf("the summary is left after its end: %s", d.redis.CLI("hget", "{notifier}:drops", "errors\n"))
			}
		})
	}
}

// TestNoSummaries turns them off: nothing is told, and nothing is counted for it.
func TestNoSummaries(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2, "SUMMARY_INTERVAL", "0")
	ids := d.publishEvents([]string{"errors"}, 50)
	workers.awaitEvents(len(ids))
	workers.stopFrom(0)
	if got := len(d.slack.Posts()); got != 10 {
		t.Errorf("%d posts, want 10", got)
	}
	if d.redis.CLI("exists", "{notifier}:drops") != "0" {
		t.Errorf("drops are counted: %s", d.redis.CLI("hgetall", "{notifier}:drops"))
	}
}
