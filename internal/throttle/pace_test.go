package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/lua"
)

// paceKit is a limiter whose clock the test moves.
type paceKit struct {
	*pairKit
	pace Pace
}

// reserve asks for moments of a destination; each of them has to be this far away, and is reserved.
func (k *paceKit) reserve(destination string, want ...time.Duration) {
	k.t.Helper()
	for i, wait := range want {
		k.moment(destination, 0, time.Hour, Moment{wait, true}, fmt.Sprintf("moment %d of %v", i+1, want))
	}
}

func (k *paceKit) moment(destination string, rest, horizon time.Duration, want Moment, what string) {
	k.t.Helper()
	if got, err := k.Reserve(k.t.Context(), destination, k.pace, rest, horizon); err != nil || got != want {
		k.t.Fatalf("%s of %s: %+v, %v, want %+v", what, destination, got, err, want)
	}
}

func (k *paceKit) pause(destination string, d time.Duration) {
	k.t.Helper()
	if err := k.Pause(k.t.Context(), destination, k.pace, d); err != nil {
		k.t.Fatal(err)
	}
}

// wantPaces checks which destinations there is something of, and that it expires when all is through.
func (k *paceKit) wantPaces(kept time.Duration, want ...string) {
	k.t.Helper()
	got := k.client.ZRange(k.t.Context(), k.keys.paces, 0, -1).Val()
	if slices.Sort(got); !slices.Equal(got, want) {
		k.t.Errorf("paces of %q, want %q", got, want)
	}
	if ttl := k.client.PTTL(k.t.Context(), k.keys.paces).Val(); len(want) > 0 && (ttl <= 0 || ttl > kept) {
		k.t.Errorf("they expire after %v, want %v", ttl, kept)
	}
}

// paceStories are told in minutes: Redis itself drops what is through by a clock that the test does not move.
var paceStories = []struct {
	name string
	pace Pace
	tell func(k *paceKit)
}{
	{"a burst, then one each interval", Pace{time.Minute, 5}, func(k *paceKit) {
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute, 2*time.Minute, 3*time.Minute)
		k.clock.advance(150 * time.Second)
		k.reserve("#a", 90*time.Second, 150*time.Second)
		k.clock.advance(time.Hour)
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute)
	}},
	{"a short rest gives a part of the burst", Pace{time.Minute, 3}, func(k *paceKit) {
		k.reserve("#a", 0, 0, 0)
		k.clock.advance(2*time.Minute - time.Microsecond)
		k.reserve("#a", 0, time.Microsecond, time.Minute+time.Microsecond)
	}},
	{"no burst", Pace{time.Minute, 1}, func(k *paceKit) {
		k.reserve("#a", 0, time.Minute, 2*time.Minute)
		k.clock.advance(3*time.Minute - time.Millisecond)
		k.reserve("#a", time.Millisecond)
		k.clock.advance(time.Hour)
		k.reserve("#a", 0, time.Minute)
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
		k.clock.advance(4 * time.Minute)
		k.reserve("#a", 6*time.Minute, 7*time.Minute)
		k.clock.advance(6 * time.Minute)
		k.reserve("#a", 2*time.Minute, 3*time.Minute)
	}},
	{"a pause that ends before all is through", Pace{time.Minute, 1}, func(k *paceKit) {
		k.reserve("#a", 0, time.Minute, 2*time.Minute, 3*time.Minute)
		k.pause("#a", 2*time.Minute)
		k.reserve("#a", 4*time.Minute)
	}},
	{"a pause that only the caller knows of", Pace{time.Minute, 5}, func(k *paceKit) {
		k.moment("#a", 10*time.Minute, time.Hour, Moment{10 * time.Minute, true}, "a moment")
		k.reserve("#a", 11*time.Minute) // for the others too
		k.pause("#b", 20*time.Minute)
		k.moment("#b", 10*time.Minute, time.Hour, Moment{20 * time.Minute, true}, "a moment")
	}},
	{"beyond the horizon", Pace{time.Minute, 1}, func(k *paceKit) {
		k.reserve("#a", 0, time.Minute)
		k.pause("#b", time.Minute)
		before := k.dumps(k.keys.paces)
		for range 3 {
			k.moment("#a", 0, 2*time.Minute-time.Microsecond, Moment{2 * time.Minute, false}, "a moment too far away")
			k.moment("#b", 0, time.Minute-time.Microsecond, Moment{time.Minute, false}, "a pause too long")
		}
		if k.dumps(k.keys.paces) != before {
			k.t.Error("something was written")
		}
		k.moment("#a", 0, 2*time.Minute, Moment{2 * time.Minute, true}, "a moment just near enough")
		k.moment("#b", 0, time.Minute, Moment{time.Minute, true}, "a pause just short enough")
	}},
	{"no interval", Pace{}, func(k *paceKit) {
		k.reserve("#a", 0, 0, 0, 0, 0, 0, 0, 0)
		k.pause("#a", time.Minute)
		k.reserve("#a", time.Minute, time.Minute)
		k.moment("#a", 0, time.Second, Moment{time.Minute, false}, "a pause")
		if rest, err := k.Rest(k.t.Context(), "#a"); err != nil || rest != time.Minute {
			k.t.Errorf("it rests for %v, %v", rest, err)
		}
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
		k.clock.advance(time.Minute)
		k.reserve("#c", 0)
		k.wantPaces(2*time.Minute, "#b", "#c")
	}},
	{"a clock that ran ahead a little", Pace{time.Minute, 5}, func(k *paceKit) {
		k.clock.advance(time.Hour)
		k.reserve("#a", 0)
		k.clock.advance(-time.Hour)
		k.reserve("#a", time.Hour-3*time.Minute) // as far as it is bound, it is waited out
	}},
	{"a clock that ran far ahead", Pace{time.Minute, 5}, func(k *paceKit) {
		k.clock.advance(3 * time.Hour)
		k.reserve("#a", 0)
		k.pause("#b", time.Minute)
		k.clock.advance(-3 * time.Hour)
		k.reserve("#a", 0, 0, 0, 0, 0, time.Minute)
		k.reserve("#b", 0)
	}},
}

