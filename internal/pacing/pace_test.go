package pacing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// paceKit runs the shared pacing by a clock of the test.
type paceKit struct {
	shared
	t      *testing.T
	client redis.UniversalClient
	clock  *testkit.Clock
	pace   Pace
}

// newPaceKit uses keys of its own on a server.
func newPaceKit(t *testing.T, client redis.UniversalClient, way script.Scripting, pace Pace) *paceKit {
	prefix := strings.NewReplacer("/", "-", ",", "").Replace(t.Name())
	o, clock := scripttest.WithClock(t, script.Options{Client: client, Prefix: prefix, Timeout: scripttest.Patience, Scripting: way})
	return &paceKit{shared: shared{script.NewRunner(o)}, t: t, client: client, clock: clock, pace: pace}
}

// another returns a second instance of the deployment, with the same clock.
func (k *paceKit) another(client redis.UniversalClient) shared {
	o := k.runner.Options()
	o.Client = client
	return shared{script.NewRunner(o)}
}

// reserve reserves one message for each wait, and compares the waits.
func (k *paceKit) reserve(destination string, want ...time.Duration) {
	k.t.Helper()
	for i, wait := range want {
		k.wantReservation(destination, 0, time.Hour, Reservation{wait, true}, fmt.Sprintf("reservation %d of %v", i+1, want))
	}
}

func (k *paceKit) wantReservation(destination string, paused, maxWait time.Duration, want Reservation, what string) {
	k.t.Helper()
	if got, err := k.shared.reserve(k.t.Context(), destination, k.pace, paused, maxWait); err != nil || got != want {
		k.t.Fatalf("%s of %s: %+v, %v, want %+v", what, destination, got, err, want)
	}
}

func (k *paceKit) pause(destination string, d time.Duration) {
	k.t.Helper()
	testkit.NoError(k.t, k.shared.pause(k.t.Context(), destination, k.pace, d))
}

// wantPaces compares the destinations with reservations, and the expiry of their key.
func (k *paceKit) wantPaces(kept time.Duration, want ...string) {
	k.t.Helper()
	got := k.client.ZRange(k.t.Context(), k.runner.Key("paces"), 0, -1).Val()
	if slices.Sort(got); !slices.Equal(got, want) {
		k.t.Errorf("paces of %q, want %q", got, want)
	}
	if ttl := k.client.PTTL(k.t.Context(), k.runner.Key("paces")).Val(); len(want) > 0 && (ttl <= 0 || ttl > kept) {
		k.t.Errorf("they expire after %v, want %v", ttl, kept)
	}
}

