package store

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Passed counts skipped messages between two positions once, also in a repeated call.
func TestPassed(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "passed", scriptSettings(t))
	for _, step := range []struct {
		name                 string
		nonce                int64
		sequence, deliveries uint64
		want                 int64
	}{
		{"the first position", 1, 100, 50, 0},
		{"each message delivered", 2, 110, 60, 0},
		{"seven skipped", 3, 120, 63, 7},
		{"the same call again", 3, 120, 63, 7},
		{"the same position of another instance", 4, 120, 63, 0},
		{"the call of seven once more", 3, 125, 68, 7},
		{"a position before that", 5, 115, 62, 0},
		{"redeliveries hide what was skipped", 6, 125, 75, 0},
		{"four skipped", 7, 130, 76, 4},
	} {
		got := testkit.Must(r.Queues.passedOnce(t.Context(), step.nonce, "consumer", step.sequence, step.deliveries))(t)
		testkit.Equal(t, got, step.want, "%s: messages skipped", step.name)
	}
	testkit.Equal(t, testkit.Must(r.Queues.Passed(t.Context(), "another", 5, 1))(t), 0, "messages of another consumer that vanished")
}

// TestPassedAfterLostReply loses the reply with the count. The next call returns the count.
func TestPassedAfterLostReply(t *testing.T) {
	t.Parallel()
	server, _ := startRedis(t)
	proxy := servertest.StartProxy(t, server.Addr)
	r := newRedis(scripttest.NewClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: -1}), "lost", scriptSettings(t))
	passed := func(ctx context.Context, sequence uint64) (int64, error) {
		return r.Queues.Passed(ctx, "consumer", sequence, 50)
	}
	testkit.Must(passed(t.Context(), 100))(t)
	lost := proxy.CutAfterRequest("consumer")
	if vanished, err := passed(t.Context(), 107); err == nil {
		t.Fatalf("the reply was not lost: %d", vanished)
	}
	<-lost
	for _, want := range []int64{7, 0} {
		testkit.Equal(t, testkit.Must(passed(t.Context(), 107))(t), want, "messages that vanished")
	}
}
