package pacing

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// An instance that waits for another instance's reading asks for it after firstPause, and then less and less often. An instance that reads renews
// its claim every keepEvery, several times before the claim expires (CLAIM_KEPT of reading.lua).
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	keepEvery    = 3 * time.Second
)

// Readings shares between instances what they read of threads: channels, or threads in channels. Its methods may be called concurrently.
type Readings struct {
	shared shared
}

// NewReadings makes a Readings. It does not talk to the server.
func NewReadings(runner *script.Runner, available func() bool) *Readings {
	return &Readings{shared{runner: runner, available: available}}
}

// Of returns a [Reading] for one reading of a thread.
func (r *Readings) Of(thread string) *Reading {
	return &Reading{readings: r, keys: r.shared.runner.Keys("calls", "reading:"+thread, "read:"+thread), caller: rand.Text()}
}

// Reading is the part of one instance in the reading of a thread: it waits for the readings of other instances, or reads and shares what it
// has read. One goroutine calls its methods: Await, possibly several times. When it has the claim, it calls Begin before its first request to
// Slack, and End in any case. If Redis fails in between, other instances learn nothing from this reading, and read for themselves.
type Reading struct {
	readings *Readings
	keys     []string
	caller   string // a name that no other Reading has

	questions []question // in their order
	seen      int64      // when the newest reading began that Await has returned
	hasBegun  bool
}

// question is a numbered question, with the time of its first call by the clock of Redis.
type question struct {
	number int
	asked  int64
}

// The answers of the step ask, as in reading.lua.
const (
	hasClaim   = 1
	newReading = 2
	allRead    = 3
)

// Await waits until another instance has read the thread, and returns the ts of the posts that are there by their names. When the questions up
// to number answered were asked, no other posts were there. next returns the number of the newest question, and how long ago the oldest message
// is that matters to any question. It is called repeatedly, since questions may be asked while Await waits.
//
// Without posts (nil), the caller has the claim and reads the thread itself. The claim lasts until End or until ctx ends. Each error means that
// the caller reads for itself alone.
func (r *Reading) Await(ctx context.Context, next func() (number int, ago time.Duration)) (posts map[string]string, answered int, err error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		number, ago := next()
		answer, err := r.call(ctx, "ask", ago, r.seen, "")
		if err != nil {
			return nil, 0, err
		}
		if len(r.questions) == 0 || r.questions[len(r.questions)-1].number < number {
			r.questions = append(r.questions, question{number, answer.time})
		}
		switch answer.state {
		case hasClaim:
			go r.keep(ctx)
			return nil, 0, nil
		case newReading, allRead:
			if r.seen, posts, err = postsOf(answer.reading); err != nil || answer.state != allRead {
				return posts, 0, err
			}
			for _, asked := range r.questions {
				if asked.asked < r.seen {
					answered = asked.number
				}
			}
			return posts, answered, nil
		}
		if !await.For(ctx, pause) {
			return nil, 0, context.Cause(ctx)
		}
	}
}

func (r *Reading) keep(ctx context.Context) {
	for await.For(ctx, keepEvery) {
		_, _ = r.call(ctx, "keep", 0, 0, "") // if the claim expires, another instance reads too
	}
}

// Begin records that the reading begins now: it answers all questions that were asked before. The reading has to go back for as long as
// Begin returns, which is longer than ago if another instance's question is about older messages.
func (r *Reading) Begin(ctx context.Context, ago time.Duration) time.Duration {
	answer, err := r.call(ctx, "begin", ago, 0, "")
	if err != nil || answer.state != hasClaim {
		return ago
	}
	r.hasBegun = true
	return max(ago, micros(answer.time))
}

// End ends the claim, and shares the ts of the posts that were read by their names. isAll is true if the reading reached all messages since the
// time that Begin returned, and posts has all of them. Names and ts have no white space.
func (r *Reading) End(ctx context.Context, posts map[string]string, isAll bool) {
	var text strings.Builder
	all := 0
	if r.hasBegun {
		for name, ts := range posts {
			text.WriteString(name + " " + ts + " ")
		}
		if isAll {
			all = 1
		}
	}
	_, _ = r.call(ctx, "end", 0, all, text.String()) // if it fails, the claim expires
}

type answer struct {
	state   int64
	time    int64
	reading string
}

// call takes a step of a reading, with the two arguments of that step.
func (r *Reading) call(ctx context.Context, step string, ago time.Duration, first, second any) (answer, error) {
	if !r.readings.shared.isAvailable() {
		return answer{}, script.ErrUnavailable
	}
	arguments := []any{step, r.caller, ago.Microseconds(), first, second}
	call := script.Call{Tried: "sharing a reading", Script: lua.Reading, Keys: r.keys, Arguments: arguments}
	return script.RunDecoded(ctx, r.readings.shared.runner, call, func(reply []any) (answer, error) {
		if len(reply) == 3 {
			state, isNumber := reply[0].(int64)
			time, isTime := reply[1].(int64)
			reading, isText := reply[2].(string)
			if isNumber && isTime && isText {
				return answer{state, time, reading}, nil
			}
		}
		return answer{}, script.ErrReply
	})
}

// postsOf reads a reading: when it began, and the ts of posts by their names.
func postsOf(reading string) (began int64, posts map[string]string, err error) {
	words := strings.Fields(reading)
	const head = 3 // when it began, since when it read, whether it read all
	if len(words) < head || len(words)%2 != head%2 {
		return 0, nil, fmt.Errorf("%w: %d words of a reading", script.ErrReply, len(words))
	}
	if began, err = strconv.ParseInt(words[0], 10, 64); err != nil {
		return 0, nil, fmt.Errorf("%w: %w", script.ErrReply, err)
	}
	posts = make(map[string]string, len(words)/2)
	for i := head; i < len(words); i += 2 {
		posts[words[i]] = words[i+1]
	}
	return began, posts, nil
}
