package stream

import (
	"testing"
	"time"
	"unsafe"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestServerClock learns the server's clock from the times of a request, its answer, and the server.
func TestServerClock(t *testing.T) {
	t.Parallel()
	var c Clock
	off := time.Since(c.Now())
	testkit.Check(t, off >= -time.Second && off <= time.Second, "difference before the first answer: got %v, want about none", off)
	testkit.Equal(t, c.At(time.Time{}), time.Time{}, "the zero time")
	asked := time.Now()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 3 * time.Second, 0} {
		c.Learn(asked, asked.Add(2*time.Second), asked.Add(time.Second+ahead))
		if got := c.At(asked); !got.Equal(asked.Add(ahead)) {
			t.Errorf("time of a server %v ahead: got %v, want %v", ahead, got, asked.Add(ahead))
		}
		if got := c.Since(c.At(asked)) - time.Since(asked); got < -time.Second || got > time.Second {
			t.Errorf("error of an age by a server %v ahead: got %v, want about none", ahead, got)
		}
	}
	for _, answer := range []struct {
		took, ahead, want, atMost time.Duration
		what                      string
	}{
		{200 * time.Millisecond, 0, 0, 100 * time.Millisecond, "an answer"},
		{300 * time.Millisecond, 100 * time.Millisecond, 0, 100 * time.Millisecond, "a slower one that agrees"},
		{100 * time.Millisecond, 40 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond, "a quicker one"},
		{2 * time.Second, 900 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond, "a slow one again"},
		{2 * time.Second, 5 * time.Second, 5 * time.Second, 6 * time.Second, "a slow one that contradicts"},
	} {
		c.Learn(asked, asked.Add(answer.took), asked.Add(answer.took/2+answer.ahead))
		testkit.Equal(t, c.At(asked).Sub(asked), answer.want, "lead of the server after %s", answer.what)
		before := c.Now()
		latest := c.Latest().Sub(before)
		if least := answer.atMost - answer.want; latest < least || latest > least+c.Now().Sub(before) {
			t.Errorf("after %s: got %v between clock and latest time, want %v", answer.what, latest, least)
		}
	}
	c.Learn(asked, asked, asked.Add(time.Hour))
	c.Learn(asked, asked, time.Time{}) // an older server does not say
	got := c.At(asked)
	testkit.Check(t, got.Equal(asked.Add(time.Hour)), "time after an answer without a time: got %v, want %v", got, asked.Add(time.Hour))
}

// TestStepOfTheHostsClock sets this host's clock two hours forward and back after an answer, as NTP does. The server's clock does not move.
func TestStepOfTheHostsClock(t *testing.T) {
	t.Parallel()
	var c Clock
	asked := time.Now()
	c.Learn(asked, asked.Add(2*time.Second), asked.Add(time.Second))
	for _, step := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		now := stepped(asked, step)
		testkit.Require(t, now.Round(0).Sub(asked.Round(0)) == step && now.Sub(asked) == 0,
			"time after a step of %v: got %v, want %v later on the wall and no time later", step, now, step)
		testkit.Equal(t, c.At(now).Sub(asked), 0, "step of the server's clock with the host's step of %v", step)
		testkit.Equal(t, c.Earliest(now).Sub(asked), -time.Second, "step of the earliest time with the host's step of %v", step)
	}
}

// stepped returns a time of the same moment whose wall clock is whole seconds ahead. Above 30 bits of nanoseconds, the first word of a time
// with a monotonic reading has the seconds of the wall clock.
func stepped(t time.Time, ahead time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(ahead/time.Second) << 30
	return t
}
