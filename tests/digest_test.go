package tests

import (
	"fmt"
	"html"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The parts of a digest's text.
var (
	digestText   = regexp.MustCompile(`^(at least )?(\d+) notifications? (?:was|were) suppressed (?:between .*? and|at) .*? UTC(?:: (.*))?$`)
	pathText     = regexp.MustCompile(`^(\d+) × (other paths below )?([a-z0-9_.-]+)(?: \(.*\))?$`)
	moreText     = regexp.MustCompile(`^and (at least )?(\d+) more paths?: (\d+)$`)
	unpairedText = regexp.MustCompile(`^(\d+) resolved alerts? had no open notification$`)
	doubtfulText = regexp.MustCompile(`^including (\d+) that an earlier digest may have reported$`)
)

func isDigest(post slacktest.Post) bool { return digestText.MatchString(post.Message.Text) }

// digest is a parsed digest.
type digest struct {
	slacktest.Post
	dropped, unpaired, doubtful int
	atLeast, moreAtLeast        bool
	paths                       map[string]int // those below one are path.>
	morePaths, moreDropped      int
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
	testkit.Check(t, sum == d.dropped && len(d.paths) <= 10,
		"a digest of %d drops has %d paths, and counts that add up to %d: %s", d.dropped, len(d.paths), sum, d.Message.Text)
}

func (d digest) shows(text string) bool {
	return slices.ContainsFunc(d.Message.Texts(), func(t slacktest.Text) bool { return strings.Contains(t.Text, text) })
}

// digests returns the accepted digests of a channel, the oldest first.
func (d *deployment) digests(channel string) []digest {
	var digests []digest
	for _, post := range postsTo(d.slack.Accepted(), channel) {
		if isDigest(post) {
			digests = append(digests, readDigest(post))
		}
	}
	return digests
}

func reportedIn(digests []digest) int {
	sum := 0
	for _, digest := range digests {
		sum += digest.dropped
	}
	return sum
}

func (d *deployment) awaitReported(channel string, dropped int) {
	d.t.Helper()
	awaitNumber(d.t, dropped, "reported drops in "+channel, func() (int, error) { return reportedIn(d.digests(channel)), nil })
}

// notifications returns the posts that are no digests.
func notifications(posts []slacktest.Post) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), isDigest)
}

// flood publishes count events with a title, and returns count.
func (d *deployment) flood(category, name, title string, count int) int {
	d.t.Helper()
	for i := range count {
		body := fmt.Appendf(nil, `{"id":"%s-%s-%d","title":%q}`, category, name, i, title)
		testkit.Must(d.js.PublishAsync(subjectPrefix+"."+category, body))(d.t)
	}
	d.awaitStored()
	return count
}

// wantApart wants an interval between the digests of a channel, less the time of one post.
func wantApart(t testing.TB, digests []digest, interval time.Duration) {
	t.Helper()
	const underWay = 500 * time.Millisecond
	for i := 1; i < len(digests); i++ {
		testkit.AtLeast(t, digests[i].Received.Sub(digests[i-1].Received), interval-underWay, "time between digests")
	}
}
