package pacing

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// instances counts the instances of all tests.
var instances atomic.Int32

// instance is a Pacer. The test says whether Redis is available.
type instance struct {
	*Pacer
	available atomic.Bool
	logs      *testkit.Log
}

func startInstance(t *testing.T, address string, b Budgets) *instance {
	t.Helper()
	client := scripttest.NewClient(t, redis.Options{Addr: address, MaxRetries: 1})
	runner := script.NewRunner(script.Options{Client: client, Prefix: "pacer", Timeout: scripttest.Patience})
	i := &instance{logs: testkit.NewLog(t)}
	name := fmt.Sprint(instances.Add(1))
	i.available.Store(true)
	i.Pacer = New(Options{Runner: runner, Instance: name, Budgets: b, Available: i.available.Load, Logger: i.logs.Logger()})
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
	testkit.Check(t, paused != 0 && within(paused, want), "%s: paused for %v, want %v", what, paused, want)
}

// wantReserved reserves posts without a wait. wantWait wants the next post to be further away, in whole hours.
func (i *instance) wantReserved(t *testing.T, channel string, posts int) {
	t.Helper()
	for range posts {
		got := i.Reserve(t.Context(), Ask{Channel: channel})
		testkit.Check(t, got.OK, "%s: %+v, want a post", channel, got)
	}
}

func (i *instance) wantWait(t *testing.T, channel string, wait time.Duration) {
	t.Helper()
	got := i.Reserve(t.Context(), Ask{Channel: channel, MaxWait: time.Minute})
	testkit.Check(t, !got.OK && got.Wait == got.Expected && within(got.Expected, wait), "%s: %+v, want no post within %v", channel, got, wait)
}

// next asks for an update of a message that nobody else updates.
func next(maxWait time.Duration) Update {
	return Update{Message: rand.Text(), Order: 1, MaxWait: maxWait, Within: maxWait}
}

// TestOutage continues without Redis behind the instance's last reservations.
func TestOutage(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	i := startInstance(t, server.Addr, Budgets{Channel: Pace{time.Hour, 3}, Workspace: Window{9, 5 * time.Hour}, Updates: Window{2, 5 * time.Hour}})
	i.wantReserved(t, "#a", 2)
	i.wantReserved(t, "#b", 3)
	i.wantWait(t, "#b", time.Hour)
	testkit.Equal(t, i.BeginUpdate(t.Context(), next(0)), Reservation{OK: true}, "an update")
	server.Kill()
	i.available.Store(false)
	i.wantWait(t, "#a", time.Hour) // no burst
	i.wantWait(t, "#b", time.Hour)
	i.wantReserved(t, "#c", 3)
	i.wantWait(t, "#c", time.Hour)
	testkit.Equal(t, i.BeginUpdate(t.Context(), next(0)), Reservation{OK: true}, "an update without redis")
	if got := i.BeginUpdate(t.Context(), next(0)); got.OK || !within(got.Wait, 5*time.Hour) {
		t.Errorf("a third update: %+v, want a wait of five hours", got)
	}
	i.wantReserved(t, "#d", 1)
	i.wantWait(t, "#d", 5*time.Hour) // the ninth post was the last of the workspace
	i.Pause(t.Context(), "#e", time.Hour)
	i.PauseUpdates(t.Context(), 7*time.Hour)

	// Redis does not know the pauses.
	server.Restart()
	i.available.Store(true)
	wantPause(t, "a pause of its own, without Redis", i.CheckPause(t.Context(), "#e"), time.Hour)
	i.wantWait(t, "#e", time.Hour)
	i.wantWait(t, "#b", time.Hour) // Redis keeps its own reservations
	if got := i.BeginUpdate(t.Context(), next(0)); got.OK || !within(got.Wait, 7*time.Hour) {
		t.Errorf("an update: %+v, want a pause of seven hours", got)
	}
	i.logs.WantCount(t, 0, "level=WARN")
}

// TestAwaitDigest also begins a pause during the wait, by another instance.
func TestAwaitDigest(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	b := Budgets{Workspace: Window{1, 900 * time.Millisecond}}
	one, other := startInstance(t, server.Addr, b), startInstance(t, server.Addr, b)
	other.Pause(t.Context(), "paused", time.Hour)
	if wait, err := one.AwaitDigest(t.Context(), "paused"); err != nil || wait == 0 || !within(wait, time.Hour) {
		t.Errorf("a pause that is too long: got %v, error %v, want an hour", wait, err)
	}
	testkit.Equal(t, testkit.Must(one.AwaitDigest(t.Context(), "#a"))(t), 0, "wait of the first message")
	waited := make(chan time.Duration, 1)
	go func() {
		wait, err := one.AwaitDigest(t.Context(), "#a")
		testkit.NoError(t, err)
		waited <- wait
	}()
	testkit.Eventually(t, "the next post to be reserved", func() bool { return server.CLI("ZCARD", key("posts")) == "2" })
	other.Pause(t.Context(), "#a", time.Hour)
	wantPause(t, "during the wait", <-waited, time.Hour)
	if wait, err := one.AwaitDigest(testkit.Ended(t), "#b"); wait != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after the context ended: got %v, error %v, want %v", wait, err, context.Canceled)
	}
}