func TestPaces(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, way := range []Scripting{Eval, Functions} {
		for _, story := range paceStories {
			t.Run(string(way)+"/"+story.name, func(t *testing.T) {
				t.Parallel()
				story.tell(&paceKit{newPairKit(t, client, way), story.pace})
			})
		}
	}
}

// another is a second instance of the deployment, on the same clock.
func another(r *Redis, client *redis.Client, prefix string) *Redis {
	other := newRedis(client, prefix, r.settings)
	other.source = r.source
	other.inUse.Store(nil)
	other.Adopt(*r.rules())
	return other
}

// TestPaceInEveryWindow has two instances reserve moments at random, and compares each with what an instance alone gives.
// However they come, a window of T has the burst and T/interval of them at most, and none lies in a pause.
func TestPaceInEveryWindow(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	one := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "pace", pairSettings(t))
	clock := withFakeTime(t, one)
	instances := []*Redis{one, another(one, newClient(t, redis.Options{Addr: server.Addr}), "pace")}
	checks := 0
	rapid.Check(t, func(t *rapid.T) {
		checks++
		pace := Pace{
			Interval: rapid.SampledFrom([]time.Duration{time.Minute, 7 * time.Minute, time.Hour}).Draw(t, "interval"),
			Burst:    rapid.IntRange(1, 6).Draw(t, "burst"),
		}
		var (
			alone    = newPacer(pace)
			pauses   = make(map[string]time.Time)
			reserved = make(map[string][]time.Time)
			names    = []string{fmt.Sprint("#a", checks), fmt.Sprint("#b", checks)}
			while    = func(most int) time.Duration {
				scale := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, pace.Interval / 2, pace.Interval}).Draw(t, "scale")
				return min(time.Duration(rapid.IntRange(0, most).Draw(t, "times"))*scale, time.Hour)
			}
		)
		reserve := func(t *rapid.T) {
			destination, horizon := rapid.SampledFrom(names).Draw(t, "destination"), while(30)
			rest := max(0, pauses[destination].Sub(clock.read()))
			want := alone.reserve(clock.read(), destination, rest, horizon)
			got, err := rapid.SampledFrom(instances).Draw(t, "instance").Reserve(context.Background(), destination, pace, 0, horizon)
			if err != nil || got != want {
				t.Fatalf("%s with a rest of %v and a horizon of %v: %+v, %v; an instance alone: %+v", destination, rest, horizon, got, err, want)
			}
			if got.Wait < rest {
				t.Fatalf("%s takes a message in %v, and rests for %v", destination, got.Wait, rest)
			}
			if got.Reserved {
				reserved[destination] = append(reserved[destination], clock.read().Add(got.Wait))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"":        func(t *rapid.T) { wantPace(t, pace, reserved) },
			"reserve": reserve,
			"again":   reserve, // more often than the rest
			"a few": func(t *rapid.T) {
				for range 2 * pace.Burst {
					reserve(t)
				}
			},
			"pause": func(t *rapid.T) {
				destination, d := rapid.SampledFrom(names).Draw(t, "destination"), max(time.Minute, while(20)) // see paceStories
				if err := one.Pause(context.Background(), destination, pace, d); err != nil {
					t.Fatal(err)
				}
				alone.rest(clock.read(), destination, d)
				pauses[destination] = later(pauses[destination], clock.read().Add(d))
			},
			"wait": func(*rapid.T) { clock.advance(while(30)) },
			"step": func(*rapid.T) {
				clock.advance(rapid.SampledFrom([]time.Duration{time.Hour, 24 * time.Hour}).Draw(t, "step"))
			},
		})
	})
}