// paceStories use minutes, because keys of Redis expire by the server's own clock.
var paceStories = []struct {
	name string
	pace Pace
	tell func(k *paceKit)
}{
	{"a burst, then one each interval", Pace{time.Minute, 5}, func(k *paceKit) {
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute, 2*time.Minute, 3*time.Minute)
		k.clock.Advance(150 * time.Second)
		k.reserve("#a", 90*time.Second, 150*time.Second)
		k.clock.Advance(time.Hour)
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute)
	}},
	{"a burst that is not set", Pace{Interval: time.Minute}, func(k *paceKit) {
		k.reserve("#a", 0, time.Minute, 2*time.Minute)
	}},
	{"destinations", Pace{time.Minute, 2}, func(k *paceKit) {
		k.reserve("#a", 0, 0, time.Minute)
		k.pause("#b", 10*time.Minute)
		k.reserve("#c\n\x00", 0, 0, time.Minute)
		k.reserve("#b", 10*time.Minute)
		k.reserve("#a", 2*time.Minute)
	}},
	{"a pause, and no burst behind it", Pace{time.Minute, 5}, func(k *paceKit) {
		k.reserve("#a", 0, 0)
		k.pause("#a", 10*time.Minute)
		k.clock.Advance(4 * time.Minute)
		k.reserve("#a", 6*time.Minute, 7*time.Minute)
		k.clock.Advance(6 * time.Minute)
		k.reserve("#a", 2*time.Minute, 3*time.Minute)
	}},
	{"a pause that only the caller knows of", Pace{time.Minute, 5}, func(k *paceKit) {
		k.wantReservation("#a", 10*time.Minute, time.Hour, Reservation{10 * time.Minute, true}, "a reservation")
		k.reserve("#a", 11*time.Minute) // Redis keeps the caller's pause
		k.pause("#b", 20*time.Minute)
		k.wantReservation("#b", 10*time.Minute, time.Hour, Reservation{20 * time.Minute, true}, "a reservation")
	}},
	{"later than the caller waits", Pace{time.Minute, 1}, func(k *paceKit) {
		k.reserve("#a", 0, time.Minute)
		k.pause("#b", time.Minute)
		before := k.client.Dump(k.t.Context(), k.runner.Key("paces")).Val()
		for range 3 {
			k.wantReservation("#a", 0, 2*time.Minute-time.Microsecond, Reservation{2 * time.Minute, false}, "a reservation too late")
			k.wantReservation("#b", 0, time.Minute-time.Microsecond, Reservation{time.Minute, false}, "a pause too long")
		}
		testkit.Equal(k.t, k.client.Dump(k.t.Context(), k.runner.Key("paces")).Val(), before, "key of the paces")
		k.wantReservation("#a", 0, 2*time.Minute, Reservation{2 * time.Minute, true}, "a reservation just near enough")
		k.wantReservation("#b", 0, time.Minute, Reservation{time.Minute, true}, "a pause just short enough")
	}},
	{"no interval", Pace{}, func(k *paceKit) {
		k.reserve("#a", 0, 0, 0, 0, 0, 0, 0, 0)
		k.pause("#a", time.Minute)
		k.reserve("#a", time.Minute, time.Minute)
		k.wantReservation("#a", 0, time.Second, Reservation{time.Minute, false}, "a pause")
		testkit.Equal(k.t, testkit.Must(k.paused(k.t.Context(), "#a"))(k.t), time.Minute, "pause")
		k.wantPaces(0)
	}},
	{"another pace", Pace{time.Minute, 2}, func(k *paceKit) {
		k.reserve("#a", 0, 0, time.Minute)
		k.pace = Pace{time.Second, 1}
		k.reserve("#a", 3*time.Minute, 3*time.Minute+time.Second)
	}},
	{"what is through is forgotten", Pace{time.Minute, 5}, func(k *paceKit) {
		k.reserve("#a", 0)
		k.wantPaces(time.Minute, "#a")
		k.reserve("#b", 0, 0, 0)
		k.wantPaces(3*time.Minute, "#a", "#b")
		k.clock.Advance(time.Minute)
		k.reserve("#c", 0)
		k.wantPaces(2*time.Minute, "#b", "#c")
	}},
	{"a clock that ran ahead a little", Pace{time.Minute, 5}, func(k *paceKit) {
		k.clock.Advance(time.Hour)
		k.reserve("#a", 0)
		k.clock.Advance(-time.Hour)
		k.reserve("#a", time.Hour-3*time.Minute) // the wait is bounded
	}},
	{"a clock that ran far ahead", Pace{time.Minute, 5}, func(k *paceKit) {
		k.clock.Advance(3 * time.Hour)
		k.reserve("#a", 0)
		k.pause("#b", time.Minute)
		k.clock.Advance(-3 * time.Hour)
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute)
		k.reserve("#b", 0)
	}},
}

func TestPaces(t *testing.T) {
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, way := range []script.Scripting{script.Eval, script.Functions} {
		for _, story := range paceStories {
			t.Run(string(way)+"/"+story.name, func(t *testing.T) {
				t.Parallel()
				story.tell(newPaceKit(t, client, way, story.pace))
			})
		}
	}
}