// TestReserveAfterTheEnd reserves nothing after the context ended, because other instances may have paused the channel or the updates.
func TestReserveAfterTheEnd(t *testing.T) {
	t.Parallel()
	i := startInstance(t, servertest.StartRedis(t).Addr, Budgets{Channel: Pace{time.Second, 1}, Updates: Window{1, time.Second}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	testkit.Equal(t, i.Reserve(ended, Ask{Channel: "#a"}), Reservation{}, "what is reserved")
	testkit.Equal(t, i.BeginUpdate(ended, next(time.Hour)), Reservation{}, "the update that is reserved")
}

// TestLookUps has two instances look posts up. They share the budget and the pauses. Of the callers of one instance only the first one holds a
// place among the others.
func TestLookUps(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	b := Budgets{LookUps: Window{2, time.Hour}}
	first, second := startInstance(t, server.Addr, b), startInstance(t, server.Addr, b)
	testkit.NoError(t, first.AwaitLookUp(t.Context()))
	testkit.NoError(t, second.AwaitLookUp(t.Context()))
	waiting, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for _, i := range []*instance{first, first, first, second, second} {
		callers.Go(func() {
			testkit.Fails(t, "a caller that leaves", i.AwaitLookUp(waiting), context.Canceled)
		})
	}
	testkit.Eventually(t, "each instance has reserved a look-up", func() bool { return server.CLI("ZCARD", key("lookups")) == "4" })
	leave()
	callers.Wait()
	testkit.Equal(t, server.CLI("ZCARD", key("lookups")), "4", "look-ups that are reserved")
	testkit.Equal(t, second.Reserve(t.Context(), Ask{Channel: "#a"}).OK, true, "a post meanwhile")

	// Without Redis, an instance continues behind its own look-ups.
	server.Kill()
	first.available.Store(false)
	ended, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for range 2 { // while it waits, and before
		testkit.Fails(t, "without redis", first.AwaitLookUp(ended), context.DeadlineExceeded)
	}
}

// TestPausedLookUps has another instance pause the look-ups while a look-up waits for its reserved time.
func TestPausedLookUps(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	b := Budgets{LookUps: Window{1, 2 * time.Second}}
	first, second := startInstance(t, server.Addr, b), startInstance(t, server.Addr, b)
	testkit.NoError(t, first.AwaitLookUp(t.Context()))
	waited := make(chan error, 1)
	go func() { waited <- first.AwaitLookUp(t.Context()) }()
	testkit.Eventually(t, "the next look-up is reserved", func() bool { return server.CLI("ZCARD", key("lookups")) == "2" })
	paused := time.Now()
	second.PauseLookUps(t.Context(), 3*time.Second)
	if err := <-waited; err != nil || time.Since(paused) < 3*time.Second {
		t.Errorf("the next look-up: %v, %v after a pause of three seconds", err, time.Since(paused))
	}
	second.logs.WantCount(t, 1, "destination=lookups")
}

// answerOf returns the answer behind the results of Mention.
func answerOf(may, first bool) mention {
	switch {
	case first:
		return takesMention
	case may:
		return hasMention
	}
	return noMention
}

// TestKeysThatCannotBeRead continues without Redis where keys have a wrong type.
func TestKeysThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	i := startInstance(t, server.Addr, Budgets{Channel: Pace{time.Hour, 1}})
	server.CLI("HSET", key("paces"), "field", "value")
	server.CLI("HSET", key("mention:a"), "field", "value")
	i.wantReserved(t, "#a", 1)
	i.wantWait(t, "#a", time.Hour)
	for id, want := range []mention{takesMention, noMention} {
		testkit.Equal(t, answerOf(i.Mention(t.Context(), "a", fmt.Sprint(id), time.Hour)), want, "event %d may mention", id)
	}
	server.CLI("SET", key("pauses"), "text")
	i.Pause(t.Context(), "#a", time.Hour)
	wantPause(t, "a pause of its own, without the key", i.Paused("#a"), time.Hour)
	i.logs.WantCount(t, 1, "level=WARN")
	i.logs.WantCount(t, 1, "cannot share a pause with other instances")
}

func TestPausesOfOtherInstances(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startInstance(t, server.Addr, Budgets{}), startInstance(t, server.Addr, Budgets{})
	first.Pause(t.Context(), "#a", time.Hour)
	wantPause(t, "the instance with the pause", first.Paused("#a"), time.Hour)
	testkit.Equal(t, second.Paused("#a"), 0, "the other instance knows at once of a pause for")
	wantPause(t, "the other instance asks", second.CheckPause(t.Context(), "#a"), time.Hour)
	wantPause(t, "the other instance has learned", second.Paused("#a"), time.Hour)
	testkit.Equal(t, second.CheckPause(t.Context(), "#b"), 0, "another destination is paused for")
	got := second.Reserve(t.Context(), Ask{Channel: "#a", MaxWait: time.Minute})
	testkit.Check(t, !got.OK && within(got.Wait, time.Hour) && got.Wait != 0, "reservation in a pause: got %+v, want an hour and no reservation", got)
	server.Kill()
	second.available.Store(false)
	wantPause(t, "without Redis", second.CheckPause(t.Context(), "#a"), time.Hour)
	testkit.Equal(t, second.CheckPause(t.Context(), "#b"), 0, "without Redis another destination is paused for")
	second.Learn(time.Now(), map[string]time.Duration{"#c": time.Hour})
	wantPause(t, "learned with a decision", second.Paused("#c"), time.Hour)
	second.Pause(t.Context(), "#d", time.Hour)
	wantPause(t, "learned without Redis", second.Paused("#d"), time.Hour)
}

func TestMentionsOfOtherInstances(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startInstance(t, server.Addr, Budgets{}), startInstance(t, server.Addr, Budgets{})
	want := func(i *instance, id string, want mention) {
		t.Helper()
		testkit.Equal(t, answerOf(i.Mention(t.Context(), "a", id, time.Hour)), want, "%q may mention", id)
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

// TestPauseOfTheWorkspace has two instances be limited by two channels.
func TestPauseOfTheWorkspace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startInstance(t, server.Addr, Budgets{}), startInstance(t, server.Addr, Budgets{})
	first.Pause(t.Context(), "#a", time.Hour)
	second.Pause(t.Context(), "#b", 2*time.Hour)
	wantPause(t, "another channel, on the instance with the pause", second.Paused("#c"), time.Hour)
	testkit.Equal(t, first.Paused("#c"), 0, "the other instance knows at once of a pause for")
	wantPause(t, "the other instance asks", first.CheckPause(t.Context(), "#c"), time.Hour)
	first.logs.WantCount(t, 1, "deliveries were paused")
	first.logs.WantCount(t, 1, "until=")
	second.logs.WantCount(t, 1, "destination=#b")
	second.logs.WantCount(t, 1, "destination=workspace")
	testkit.Equal(t, second.BeginUpdate(t.Context(), next(0)), Reservation{OK: true}, "an update meanwhile")
}

// TestRun counts the use of the budgets.
func TestRun(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	i := startInstance(t, server.Addr, Budgets{
		Channel: Pace{time.Hour, 1}, Workspace: Window{1, time.Hour}, Updates: Window{1, time.Hour}, LookUps: Window{1, time.Hour},
	})
	shown := make(gauges)
	i.o.Metrics = shown
	i.wantReserved(t, "#a", 1)
	i.Reserve(t.Context(), Ask{Channel: "#b", MaxWait: time.Hour})
	i.Reserve(t.Context(), Ask{Channel: "#a", MaxWait: 3 * time.Hour})
	i.BeginUpdate(t.Context(), next(0))
	i.BeginUpdate(t.Context(), next(time.Hour))
	testkit.NoError(t, i.AwaitLookUp(t.Context()))
	for _, available := range []bool{true, false} {
		i.available.Store(available)
		ended, cancel := context.WithCancel(t.Context())
		i.countUse(ended, []string{"#a", "#b"})
		cancel()
		i.Run(ended, []string{"#a", "#b"})
		testkit.Equal(t, i.Use().Updates, BudgetUse{Used: 1, Waiting: 1}, "updates")
		testkit.Equal(t, i.Use().Workspace.Used, 1, "posts")
		testkit.Equal(t, shown["updates"], [2]int{1, 1}, "shown updates")
		testkit.Equal(t, i.Use().LookUps, BudgetUse{Used: 1}, "look-ups")
		testkit.Equal(t, shown["lookups"], [2]int{1, 0}, "shown look-ups")
		testkit.Equal(t, shown["channels"][0], 1, "shown channels at their pace")
	}
	i.available.Store(true)
	i.countUse(t.Context(), []string{"#a", "#b"})
	testkit.Equal(t, i.Use().Workspace, BudgetUse{Used: 1, Waiting: 1}, "posts")
	testkit.Equal(t, shown["workspace"], [2]int{1, 1}, "shown posts")
	testkit.Equal(t, shown["channels"], [2]int{1, 1}, "shown channels")
}

// gauges keeps what is shown, by budget.
type gauges map[string][2]int

func (g gauges) PaceUsed(budget string, used, waiting int) { g[budget] = [2]int{used, waiting} }