// wantPace checks the window from each moment to each later one: it must be as long as what it holds takes.
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

// TestPacesRace has instances reserve at once: nobody gets the moment of another.
func TestPacesRace(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	one := newRedis(newClient(t, redis.Options{Addr: server.Addr}), "race", pairSettings(t))
	withFakeTime(t, one)
	const instances, each, burst = 4, 25, 5
	var (
		mu      sync.Mutex
		waits   []time.Duration
		running sync.WaitGroup
	)
	for range instances {
		r := another(one, newClient(t, redis.Options{Addr: server.Addr}), "race")
		running.Go(func() {
			for range each {
				moment, err := r.Reserve(t.Context(), "#a", Pace{time.Minute, burst}, 0, 2*time.Hour)
				if err != nil || !moment.Reserved {
					t.Errorf("%+v, %v", moment, err)
					return
				}
				mu.Lock()
				waits = append(waits, moment.Wait)
				mu.Unlock()
			}
		})
	}
	running.Wait()
	slices.Sort(waits)
	for i, wait := range waits {
		if want := time.Duration(max(0, i+1-burst)) * time.Minute; wait != want {
			t.Fatalf("moment %d in %v, want %v", i+1, wait, want)
		}
	}
}

func TestPacerKeepsTheLatestMoment(t *testing.T) {
	t.Parallel()
	p := newPacer(Pace{time.Second, 5})
	for _, wait := range []time.Duration{0, 2 * time.Second, time.Second} { // as replies come
		p.learn(start, "#a", Moment{wait, true})
	}
	p.learn(start, "#a", Moment{time.Hour, false})
	for i := range 3 {
		want := Moment{time.Duration(3+i) * time.Second, true}
		if got := p.reserve(start, "#a", 0, time.Minute); got != want {
			t.Errorf("moment %d behind what Redis reserved: %+v, want %+v", i+1, got, want)
		}
	}
	unpaced := newPacer(Pace{})
	unpaced.learn(start, "#a", Moment{time.Minute, true})
	for range 3 {
		if got := unpaced.reserve(start, "#a", time.Second, time.Minute); got != (Moment{time.Second, true}) {
			t.Errorf("without an interval: %+v", got)
		}
	}
	if got := unpaced.reserve(start, "#a", time.Hour, time.Minute); got != (Moment{time.Hour, false}) {
		t.Errorf("without an interval, beyond the horizon: %+v", got)
	}
}

func TestPacerIsBounded(t *testing.T) {
	t.Parallel()
	p := newPacer(Pace{time.Second, 1})
	for i := range maxPauses - 1 {
		p.reserve(start, fmt.Sprint(i), 0, time.Hour)
		p.mention(start, fmt.Sprint(i), "id", time.Hour)
	}
	soon := start.Add(time.Minute)
	p.reserve(soon, "last", 0, time.Hour)
	p.reserve(soon, "one more", 0, time.Hour)
	if len(p.ends) != 2 {
		t.Errorf("of %d destinations %d are kept when the others are through", maxPauses+1, len(p.ends))
	}
	if got := p.reserve(soon, "last", 0, time.Hour); got.Wait != time.Second {
		t.Errorf("a destination that is not through waits %v", got.Wait)
	}
	for i := range maxPauses + 10 {
		p.reserve(soon, fmt.Sprint("busy", i), 0, time.Hour)
		p.mention(soon, fmt.Sprint("busy", i), "id", time.Hour)
		if len(p.ends) > maxPauses || len(p.mentions) > maxPauses {
			t.Fatalf("%d destinations, %d paths", len(p.ends), len(p.mentions))
		}
	}
}

