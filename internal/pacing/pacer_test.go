package pacing

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// instance is a Pacer. The test says whether Redis is available.
type instance struct {
	*Pacer
	available atomic.Bool
	logs      *testkit.Log
}

func startInstance(t *testing.T, address string, pace Pace) *instance {
	t.Helper()
	client := scripttest.NewClient(t, redis.Options{Addr: address, MaxRetries: 1})
	runner := script.NewRunner(script.Options{Client: client, Prefix: "pacer", Timeout: scripttest.Patience})
	i := &instance{logs: testkit.NewLog(t)}
	i.available.Store(true)
	i.Pacer = New(Options{Runner: runner, Pace: pace, Available: i.available.Load, Logger: i.logs.Logger()})
	return i
}

// key returns a key of the instances' deployment.
func key(name string) string { return "{pacer}:" + name }

// within compares waits in whole hours. The real clock shortens a wait.
func within(wait, want time.Duration) bool {
	return wait <= want && wait > want-time.Hour/2
}

// wantPause compares a pause in whole hours.
func wantPause(t *testing.T, what string, paused, want time.Duration) {
	t.Helper()
	if paused == 0 || !within(paused, want) {
		t.Errorf("%s: paused for %v, want %v", what, paused, want)
	}
}

// wantReserved reserves one message for each wait, and compares the waits in whole hours.
func (i *instance) wantReserved(t *testing.T, destination string, waits ...time.Duration) {
	t.Helper()
	for _, wait := range waits {
		if got := i.Reserve(t.Context(), destination, 10*time.Hour); !got.OK || !within(got.Wait, wait) {
			t.Errorf("%s: %+v, want %v", destination, got, wait)
		}
	}
}

// TestOutage continues without Redis behind the instance's last reservation.
func TestOutage(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	i := startInstance(t, server.Addr, Pace{time.Hour, 3})
	i.wantReserved(t, "#a", 0, 0)
	i.wantReserved(t, "#b", 0, 0, 0, time.Hour)
	server.Kill()
	i.available.Store(false)
	i.wantReserved(t, "#a", time.Hour, 2*time.Hour)
	i.wantReserved(t, "#b", 2*time.Hour)
	i.wantReserved(t, "#c", 0, 0, 0, time.Hour)
	i.Pause(t.Context(), "#d", 5*time.Hour)
	i.wantReserved(t, "#d", 5*time.Hour, 6*time.Hour)
	if got := i.Reserve(t.Context(), "#d", time.Minute); got.OK || !within(got.Wait, 7*time.Hour) {
		t.Errorf("a wait that is too long: got %+v, want 7 hours and no reservation", got)
	}
	i.Pause(t.Context(), "#e", time.Hour)

	// Redis does not know the pause of #e.
	server.Restart()
	i.available.Store(true)
	wantPause(t, "told so without Redis", i.CheckPause(t.Context(), "#e"), time.Hour)
	i.wantReserved(t, "#e", time.Hour, 2*time.Hour)
	i.wantReserved(t, "#b", 2*time.Hour) // Redis keeps its own reservations
	i.logs.WantCount(t, 0, "level=WARN")
}

// TestWait also begins a pause during the wait, by another instance.
func TestWait(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	pace := Pace{2 * time.Second, 1}
	one, other := startInstance(t, server.Addr, pace), startInstance(t, server.Addr, pace)
	other.Pause(t.Context(), "paused", time.Hour)
	if wait, err := one.Wait(t.Context(), "paused", time.Minute); err != nil || wait == 0 || !within(wait, time.Hour) {
		t.Errorf("a pause that is too long: got %v, error %v, want an hour", wait, err)
	}
	if wait, err := one.Wait(t.Context(), "#a", 0); wait != 0 || err != nil {
		t.Errorf("first message: got a wait of %v, error %v, want none", wait, err)
	}
	reserved := server.CLI("ZSCORE", key("paces"), "#a")
	waited := make(chan string, 1)
	go func() {
		wait, err := one.Wait(t.Context(), "#a", time.Minute)
		waited <- fmt.Sprint(wait, err)
	}()
	testkit.Eventually(t, "the next message to be reserved", func() bool { return server.CLI("ZSCORE", key("paces"), "#a") != reserved })
	paused := time.Now()
	other.Pause(t.Context(), "#a", 3*time.Second)
	if got := <-waited; got != "0s <nil>" || time.Since(paused) < 3*time.Second {
		t.Errorf("the next message: %s, %v after a pause of three seconds was told", got, time.Since(paused))
	}
	ended, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for range 2 { // while it waits, and before
		if wait, err := one.Wait(ended, "paused", 2*time.Hour); wait != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the context ended: got %v, error %v, want %v", wait, err, context.DeadlineExceeded)
		}
	}
}

