package pacing

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMentions(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
	for _, way := range scripttest.Ways(t) {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			r := shared{runner: script.NewRunner(script.Options{Client: client, Prefix: string(way), Timeout: scripttest.Patience, Scripting: way})}
			giveBack := func(path, id string) {
				t.Helper()
				testkit.Must(r.mention(t.Context(), path, id, 0))(t)
			}
			may := func(path, id string, d time.Duration) mention {
				t.Helper()
				return testkit.Must(r.mention(t.Context(), path, id, d))(t)
			}
			for i, step := range []struct {
				path, id string
				want     mention
			}{
				{"a", "first", takesMention}, {"a", "second", noMention}, {"a", "first", hasMention}, {"a.b", "second", takesMention},
				{"a", "second", noMention}, {"a.b", "first", noMention}, {"", "first", takesMention},
			} {
				testkit.Equal(t, may(step.path, step.id, time.Hour), step.want, "step %d: %q of %q may mention", i, step.id, step.path)
			}
			giveBack("a", "second") // the event has no mention
			giveBack("never asked for", "second")
			testkit.Equal(t, may("a", "second", time.Hour), noMention, "what somebody else gave back is there")
			giveBack("a", "first")
			giveBack("a", "first")
			testkit.Equal(t, may("a", "second", time.Hour), takesMention, "after it was given back")
			ttl := client.PTTL(t.Context(), r.runner.Key("mention:a")).Val()
			testkit.Check(t, ttl > 0 && ttl <= time.Hour, "it is kept for %v", ttl)
			may("short", "first", time.Microsecond)
			testkit.Eventually(t, "another event to have its turn", func() bool { return may("short", "second", time.Hour) != noMention })
			testkit.Equal(t, may("short", "first", time.Hour), noMention, "the earlier event may mention")
		})
	}
}

func TestMentionsOfAnInstanceAlone(t *testing.T) {
	t.Parallel()
	p := &newLocal(Budgets{}).mentions
	for i, step := range []struct {
		after    time.Duration
		path, id string
		want     mention
	}{
		{0, "a", "first", takesMention},
		{time.Second, "a", "second", noMention},
		{time.Minute - time.Microsecond, "a", "first", hasMention},
		{time.Minute - time.Microsecond, "a", "second", noMention},
		{time.Minute - time.Microsecond, "b", "second", takesMention},
		{time.Minute, "a", "second", takesMention},
		{2*time.Minute - time.Microsecond, "a", "first", noMention},
	} {
		got := p.take(testkit.Start.Add(step.after), step.path, step.id, time.Minute)
		testkit.Equal(t, got, step.want, "step %d: %q of %q may mention", i, step.id, step.path)
	}
	p.giveBack("b", "first")
	p.giveBack("a", "second")
	soon := testkit.Start.Add(time.Minute + time.Second)
	testkit.Equal(t, p.take(soon, "b", "first", time.Minute), noMention, "after somebody else gave it back")
	testkit.Equal(t, p.take(soon, "a", "first", time.Minute), takesMention, "after it was given back")
}