// TestPaceInEveryWindow has two instances reserve messages at random, and compares each reservation with one of the local pacing.
// A window of T holds at most the burst plus T/interval messages. No message lies in a pause.
func TestPaceInEveryWindow(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	one := newPaceKit(t, scripttest.NewClient(t, redis.Options{Addr: server.Addr}), script.Eval, Pace{})
	clock := one.clock
	instances := []shared{one.shared, one.another(scripttest.NewClient(t, redis.Options{Addr: server.Addr}))}
	checks := 0
	rapid.Check(t, func(t *rapid.T) {
		checks++
		pace := Pace{
			Interval: rapid.SampledFrom([]time.Duration{time.Minute, 7 * time.Minute, time.Hour}).Draw(t, "interval"),
			Burst:    rapid.IntRange(1, 6).Draw(t, "burst"),
		}
		var (
			alone    = newLocal(pace)
			pauses   = make(map[string]time.Time)
			reserved = make(map[string][]time.Time)
			names    = []string{fmt.Sprint("#a", checks), fmt.Sprint("#b", checks)}
			while    = func(most int) time.Duration {
				scale := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, pace.Interval / 2, pace.Interval}).Draw(t, "scale")
				return min(time.Duration(rapid.IntRange(0, most).Draw(t, "times"))*scale, time.Hour)
			}
		)
		reserve := func(t *rapid.T) {
			destination, maxWait := rapid.SampledFrom(names).Draw(t, "destination"), while(30)
			paused := max(0, pauses[destination].Sub(clock.Read()))
			want := alone.reserve(clock.Read(), destination, paused, maxWait)
			got, err := rapid.SampledFrom(instances).Draw(t, "instance").reserve(context.Background(), destination, pace, 0, maxWait)
			if err != nil || got != want {
				t.Fatalf("%s with a pause of %v, within %v: %+v, %v; an instance alone: %+v", destination, paused, maxWait, got, err, want)
			}
			if got.Wait < paused {
				t.Fatalf("%s takes a message in %v, and is paused for %v", destination, got.Wait, paused)
			}
			if got.OK {
				reserved[destination] = append(reserved[destination], clock.Read().Add(got.Wait))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        func(t *rapid.T) { wantPace(t, pace, reserved) },
			"reserve": reserve,
			"again":   reserve, // more often than the others
			"a few": func(t *rapid.T) {
				for range 2 * pace.Burst {
					reserve(t)
				}
			},
			"pause": func(t *rapid.T) {
				destination, d := rapid.SampledFrom(names).Draw(t, "destination"), max(time.Minute, while(20)) // see paceStories
				testkit.NoError(t, one.shared.pause(context.Background(), destination, pace, d))
				alone.pause(clock.Read(), destination, d)
				pauses[destination] = later(pauses[destination], clock.Read().Add(d))
			},
			"wait": func(*rapid.T) { clock.Advance(while(30)) },
			"step": func(*rapid.T) {
				clock.Advance(rapid.SampledFrom([]time.Duration{time.Hour, 24 * time.Hour}).Draw(t, "step"))
			},
		})
	})
}

// wantPace counts the messages in each window between two reservations.
func wantPace(t *rapid.T, pace Pace, reserved map[string][]time.Time) {
	for destination, moments := range reserved {
		moments = slices.SortedFunc(slices.Values(moments), time.Time.Compare)
		for i := range moments {
			for j := i + pace.Burst; j < len(moments); j++ {
				window, count := moments[j].Sub(moments[i]), j-i+1
				if most := pace.Burst + int(window/pace.Interval); count > most {
					t.Fatalf("%s takes %d messages within %v, at most %d are allowed", destination, count, window, most)
				}
			}
		}
	}
}