// within tells whether a wait that a real clock shortens is the one expected, in whole hours.
func within(wait, want time.Duration) bool {
	return wait <= want && wait > want-time.Hour/2
}

// TestGatePaces goes through an outage: the instance goes on alone behind what was reserved for it.
func TestGatePaces(t *testing.T) {
	t.Parallel()
	server := durable(t)
	gate := startGate(t, server.Addr, GateOptions{Pace: Pace{time.Hour, 3}})
	want := func(destination string, waits ...time.Duration) {
		t.Helper()
		for _, wait := range waits {
			if got := gate.Reserve(t.Context(), destination, 10*time.Hour); !got.Reserved || !within(got.Wait, wait) {
				t.Errorf("%s: %+v, want %v", destination, got, wait)
			}
		}
	}
	want("#a", 0, 0)
	want("#b", 0, 0, 0, time.Hour)
	gate.lose(server)
	want("#a", time.Hour, 2*time.Hour)
	want("#b", 2*time.Hour)
	want("#c", 0, 0, 0, time.Hour)
	gate.Pause(t.Context(), "#d", 5*time.Hour)
	want("#d", 5*time.Hour, 6*time.Hour)
	if got := gate.Reserve(t.Context(), "#d", time.Minute); got.Reserved || !within(got.Wait, 7*time.Hour) {
		t.Errorf("beyond the horizon: %+v", got)
	}
	gate.Pause(t.Context(), "#e", time.Hour)

	// Redis has not been told of the pause.
	server.Restart()
	gate.until(answering)
	if rest := gate.Rest(t.Context(), "#e"); !within(rest, time.Hour) || rest == 0 {
		t.Errorf("it rests for %v, after it was told so without Redis", rest)
	}
	want("#e", time.Hour, 2*time.Hour)
	want("#b", 2*time.Hour) // Redis keeps what it gave itself
}

// TestGateAwaitsMoment also has a rest that begins, by word of another instance, while the moment is waited for.
func TestGateAwaitsMoment(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	pace := Pace{2 * time.Second, 1}
	gate, other := startGate(t, server.Addr, GateOptions{Pace: pace}), startGate(t, server.Addr, GateOptions{Pace: pace})
	other.Pause(t.Context(), "rests", time.Hour)
	if wait, ok := gate.AwaitMoment(t.Context(), "rests", time.Minute); ok || wait == 0 || !within(wait, time.Hour) {
		t.Errorf("beyond the horizon: %v, %t", wait, ok)
	}
	if wait, ok := gate.AwaitMoment(t.Context(), "#a", 0); wait != 0 || !ok {
		t.Errorf("the first moment: %v, %t", wait, ok)
	}
	reserved := server.CLI("ZSCORE", gateKey("paces"), "#a")
	awaited := make(chan string, 1)
	go func() {
		wait, ok := gate.AwaitMoment(t.Context(), "#a", time.Minute)
		awaited <- fmt.Sprint(wait, ok)
	}()
	for server.CLI("ZSCORE", gateKey("paces"), "#a") == reserved {
		time.Sleep(time.Millisecond)
	}
	paused := time.Now()
	other.Pause(t.Context(), "#a", 3*time.Second)
	if got := <-awaited; got != "0s true" || time.Since(paused) < 3*time.Second {
		t.Errorf("the next moment: %s, %v after a pause of three seconds was told", got, time.Since(paused))
	}
	ended, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if wait, ok := gate.AwaitMoment(ended, "rests", 2*time.Hour); wait != 0 || ok {
		t.Errorf("when the context ends: %v, %t", wait, ok)
	}
}