// TestReserveAfterTheEnd reserves nothing after the context ended, because other instances may have paused the destination.
func TestReserveAfterTheEnd(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	one, other := startInstance(t, server.Addr, Pace{time.Second, 1}), startInstance(t, server.Addr, Pace{time.Second, 1})
	other.Pause(t.Context(), "paused", time.Hour)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.Equal(t, one.Reserve(ended, "paused", 2*time.Hour), Reservation{}, "what is reserved")
}

// TestKeysThatCannotBeRead continues without Redis where keys have a wrong type.
func TestKeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	i := startInstance(t, server.Addr, Pace{time.Hour, 1})
	server.CLI("HSET", key("paces"), "field", "value")
	server.CLI("HSET", key("mention:a"), "field", "value")
	i.wantReserved(t, "#a", 0, time.Hour)
	for id, want := range []mention{takesMention, noMention} {
		testkit.Equal(t, i.mention(t.Context(), "a", fmt.Sprint(id), time.Hour), want, "event %d may mention", id)
	}
	server.CLI("SET", key("pauses"), "text")
	i.Pause(t.Context(), "#a", time.Hour)
	wantPause(t, "told so without the key", i.Paused("#a"), time.Hour)
	i.logs.WantCount(t, 1, "level=WARN")
	i.logs.WantCount(t, 1, "other instances do not know of a pause")
}

func TestPausesOfOtherInstances(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startInstance(t, server.Addr, Pace{}), startInstance(t, server.Addr, Pace{})
	first.Pause(t.Context(), "#a", time.Hour)
	wantPause(t, "the instance that was told", first.Paused("#a"), time.Hour)
	testkit.Equal(t, second.Paused("#a"), 0, "the other instance knows at once of a pause for")
	wantPause(t, "the other instance asks", second.CheckPause(t.Context(), "#a"), time.Hour)
	wantPause(t, "the other instance has learned", second.Paused("#a"), time.Hour)
	testkit.Equal(t, second.CheckPause(t.Context(), "#b"), 0, "another destination is paused for")
	if got := second.Reserve(t.Context(), "#a", time.Minute); got.OK || !within(got.Wait, time.Hour) || got.Wait == 0 {
		t.Errorf("reservation in a pause: got %+v, want an hour and no reservation", got)
	}
	server.Kill()
	second.available.Store(false)
	wantPause(t, "without Redis", second.CheckPause(t.Context(), "#a"), time.Hour)
	testkit.Equal(t, second.CheckPause(t.Context(), "#b"), 0, "without Redis another destination is paused for")
	second.Learn(time.Now(), map[string]time.Duration{"#c": time.Hour})
	wantPause(t, "told with a decision", second.Paused("#c"), time.Hour)
	second.Pause(t.Context(), "#d", time.Hour)
	wantPause(t, "told without Redis", second.Paused("#d"), time.Hour)
}

func TestMentionsOfOtherInstances(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startInstance(t, server.Addr, Pace{}), startInstance(t, server.Addr, Pace{})
	want := func(i *instance, id string, want mention) {
		t.Helper()
		testkit.Equal(t, i.mention(t.Context(), "a", id, time.Hour), want, "%q may mention", id)
	}
	want(first, "rejected", takesMention)
	want(second, "one", noMention)
	first.ReturnMention(t.Context(), "a", "rejected")
	want(first, "one", takesMention)
	want(first, "one", hasMention)
	second.ReturnMention(t.Context(), "a", "two")
	want(second, "two", noMention)
	first.available.Store(false)
	second.available.Store(false)
	want(first, "two", noMention) // the first instance remembers its own mention
	want(first, "one", hasMention)
	want(second, "two", takesMention) // the second instance does not
	want(second, "three", noMention)
	second.ReturnMention(t.Context(), "a", "two")
	want(second, "three", takesMention)
}
