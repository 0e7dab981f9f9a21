package pacing

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// readers makes the parts of instances in the readings of threads, in one Redis.
type readers struct {
	*Readings
	t      *testing.T
	server *servertest.Redis
}

func newReaders(t *testing.T) readers {
	t.Helper()
	server := servertest.StartRedis(t)
	client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
	runner := script.NewRunner(script.Options{Client: client, Prefix: "pacer", Timeout: scripttest.Patience})
	return readers{NewReadings(runner, nil), t, server}
}

// asking returns a question with a number about messages of a time.
func asking(number int, ago time.Duration) func() (int, time.Duration) {
	return func() (int, time.Duration) { return number, ago }
}

// claimed makes a part that has the claim on a thread.
func (r readers) claimed(ctx context.Context, ago time.Duration) *Reading {
	r.t.Helper()
	reading := r.Of("C1")
	if posts, _, err := reading.Await(ctx, asking(1, ago)); posts != nil || err != nil {
		r.t.Fatalf("got %v and %v, want the claim", posts, err)
	}
	return reading
}

// wait has a part ask a question while another instance has the claim. It returns when the question is in Redis.
func (r readers) wait(reading *Reading, number int, ago time.Duration) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	asked := 0
	_, _, err := reading.Await(ctx, func() (int, time.Duration) {
		if asked++; asked == 2 { // the first call has returned
			cancel()
		}
		return number, ago
	})
	testkit.Require(r.t, errors.Is(err, context.Canceled), "got %v, want that it waits", err)
}

// wantAnswered wants what another instance has read, and up to which question it proves what is missing.
func (r readers) wantAnswered(reading *Reading, number int, ago time.Duration, posts map[string]string, want int) {
	r.t.Helper()
	got, answered, err := reading.Await(r.t.Context(), asking(number, ago))
	testkit.Check(r.t, err == nil && got != nil && maps.Equal(got, posts) && answered == want,
		"got %v, %d and %v, want %v and %d", got, answered, err, posts, want)
}

var readPosts = map[string]string{"a": "1.1", "b": "2.2"}

// TestReadingAnswersOthers has an instance read a thread while another one waits, with a question that it asks before the reading begins, or
// after. It learns what is there, and what is not there if it asked before, and if the reading has reached the end.
func TestReadingAnswersOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asksLate bool
		ago      time.Duration
		isAll    bool
		want     int
	}{
		"in time":            {false, time.Minute, true, 1},
		"further back":       {false, time.Hour, true, 1}, // the reading goes back that far too
		"late":               {true, time.Minute, true, 0},
		"the reading is cut": {false, time.Minute, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReaders(t)
			reader, other := r.claimed(t.Context(), time.Minute), r.Of("C1")
			if !test.asksLate {
				r.wait(other, 1, test.ago)
			}
			ago := reader.Begin(t.Context(), time.Minute)
			testkit.Check(t, ago >= test.ago && ago <= test.ago+time.Minute, "the reading goes back for %v, want %v and a little", ago, test.ago)
			r.wait(other, 1, test.ago)
			r.wait(other, 2, test.ago) // another question, in any case too late
			reader.End(t.Context(), readPosts, test.isAll)
			r.wantAnswered(other, 2, test.ago, readPosts, test.want)
			if posts, _, err := other.Await(t.Context(), asking(2, test.ago)); posts != nil || err != nil {
				t.Errorf("after the reading: got %v and %v, want the claim", posts, err)
			}
		})
	}
}

// TestReadingOfFurtherBack has a question about messages that are older than what was read, since they mattered only after the reading began.
func TestReadingOfFurtherBack(t *testing.T) {
	t.Parallel()
	for ago, want := range map[time.Duration]int{time.Minute: 1, time.Hour: 0} {
		r := newReaders(t)
		reader, other := r.claimed(t.Context(), time.Minute), r.Of("C1")
		r.wait(other, 1, time.Minute)
		reader.Begin(t.Context(), time.Minute)
		reader.End(t.Context(), nil, true)
		r.wantAnswered(other, 1, ago, map[string]string{}, want)
	}
}

// TestReadingWithoutAnEnd has readings that share nothing: one has not begun, and one has lost its claim. The next instance gets the claim.
func TestReadingWithoutAnEnd(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	r.claimed(t.Context(), time.Minute).End(t.Context(), readPosts, true)
	late, other := r.claimed(t.Context(), time.Minute), r.Of("C1")
	late.Begin(t.Context(), time.Minute)
	r.wait(other, 1, time.Minute)
	r.server.CLI("DEL", key("reading:C1")) // as if it had expired
	next := r.claimed(t.Context(), time.Minute)
	late.End(t.Context(), readPosts, true)
	testkit.Equal(t, r.server.CLI("EXISTS", key("read:C1")), "0", "a reading is stored")
	next.Begin(t.Context(), time.Minute)
	next.End(t.Context(), nil, true)
	r.wantAnswered(other, 1, time.Minute, map[string]string{}, 1)
}

// TestReadingsKeepAClaim has a reading that goes on when its claim is about to expire.
func TestReadingsKeepAClaim(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	r.claimed(t.Context(), time.Minute)
	r.server.CLI("EXPIRE", key("reading:C1"), "3600")
	testkit.Eventually(t, "the claim is renewed", func() bool { return len(r.server.CLI("TTL", key("reading:C1"))) < len("3600") })
}

// TestReadingsWithoutRedis has Redis be unavailable, and hold something else than a reading.
func TestReadingsWithoutRedis(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	unavailable := *r.Readings
	unavailable.shared.available = func() bool { return false }
	_, _, err := unavailable.Of("C1").Await(t.Context(), asking(1, 0))
	testkit.Fails(t, "error", err, script.ErrUnavailable)
	for _, odd := range []string{"9 0 1 name", "99999999999999999999 0 1"} {
		r.server.CLI("SET", key("read:C1"), odd)
		if posts, answered, err := r.Of("C1").Await(t.Context(), asking(1, 0)); err == nil || posts != nil || answered != 0 {
			t.Errorf("%q: got %v, %d and %v, want an error", odd, posts, answered, err)
		}
	}
	r.server.CLI("SET", key("read:C1"), "odd")
	r.claimed(t.Context(), 0)
	_, _, err = r.Of("C1").Await(testkit.Ended(t), asking(1, 0))
	testkit.Fails(t, "with an ended context", err, nil)
}