// TestGatePacesThatCannotBeRead has keys that somebody else has made: the instance goes on alone.
func TestGatePacesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	gate := startGate(t, server.Addr, GateOptions{Pace: Pace{time.Hour, 1}})
	server.CLI("HSET", gateKey("paces"), "field", "value")
	server.CLI("HSET", gateKey("mention:a"), "field", "value")
	for _, wait := range []time.Duration{0, time.Hour} {
		if got := gate.Reserve(t.Context(), "#a", time.Hour); !got.Reserved || !within(got.Wait, wait) {
			t.Errorf("%+v, want %v", got, wait)
		}
	}
	for id, want := range []Mention{TakesMention, NoMention} {
		if got := gate.Mention(t.Context(), "a", fmt.Sprint(id), time.Hour); got != want {
			t.Errorf("event %d may mention: %d", id, got)
		}
	}
}

func TestGateRest(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startGate(t, server.Addr, GateOptions{}), startGate(t, server.Addr, GateOptions{})
	first.Pause(t.Context(), "#a", time.Hour)
	if rest := second.pauses.left("#a"); rest != 0 {
		t.Fatalf("the other instance knows at once of a pause of %v", rest)
	}
	if rest := second.Rest(t.Context(), "#a"); rest == 0 || !within(rest, time.Hour) {
		t.Errorf("asked, it rests for %v", rest)
	}
	if rest := second.pauses.left("#a"); rest == 0 || !within(rest, time.Hour) {
		t.Errorf("the instance has not learned of the pause: %v", rest)
	}
	if rest := second.Rest(t.Context(), "#b"); rest != 0 {
		t.Errorf("another destination rests for %v", rest)
	}
	if got := second.Reserve(t.Context(), "#a", time.Minute); got.Reserved || !within(got.Wait, time.Hour) || got.Wait == 0 {
		t.Errorf("a moment in a pause: %+v", got)
	}
	second.lose(server)
	if rest := second.Rest(t.Context(), "#a"); rest == 0 || !within(rest, time.Hour) {
		t.Errorf("without Redis it rests for %v", rest)
	}
	if rest := second.Rest(t.Context(), "#b"); rest != 0 {
		t.Errorf("without Redis another destination rests for %v", rest)
	}
}

func TestMentions(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, way := range []Scripting{Eval, Functions} {
		t.Run(string(way), func(t *testing.T) {
			t.Parallel()
			r := NewRedis(RedisOptions{Client: client, Prefix: string(way), Timeout: patience, Scripting: way}, pairSettings(t))
			giveBack := func(path, id string) {
				t.Helper()
				if err := r.ReturnMention(t.Context(), path, id); err != nil {
					t.Fatal(err)
				}
			}
			may := func(path, id string, d time.Duration) Mention {
				t.Helper()
				may, err := r.Mention(t.Context(), path, id, d)
				if err != nil {
					t.Fatal(err)
				}
				return may
			}
			for i, step := range []struct {
				path, id string
				want     Mention
			}{
				{"a", "first", TakesMention}, {"a", "second", NoMention}, {"a", "first", HasMention}, {"a.b", "second", TakesMention},
				{"a", "second", NoMention}, {"a.b", "first", NoMention}, {"", "first", TakesMention},
			} {
				if got := may(step.path, step.id, time.Hour); got != step.want {
					t.Errorf("step %d: %q of %q may mention: %d", i, step.id, step.path, got)
				}
			}
			giveBack("a", "second") // who does not have it
			giveBack("never asked for", "second")
			if got := may("a", "second", time.Hour); got != NoMention {
				t.Errorf("what somebody else gave back is there: %d", got)
			}
			giveBack("a", "first")
			giveBack("a", "first")
			if got := may("a", "second", time.Hour); got != TakesMention {
				t.Errorf("after it was given back: %d", got)
			}
			if ttl := client.PTTL(t.Context(), r.keys.meter("mention:a")).Val(); ttl <= 0 || ttl > time.Hour {
				t.Errorf("it is kept for %v", ttl)
			}
			may("short", "first", time.Microsecond)
			poll(t, "another event to have its turn", func() bool { return may("short", "second", time.Hour) != NoMention })
			if may("short", "first", time.Hour) != NoMention {
				t.Error("the event of the time before may mention again")
			}
		})
	}
}

