package tests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func (d *deployment) awaitPosts(n int) {
	d.t.Helper()
	testkit.NoError(d.t, d.slack.Await(testkit.Context(d.t), n))
}

func (d *deployment) posts(id string) []slacktest.Post {
	return slices.DeleteFunc(d.slack.Accepted(), func(post slacktest.Post) bool { return post.Origin("id") != id })
}

// post returns the one post of an event.
func (d *deployment) post(id string) slacktest.Post {
	d.t.Helper()
	found := d.posts(id)
	testkit.Require(d.t, len(found) == 1, "%s was posted %d times, want once", id, len(found))
	return found[0]
}

func postsTo(posts []slacktest.Post, channel string) []slacktest.Post {
	return slices.DeleteFunc(slices.Clone(posts), func(post slacktest.Post) bool { return post.Channel != channel })
}

func text(message slacktest.Message) string {
	all := []string{message.Text}
	for _, shown := range message.Texts() {
		all = append(all, shown.Text)
	}
	return strings.Join(all, "\n")
}

func count(posts []slacktest.Post, by string) map[string]int {
	counts := make(map[string]int)
	for _, post := range posts {
		counts[post.Origin(by)]++
	}
	return counts
}

// wantPostedOnce wants one post of each event, and no other post.
func wantPostedOnce(t testing.TB, posts []slacktest.Post, ids ...string) {
	t.Helper()
	want := make(map[string]int)
	for _, id := range ids {
		want[id] = 1
	}
	wantPosts(t, posts, want)
}

// wantPosts wants a number of posts of each event, and no other post.
func wantPosts(t testing.TB, posts []slacktest.Post, want map[string]int) {
	t.Helper()
	got := count(posts, "id")
	for id, n := range want {
		testkit.Check(t, got[id] == n, "%s was posted %d times, want %d", id, got[id], n)
		delete(got, id)
	}
	testkit.Check(t, len(got) == 0, "posts of other events: %v", got)
}

// wantDefaultLimits wants posts of exactly 100 events, and of at most 10 of each category. Repeated posts of an event count once.
func (d *deployment) wantDefaultLimits() {
	d.t.Helper()
	categories := make(map[string]string)
	for _, post := range d.slack.Accepted() {
		categories[post.Origin("id")] = post.Origin("category")
	}
	testkit.Equal(d.t, len(categories), 100, "events were posted")
	ofCategory := make(map[string]int)
	for _, category := range categories {
		ofCategory[category]++
		testkit.AtMost(d.t, ofCategory[category], 10, "events of %s were posted", category)
	}
}

// wantLogged wants the root log to hold exactly the posted events.
func (d *deployment) wantLogged() {
	d.t.Helper()
	testkit.EqualSlices(d.t, slices.Sorted(maps.Keys(d.log(rootLog))), slices.Sorted(maps.Keys(count(d.slack.Posts(), "id"))), "events in the root log")
}

// repeats counts the posts beyond the first one of each event.
func repeats(posts []slacktest.Post) int { return len(posts) - len(count(posts, "id")) }

// log reads the sliding log of a limit: the score of each ID.
func (d *deployment) log(key string) map[string]string {
	d.t.Helper()
	text := d.redis.CLI("zrange", key, "0", "-1", "withscores")
	members := make(map[string]string)
	if text == "" {
		return members
	}
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		_, id, _ := strings.Cut(lines[i], " ") // behind the category
		members[id] = lines[i+1]
	}
	return members
}
