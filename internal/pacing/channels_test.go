package pacing

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestChannels has an instance learn the ID of a channel from another one. While Redis is unavailable, nobody knows it.
func TestChannels(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
	runner := script.NewRunner(script.Options{Client: client, Prefix: "pacer", Timeout: scripttest.Patience})
	isAvailable := true
	first, second := NewChannels(runner, nil), NewChannels(runner, func() bool { return isAvailable })
	want := func(channel, id string) {
		t.Helper()
		testkit.Equal(t, testkit.Must(second.ID(t.Context(), channel))(t), id, "the ID of %s", channel)
	}
	want("#a", "")
	for _, id := range []string{"C0000001", "C0000001", "C0000002"} {
		testkit.NoError(t, first.Note(t.Context(), "#a", id))
		want("#a", id)
	}
	want("#b", "")
	testkit.Check(t, server.CLI("TTL", key("id:#a")) != "-1", "the ID never expires")
	isAvailable = false
	_, err := second.ID(t.Context(), "#a")
	for _, err := range []error{err, second.Note(t.Context(), "#a", "C0000001")} {
		testkit.Fails(t, "without redis", err, script.ErrUnavailable)
	}
}