func TestMentionsOfAnInstanceAlone(t *testing.T) {
	t.Parallel()
	p := newPacer(Pace{})
	for i, step := range []struct {
		after    time.Duration
		path, id string
		want     Mention
	}{
		{0, "a", "first", TakesMention},
		{time.Second, "a", "second", NoMention},
		{time.Minute - time.Microsecond, "a", "first", HasMention},
		{time.Minute - time.Microsecond, "a", "second", NoMention},
		{time.Minute - time.Microsecond, "b", "second", TakesMention},
		{time.Minute, "a", "second", TakesMention},
		{2*time.Minute - time.Microsecond, "a", "first", NoMention},
	} {
		if got := p.mention(start.Add(step.after), step.path, step.id, time.Minute); got != step.want {
			t.Errorf("step %d: %q of %q may mention: %d", i, step.id, step.path, got)
		}
	}
	p.returnMention("b", "first")
	p.returnMention("a", "second")
	soon := start.Add(time.Minute + time.Second)
	if b, a := p.mention(soon, "b", "first", time.Minute), p.mention(soon, "a", "first", time.Minute); b != NoMention || a != TakesMention {
		t.Errorf("after one was given back: %d and %d", b, a)
	}
}

func TestGateMentions(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	first, second := startGate(t, server.Addr, GateOptions{}), startGate(t, server.Addr, GateOptions{})
	want := func(gate *gateKit, id string, want Mention) {
		t.Helper()
		if got := gate.Mention(t.Context(), "a", id, time.Hour); got != want {
			t.Errorf("%q may mention: %d, want %d", id, got, want)
		}
	}
	want(first, "rejected", TakesMention)
	want(second, "one", NoMention)
	first.ReturnMention(t.Context(), "a", "rejected")
	want(first, "one", TakesMention)
	want(first, "one", HasMention)
	second.ReturnMention(t.Context(), "a", "two")
	want(second, "two", NoMention)
	first.lose(server)
	want(first, "two", NoMention) // it knows of its own
	want(first, "one", HasMention)
	want(second, "two", TakesMention) // and no more
	want(second, "three", NoMention)
	second.ReturnMention(t.Context(), "a", "two")
	want(second, "three", TakesMention)
}

// timelyOperations are as operations, of the scripts that say when something happens.
var timelyOperations = []operation{
	{
		"pace", []string{"calls", "pauses", "paces"}, []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Reserve(ctx, "#here too", Pace{time.Second, 5}, 0, 2*time.Hour)
			return err
		},
	},
	{
		"rest", []string{"calls", "pauses", "paces"}, nil,
		func(ctx context.Context, r *Redis, _ Lease) error { _, err := r.Rest(ctx, "#here"); return err },
	},
	{
		"mention", []string{"mention:a.b"}, []string{"set"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.Mention(ctx, scriptPath, "new", time.Minute)
			return err
		},
	},
	{
		"return a mention", []string{"mention:elsewhere"}, []string{"pexpire"},
		func(ctx context.Context, r *Redis, _ Lease) error { return r.ReturnMention(ctx, "elsewhere", "id") },
	},
	{
		"delay", []string{"calls", "room:a", "line:a:a"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, _, err := r.Delay(ctx, postponed(request("new", scriptPath)), 10)
			return err
		},
	},
	{
		"enter the room", []string{"calls", "room:a"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.EnterRoom(ctx, []Stay{{First: "a", Member: "new", Weight: 2, For: time.Minute}}, 10)
			return err
		},
	},
	{
		"turn", []string{"calls", "leased", "room:a", "line:a:a"}, nil,
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.turns(ctx, []Request{request("new", scriptPath).inMessage(9)})
			return err
		},
	},
	{
		"leave", []string{"calls", "room:a", "line:a:a"}, []string{"zrem", "zadd"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			return r.leave(ctx, []Request{request("waits", scriptPath)})
		},
	},
	{
		"delay a firing", []string{"calls", "room:a", "line:a:a", "pairs:a", "pairs:until:a", "leased"},
		[]string{"zadd", "pexpire", "zrem", "hset", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, _, err := r.Delay(ctx, postponed(request("new", scriptPath).ofPair("under way")), 10)
			return err
		},
	},
	{
		"refuse a firing", []string{"calls", "room:a", "line:a:a", "pairs:a", "pairs:until:a"}, []string{"zadd", "pexpire", "zrem", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			p := postponed(request("waits", scriptPath).ofPair("waits"))
			p.Longest, p.HasWaited = 0, true
			_, _, err := r.Delay(ctx, p, 10)
			return err
		},
	},
}