// TestPacesRace has instances reserve concurrently. No reservation goes to two instances.
func TestPacesRace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	one := newPaceKit(t, scripttest.NewClient(t, redis.Options{Addr: server.Addr}), script.Eval, Pace{})
	const instances, each, burst = 4, 25, 5
	var (
		mu      sync.Mutex
		waits   []time.Duration
		running sync.WaitGroup
	)
	for range instances {
		r := one.another(scripttest.NewClient(t, redis.Options{Addr: server.Addr}))
		running.Go(func() {
			for range each {
				reservation, err := r.reserve(t.Context(), "#a", Pace{time.Minute, burst}, 0, 2*time.Hour)
				if err != nil || !reservation.OK {
					t.Errorf("%+v, %v", reservation, err)
					return
				}
				mu.Lock()
				waits = append(waits, reservation.Wait)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	slices.Sort(waits)
	for i, wait := range waits {
		if want := time.Duration(max(0, i+1-burst)) * time.Minute; wait != want {
			t.Fatalf("reservation %d in %v, want %v", i+1, wait, want)
		}
	}
}

func TestLocalKeepsTheLatestReservation(t *testing.T) {
	t.Parallel()
	p := newLocal(Pace{time.Second, 5})
	for _, wait := range []time.Duration{0, 2 * time.Second, time.Second} { // replies may come in any order
		p.learn(testkit.Start, "#a", Reservation{wait, true})
	}
	p.learn(testkit.Start, "#a", Reservation{time.Hour, false})
	for i := range 3 {
		want := Reservation{time.Duration(3+i) * time.Second, true}
		testkit.Equal(t, p.reserve(testkit.Start, "#a", 0, time.Minute), want, "reservation %d behind what Redis reserved", i+1)
	}
	unpaced := newLocal(Pace{})
	unpaced.learn(testkit.Start, "#a", Reservation{time.Minute, true})
	for range 3 {
		got := unpaced.reserve(testkit.Start, "#a", time.Second, time.Minute)
		testkit.Equal(t, got, Reservation{time.Second, true}, "without an interval")
	}
	got := unpaced.reserve(testkit.Start, "#a", time.Hour, time.Minute)
	testkit.Equal(t, got, Reservation{time.Hour, false}, "without an interval, later than the caller waits")
}

func TestLocalIsBounded(t *testing.T) {
	t.Parallel()
	p := newLocal(Pace{time.Second, 1})
	for i := range maxPauses - 1 {
		p.reserve(testkit.Start, fmt.Sprint(i), 0, time.Hour)
		p.mention(testkit.Start, fmt.Sprint(i), "id", time.Hour)
	}
	soon := testkit.Start.Add(time.Minute)
	p.reserve(soon, "last", 0, time.Hour)
	p.reserve(soon, "one more", 0, time.Hour)
	testkit.Equal(t, len(p.ends), 2, "destinations that are kept when the others are through")
	testkit.Equal(t, p.reserve(soon, "last", 0, time.Hour).Wait, time.Second, "a destination that is not through waits")
	for i := range maxPauses + 10 {
		p.reserve(soon, fmt.Sprint("busy", i), 0, time.Hour)
		p.mention(soon, fmt.Sprint("busy", i), "id", time.Hour)
		if len(p.ends) > maxPauses || len(p.mentions) > maxPauses {
			t.Fatalf("got %d destinations and %d paths, want %d at most", len(p.ends), len(p.mentions), maxPauses)
		}
	}
}

func TestMentions(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
	for _, way := range []script.Scripting{script.Eval, script.Functions} {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			r := shared{script.NewRunner(script.Options{Client: client, Prefix: string(way), Timeout: scripttest.Patience, Scripting: way})}
			giveBack := func(path, id string) {
				t.Helper()
				testkit.NoError(t, r.returnMention(t.Context(), path, id))
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
			if ttl := client.PTTL(t.Context(), r.runner.Key("mention:a")).Val(); ttl <= 0 || ttl > time.Hour {
				t.Errorf("it is kept for %v", ttl)
			}
			may("short", "first", time.Microsecond)
			testkit.Eventually(t, "another event to have its turn", func() bool { return may("short", "second", time.Hour) != noMention })
			testkit.Equal(t, may("short", "first", time.Hour), noMention, "the earlier event may mention")
		})
	}
}

func TestMentionsOfAnInstanceAlone(t *testing.T) {
	t.Parallel()
	p := newLocal(Pace{})
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
		got := p.mention(testkit.Start.Add(step.after), step.path, step.id, time.Minute)
		testkit.Equal(t, got, step.want, "step %d: %q of %q may mention", i, step.id, step.path)
	}
	p.returnMention("b", "first")
	p.returnMention("a", "second")
	soon := testkit.Start.Add(time.Minute + time.Second)
	testkit.Equal(t, p.mention(soon, "b", "first", time.Minute), noMention, "after somebody else gave it back")
	testkit.Equal(t, p.mention(soon, "a", "first", time.Minute), takesMention, "after it was given back")
}
