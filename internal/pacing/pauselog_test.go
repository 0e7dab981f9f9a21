package pacing

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pauseLines returns the new lines in a short form.
func pauseLines(log *testkit.Log, told *int) (lines []string) {
	for _, r := range log.Records()[*told:] {
		line := r.Message + " " + r.Attributes["destination"]
		for _, name := range []string{"paused_for", "pauses", "further_pauses"} {
			if value, has := r.Attributes[name]; has {
				line += " " + name + "=" + value
			}
		}
		lines = append(lines, line)
	}
	*told += len(lines)
	return lines
}

func TestRestsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, told := testkit.NewLog(t), 0
		pacer := New(Options{Available: func() bool { return false }, Logger: log.Logger()})
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			testkit.EqualSlices(t, pauseLines(log, &told), lines, "logged")
		}
		pacer.Pause(t.Context(), "#alerts", 30*time.Second)
		pacer.Pause(t.Context(), "#payments", 2*time.Second)
		want("channel is paused #alerts paused_for=30s pauses=1", "channel is paused #payments paused_for=2s pauses=1")
		time.Sleep(10 * time.Second)
		want("channel goes on #payments further_pauses=0")
		pacer.Pause(t.Context(), "#alerts", 30*time.Second)
		want()
		time.Sleep(20 * time.Second)
		want()
		time.Sleep(11 * time.Second)
		want("channel goes on #alerts further_pauses=1")
	})
}

// Short pauses of one channel log one line of each kind a minute. A long pause is logged, at the latest with the next such line.
func TestRestsAgainAndAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, told := testkit.NewLog(t), 0
		l := newPauseLog(log.Logger())
		want := func(lines ...string) {
			t.Helper()
			synctest.Wait()
			testkit.EqualSlices(t, pauseLines(log, &told), lines, "logged")
		}
		flicker := func(times int) {
			for range times {
				l.pause("#alerts", time.Second)
				time.Sleep(7 * time.Second)
			}
		}
		flicker(8) // until second 56
		want("channel is paused #alerts paused_for=1s pauses=1", "channel goes on #alerts further_pauses=0")
		flicker(5)
		want("channel is paused #alerts paused_for=1s pauses=9", "channel goes on #alerts further_pauses=0")
		l.pause("#alerts", time.Hour)
		want()
		time.Sleep(pauseLineEvery * 2 / 3)
		want("channel is paused #alerts paused_for=59m28s pauses=4")
		time.Sleep(time.Hour)
		want("channel goes on #alerts further_pauses=0")
		time.Sleep(pauseLineEvery)
		testkit.Equal(t, len(l.paused), 0, "channels that are remembered")
	})
}