// seedTimely leaves every kind of key that those scripts have.
func seedTimely(t *testing.T, r *Redis) {
	t.Helper()
	lapsed := Lease{Request: request("lapsed", scriptPath).ofPair("under way")}
	_, reserved := r.Reserve(t.Context(), "#here", Pace{time.Second, 5}, 0, 2*time.Hour)
	_, _, delayed := r.Delay(t.Context(), postponed(request("waits", scriptPath).ofPair("waits")), 10)
	_, mentioned := r.Mention(t.Context(), "elsewhere", "id", time.Minute)
	if err := errors.Join(r.announce(t.Context(), []Decision{{Lease: lapsed}}), reserved, delayed, mentioned); err != nil {
		t.Fatal(err)
	}
}

func TestTimelyKeysOfTheWrongType(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, o := range timelyOperations {
		for _, kind := range []string{"calls", "leased", "pauses", "paces", "mention:a.b", "mention:elsewhere", "room:a", "line:a:a", "pairs:a", "pairs:until:a"} {
			t.Run(o.name+"/"+kind, func(t *testing.T) {
				client.FlushDB(t.Context())
				r := newRedis(client, "wrong", scriptSettings(t))
				lease := seed(t, r)
				seedTimely(t, r)
				client.Del(t.Context(), "{wrong}:"+kind)
				client.RPush(t.Context(), "{wrong}:"+kind, "a list")
				client.PExpire(t.Context(), "{wrong}:"+kind, time.Hour)
				before := contents(t, client)
				err := o.call(t.Context(), r, lease)
				wantExpiries(t, client)
				if !slices.Contains(o.touches, kind) {
					if err != nil {
						t.Fatalf("it does not need that key: %v", err)
					}
					return
				}
				if !errors.Is(err, ErrRefused) || !strings.Contains(fmt.Sprint(err), "WRONGTYPE") {
					t.Fatalf("error %v, want %v of a wrong type", err, ErrRefused)
				}
				wantUnchanged(t, client, before)
			})
		}
	}
}

func TestTimelyRights(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	admin := newClient(t, redis.Options{Addr: server.Addr})
	settings := scriptSettings(t)
	for _, command := range []string{"none", "zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel", "set"} {
		client := setUser(t, server, "without-"+command, without(rights, command))
		for _, o := range timelyOperations {
			t.Run(command+"/"+o.name, func(t *testing.T) {
				admin.FlushDB(t.Context())
				r := newRedis(admin, "rights", settings)
				lease := seed(t, r)
				seedTimely(t, r)
				server.CLI("SCRIPT", "FLUSH", "SYNC")
				before := contents(t, admin)
				err := o.call(t.Context(), newRedis(client, "rights", settings), lease)
				for _, key := range wantExpiries(t, admin) {
					if !strings.HasPrefix(key, "{rights}:") {
						t.Errorf("key %q is not of this deployment", key)
					}
				}
				if !slices.Contains(o.writes, command) {
					if err != nil {
						t.Fatalf("it does not need that command: %v", err)
					}
					return
				}
				if !errors.Is(err, ErrRefused) {
					t.Fatalf("error %v, want %v", err, ErrRefused)
				}
				wantUnchanged(t, admin, before)
			})
		}
	}
}

// functionCalls is a hook that remembers which functions are called.
type functionCalls struct {
	commandCount

	mu     sync.Mutex
	called map[string]bool
}

func (f *functionCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		if arguments := command.Args(); command.Name() == "fcall" {
			f.mu.Lock()
			f.called[fmt.Sprint(arguments[1])] = true
			f.mu.Unlock()
		}
		return next(ctx, command)
	}
}

// TestRehearsalRunsEveryScript counts the scripts; that a rehearsal without a right fails is shown for each command.
func TestRehearsalRunsEveryScript(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	calls := &functionCalls{called: make(map[string]bool)}
	client.AddHook(calls)
	r := NewRedis(RedisOptions{Client: client, Prefix: "rehearsal", Timeout: patience, Scripting: Functions}, scriptSettings(t))
	if err := errors.Join(r.Rehearse(t.Context()), r.Probe(t.Context())); err != nil {
		t.Fatal(err)
	}
	name, _ := lua.Library()
	for _, script := range lua.Scripts {
		if !calls.called[lua.Function(name, script)] {
			t.Errorf("%s was not run", script)
		}
	}
	for _, key := range wantExpiries(t, client) {
		if !strings.Contains(key, ":scratch:") {
			t.Errorf("%s may be of a deployment", key)
		}
	}
}
