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

// claimed makes a part that has the claim on a thread.
func (r readers) claimed(ctx context.Context, ago time.Duration) *Reading {
	r.t.Helper()
	reading := r.Of("C1")
	if posts, _, err := reading.Await(ctx, 1, ago); posts != nil || err != nil {
		r.t.Fatalf("got %v and %v, want the claim", posts, err)
	}
	return reading
}

// ask takes one step of a question, without waiting. It returns the state of the answer.
func (r readers) ask(reading *Reading, ago time.Duration) int64 {
	r.t.Helper()
	answer := testkit.Must(reading.call(r.t.Context(), "ask", ago, reading.asked, reading.seen))(r.t)
	reading.asked = answer.time
	return answer.state
}

var readPosts = map[string]string{"a": "1.1", "b": "2.2"}

// TestReadingAnswersOthers has an instance read a thread while others wait, and one asks after the reading has begun. All learn what is there. Only
// those who asked before it began learn what is not there, if the reading went back far enough and reached the end.
func TestReadingAnswersOthers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asksLate bool
		ago      time.Duration
		isAll    bool
		want     int64
	}{
		"in time":            {false, time.Minute, true, provesAll},
		"further back":       {false, time.Hour, true, provesAll}, // the reading goes back that far too
		"late":               {true, time.Minute, true, newReading},
		"the reading is cut": {false, time.Minute, false, newReading},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReaders(t)
			reader, other := r.claimed(t.Context(), time.Minute), r.Of("C1")
			const waits = 0
			if !test.asksLate {
				testkit.Equal(t, r.ask(other, test.ago), int64(waits), "answer while another one has the claim")
			}
			ago := reader.Begin(t.Context(), time.Minute)
			if ago < test.ago || ago > test.ago+time.Minute {
				t.Errorf("the reading goes back for %v, want %v and a little", ago, test.ago)
			}
			if test.asksLate {
				testkit.Equal(t, r.ask(other, test.ago), int64(waits), "answer during the reading")
			}
			reader.End(t.Context(), readPosts, test.isAll)
			posts, isAll, err := other.Await(t.Context(), other.question, test.ago)
			testkit.NoError(t, err)
			testkit.Equal(t, maps.Equal(posts, readPosts), true, "the posts are shared")
			testkit.Equal(t, isAll, test.want == provesAll, "the reading proves what is not there")
			if posts, _, err := other.Await(t.Context(), other.question, test.ago); posts != nil || err != nil {
				t.Errorf("after the reading: got %v and %v, want the claim", posts, err)
			}
		})
	}
}

// TestReadingOfFurtherBack has a question about older messages than the reading went back to: it was asked after the reading had begun, or its
// age was not known then.
func TestReadingOfFurtherBack(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	reader, other := r.claimed(t.Context(), time.Minute), r.Of("C1")
	r.ask(other, time.Minute)
	reader.Begin(t.Context(), time.Minute)
	reader.End(t.Context(), nil, true)
	testkit.Equal(t, r.ask(other, time.Hour), newReading, "answer about an older message")
	testkit.Equal(t, r.ask(other, time.Minute), provesAll, "answer about the message of the question")
	posts, isAll, err := other.Await(t.Context(), 1, time.Minute) // another question
	if err != nil || posts == nil || isAll {
		t.Errorf("a question after the reading: got %v, %t and %v, want no proof", posts, isAll, err)
	}
}

// TestReadingWithoutAnEnd has readings that share nothing: without a beginning, without a claim, and by an instance that is killed. The next
// instance gets the claim.
func TestReadingWithoutAnEnd(t *testing.T) {
	t.Parallel()
	r := newReaders(t)
	r.claimed(t.Context(), time.Minute).End(t.Context(), readPosts, true) // it has not begun
	killed, kill := context.WithCancel(t.Context())
	late := r.claimed(killed, time.Minute)
	late.Begin(t.Context(), time.Minute)
	kill()
	waiting := r.Of("C1")
	testkit.Equal(t, r.ask(waiting, time.Minute), 0, "answer while the claim of a killed instance lasts")
	r.server.CLI("DEL", key("reading:C1")) // as if it had expired
	next := r.claimed(t.Context(), time.Minute)
	late.End(t.Context(), readPosts, true)
	testkit.Equal(t, r.server.CLI("EXISTS", key("read:C1")), "0", "a reading is stored")
	next.Begin(t.Context(), time.Minute)
	next.End(t.Context(), nil, true)
	testkit.Equal(t, r.ask(waiting, time.Minute), provesAll, "answer after the next reading")
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
	unavailable.available = func() bool { return false }
	_, _, err := unavailable.Of("C1").Await(t.Context(), 1, 0)
	if !errors.Is(err, script.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, script.ErrUnavailable)
	}
	for _, odd := range []string{"9 0 1 name", "99999999999999999999 0 1"} {
		r.server.CLI("SET", key("read:C1"), odd)
		if posts, isAll, err := r.Of("C1").Await(t.Context(), 1, 0); err == nil || posts != nil || isAll {
			t.Errorf("%q: got %v, %t and %v, want an error", odd, posts, isAll, err)
		}
	}
	r.server.CLI("SET", key("read:C1"), "odd")
	r.claimed(t.Context(), 0)
	_, _, err = r.Of("C1").Await(testkit.Ended(t), 1, 0)
	if err == nil {
		t.Error("with an ended context: no error")
	}
}
