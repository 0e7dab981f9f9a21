package pacing

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// budgeter keeps budgets by a clock of the test: in Redis or in memory.
type budgeter interface {
	post(asker string, a Ask, known time.Duration) Reservation
	update(known, maxWait time.Duration) Reservation
	pause(name string, d time.Duration) map[string]time.Duration
	use() Use
}

// inRedis keeps the budgets in Redis.
type inRedis struct {
	testing.TB
	shared
}

func (r inRedis) post(asker string, a Ask, known time.Duration) Reservation {
	return testkit.Must(r.shared.post(context.Background(), asker, a, known))(r)
}

func (r inRedis) update(known, maxWait time.Duration) Reservation {
	return testkit.Must(r.shared.update(context.Background(), known, maxWait))(r)
}

func (r inRedis) pause(name string, d time.Duration) map[string]time.Duration {
	return testkit.Must(r.shared.pause(context.Background(), name, d))(r)
}

func (r inRedis) use() Use { return testkit.Must(r.shared.use(context.Background()))(r) }

// inMemory keeps the budgets in memory.
type inMemory struct {
	clock *testkit.Clock
	*local
}

func (m inMemory) post(asker string, a Ask, known time.Duration) Reservation {
	return m.local.post(m.clock.Read(), asker, a, known)
}

func (m inMemory) update(known, maxWait time.Duration) Reservation {
	return m.local.update(m.clock.Read(), known, maxWait)
}

func (m inMemory) pause(name string, d time.Duration) map[string]time.Duration {
	return m.local.pause(m.clock.Read(), name, d)
}

func (m inMemory) use() Use { return m.local.use(m.clock.Read()) }

// newInRedis makes a budgeter with keys and a clock of its own. The keys live by the clock of the server, so they live longer here.
func newInRedis(t testing.TB, client redis.UniversalClient, way script.Scripting, b Budgets) (inRedis, *testkit.Clock) {
	const lives, livesLonger = "math.ceil(microseconds / 1000)", "math.ceil(microseconds / 1000) + 3600000"
	prefix := strings.NewReplacer("/", "-", ",", "", ":", "").Replace(t.Name())
	o, clock := scripttest.WithClock(t, script.Options{Client: client, Prefix: prefix, Timeout: scripttest.Patience, Scripting: way})
	source, library := o.Source, o.Library
	o.Source = func(script lua.Script, algorithms []string) string {
		return strings.Replace(source(script, algorithms), lives, livesLonger, 1)
	}
	o.Library = func() (name, text string) {
		name, text = library()
		return name, strings.Replace(text, lives, livesLonger, 1)
	}
	return inRedis{t, shared{script.NewRunner(o), b}}, clock
}

// story runs on each implementation.
type story struct {
	testing.TB
	budgeter
	clock *testkit.Clock
	start time.Time
}

// now returns the time since the start of the story.
func (s story) now() time.Duration { return s.clock.Read().Sub(s.start) }

// next has an asker wait for a post, and returns its slot time since the start.
func (s story) next(asker, channel string) time.Duration {
	s.Helper()
	for {
		r := s.post(asker, Ask{Channel: channel, Urgency: Ordinary, MaxWait: 2 * time.Hour}, 0)
		if r.OK {
			return s.now() + r.Wait
		}
		if r.Wait <= 0 || r.Wait > r.Expected+shortest {
			s.Fatalf("asks again after %v for a post in %v", r.Wait, r.Expected)
		}
		s.clock.Advance(r.Wait)
	}
}

// posts wants the slot times of the next posts of a channel, since the start.
func (s story) posts(channel string, want ...time.Duration) {
	s.Helper()
	for i, at := range want {
		testkit.Equal(s, s.next("one", channel), at, "post %d of %s", i+1, channel)
	}
}

// refused wants an asker to wait for a post, and returns when it asks again.
func (s story) refused(asker string, a Ask, expected time.Duration) time.Duration {
	s.Helper()
	a.MaxWait = 2 * time.Hour
	r := s.post(asker, a, 0)
	if r.OK || r.Expected != expected {
		s.Errorf("%s asks for %s after %v: %+v, want a wait of %v", asker, a.Channel, s.now(), r, expected)
	}
	return r.Wait
}

// tale is what a story tells.
type tale struct {
	name    string
	budgets Budgets
	tell    func(s story)
}

func tales() []tale {
	const m = time.Minute
	return []tale{
		{"no bounds", Budgets{}, func(s story) {
			s.posts("#a", 0, 0, 0, 0, 0)
			s.pause("#a", m)
			s.posts("#b", 0, 0)
			s.refused("one", Ask{Channel: "#a"}, m)
			testkit.Equal(s, s.update(0, 0), Reservation{OK: true}, "an update")
		}},
		{"a burst, then one each interval", Budgets{Channel: Pace{m, 3}}, func(s story) {
			s.posts("#a", 0, 0, 0, m, 2*m, 3*m)
			s.clock.Advance(time.Hour)
			at := s.now()
			s.posts("#a", at, at, at, at+m)
		}},
		{"a burst that is not set", Budgets{Channel: Pace{Interval: m}}, func(s story) {
			s.posts("#a", 0, m, 2*m)
		}},
		{"channels have paces of their own", Budgets{Channel: Pace{m, 1}}, func(s story) {
			s.posts("#a", 0)
			s.posts("#b\n\x00", 0)
			s.posts("#a", m)
		}},
		{"a pause, and no burst behind it", Budgets{Channel: Pace{m, 5}}, func(s story) {
			s.posts("#a", 0, 0)
			s.pause("#a", 10*m)
			s.pause("#a", m) // the longer pause stays
			s.clock.Advance(4 * m)
			s.posts("#a", 10*m, 11*m, 12*m)
		}},
		{"a pause that only the asker knows of", Budgets{Channel: Pace{m, 5}}, func(s story) {
			r := s.post("one", Ask{Channel: "#a", MaxWait: time.Hour}, 10*m)
			testkit.Equal(s, r, Reservation{Wait: 10*m - lead/2, Expected: 10 * m}, "a post")
		}},
		{"askers of a channel in their order", Budgets{Channel: Pace{m, 1}}, func(s story) {
			s.posts("#a", 0)
			old, recent := testkit.Start, testkit.Start.Add(time.Hour)
			s.refused("c", Ask{"#a", Digest, old, time.Hour}, m)
			s.refused("b", Ask{"#a", Ordinary, recent, time.Hour}, m)
			s.refused("a", Ask{"#a", Ordinary, old, time.Hour}, m)
			s.refused("z", Ask{"#a", Critical, recent, time.Hour}, m)
			s.refused("c", Ask{"#a", Digest, old, time.Hour}, 4*m)
			s.refused("b", Ask{"#a", Ordinary, recent, time.Hour}, 3*m)
			s.refused("a", Ask{"#a", Ordinary, old, time.Hour}, 2*m)
			s.refused("y", Ask{"#a", Overdue, recent, time.Hour}, m)
			s.clock.Advance(s.refused("y", Ask{"#a", Overdue, recent, time.Hour}, m))
			s.refused("z", Ask{"#a", Critical, recent, time.Hour}, m+lead/2)
			testkit.Equal(s, s.post("y", Ask{"#a", Overdue, recent, time.Hour}, 0), Reservation{true, lead / 2, lead / 2}, "the overdue message")
			s.refused("z", Ask{"#a", Critical, recent, time.Hour}, m+lead/2)
		}},
		{"an asker that is gone", Budgets{Channel: Pace{m, 1}}, func(s story) {
			s.posts("#a", 0)
			wait := s.refused("gone", Ask{Channel: "#a", Urgency: Critical}, m)
			s.clock.Advance(wait + grace)
			s.refused("one", Ask{Channel: "#a", Urgency: Ordinary}, m) // the other asker still counts
			s.clock.Advance(time.Microsecond)
			testkit.Equal(s, s.post("one", Ask{Channel: "#a", Urgency: Ordinary}, 0), Reservation{OK: true}, "a post without the other asker")
		}},
		{"the window of the workspace", Budgets{Workspace: Window{3, m}}, func(s story) {
			const next = time.Microsecond // each post has a time of its own
			s.posts("#a", 0, next, 2*next)
			s.refused("one", Ask{Channel: "#b"}, m)
			s.posts("#b", m, m+next, m+2*next)
			s.clock.Advance(time.Hour)
			at := s.now()
			s.posts("#c", at, at+next, at+2*next, at+m)
		}},
		{"later than the asker waits", Budgets{Channel: Pace{m, 1}, Workspace: Window{2, m}}, func(s story) {
			s.posts("#a", 0)
			const short = m - time.Microsecond
			for range 2 {
				testkit.Equal(s, s.post("one", Ask{Channel: "#a", MaxWait: short}, 0), Reservation{Wait: m, Expected: m}, "a post")
			}
			testkit.Equal(s, s.use().Workspace.Waiting, 0, "channels that wait")
			s.posts("#b", time.Microsecond)
			testkit.Equal(s, s.post("one", Ask{Channel: "#c", MaxWait: short}, 0), Reservation{Wait: m, Expected: m}, "a post")
			testkit.Equal(s, s.use().Workspace.Waiting, 0, "channels that wait")
		}},
		{"both budgets or neither", Budgets{Channel: Pace{m, 1}, Workspace: Window{2, m}}, func(s story) {
			s.posts("#a", 0)
			s.refused("one", Ask{Channel: "#a"}, m) // takes nothing of the workspace
			s.posts("#b", time.Microsecond)
			s.refused("one", Ask{Channel: "#c"}, m) // takes nothing of the channel
			s.posts("#c", m)
			s.posts("#d", m+time.Microsecond)
		}},
		{"channels take turns", Budgets{Workspace: Window{1, m}}, func(s story) {
			s.posts("#flood", 0)
			s.refused("one", Ask{Channel: "#flood"}, m)
			s.clock.Advance(time.Second)
			s.refused("one", Ask{Channel: "#quiet"}, 2*m-time.Second)
			s.refused("two", Ask{Channel: "#flood"}, 3*m-time.Second) // the channel has one place, whichever workers ask
			s.clock.Advance(m / 2)
			s.refused("one", Ask{Channel: "#flood"}, m/2-time.Second)
			s.refused("one", Ask{Channel: "#quiet"}, 3*m/2-time.Second)
			s.clock.Advance(m/2 - 2*time.Second)
			testkit.Equal(s, s.post("one", Ask{Channel: "#flood", MaxWait: time.Second}, 0), Reservation{true, time.Second, time.Second}, "a post of the flood")
			s.refused("one", Ask{Channel: "#flood"}, 2*m+time.Second) // behind the quiet channel
			s.refused("one", Ask{Channel: "#quiet"}, m+time.Second)
		}},
		{"a channel that is gone holds up nobody", Budgets{Workspace: Window{1, m}}, func(s story) {
			s.posts("#a", 0)
			s.refused("gone", Ask{Channel: "#gone"}, m)
			s.clock.Advance(time.Microsecond)
			s.refused("one", Ask{Channel: "#b"}, 2*m-time.Microsecond)
			s.posts("#b", m)
		}},
		{"a late asker keeps its place", Budgets{Workspace: Window{1, m}}, func(s story) {
			s.posts("#a", 0)
			wait := s.refused("one", Ask{Channel: "#late"}, m)
			s.clock.Advance(wait + grace + 1)
			s.clock.Advance(time.Second - 1)
			left := m - s.now()
			s.refused("one", Ask{Channel: "#b"}, left) // the late channel does not count
			s.clock.Advance(-time.Second)
			s.clock.Advance(time.Second)
			s.refused("one", Ask{Channel: "#late"}, left)
			s.refused("one", Ask{Channel: "#b"}, left+m)
		}},
		{"a paused channel holds up nobody", Budgets{Channel: Pace{time.Second, 1}, Workspace: Window{1, m}}, func(s story) {
			s.posts("#a", 0)
			s.refused("one", Ask{Channel: "#paused"}, m)
			s.clock.Advance(time.Second)
			s.refused("one", Ask{Channel: "#b"}, 2*m-time.Second)
			s.pause("#paused", time.Hour)
			s.refused("one", Ask{Channel: "#paused"}, time.Hour)
			s.posts("#b", m)
		}},
		{"two channels limited within a second pause the workspace", Budgets{Channel: Pace{m, 2}}, func(s story) {
			testkit.Equal(s, len(s.pause("#a", 5*m)), 1, "pauses after one channel")
			s.clock.Advance(time.Second)
			testkit.Equal(s, len(s.pause("#a", 5*m)), 1, "pauses after the same channel")
			s.clock.Advance(time.Second)
			pauses := s.pause("#b", 7*m)
			testkit.Equal(s, maps.Equal(pauses, map[string]time.Duration{"#b": 7 * m, workspace: 5*m - time.Second}), true, "pauses after two channels")
			s.refused("one", Ask{Channel: "#c"}, 5*m-time.Second)
			testkit.Equal(s, s.use().Workspace.Paused, 5*m-time.Second, "pause of the workspace")
			testkit.Equal(s, s.update(0, 0).OK, true, "an update meanwhile")
		}},
		{"two channels limited apart", Budgets{}, func(s story) {
			s.pause("#a", 5*m)
			s.clock.Advance(time.Second + time.Microsecond)
			testkit.Equal(s, len(s.pause("#b", 7*m)), 1, "pauses")
			s.posts("#c", s.now())
		}},
		{"updates", Budgets{Updates: Window{2, m}}, func(s story) {
			wants := func(maxWait time.Duration, want Reservation) {
				s.Helper()
				testkit.Equal(s, s.update(0, maxWait), want, "update")
			}
			wants(0, Reservation{OK: true})
			s.clock.Advance(time.Second)
			wants(0, Reservation{OK: true})
			wants(time.Second, Reservation{Wait: m - time.Second, Expected: m - time.Second})
			wants(time.Hour, Reservation{true, m - time.Second, m - time.Second})
			wants(time.Hour, Reservation{true, m, m})
			testkit.Equal(s, s.use().Updates, BudgetUse{Used: 2, Waiting: 2}, "use")
			s.pause(updates, 10*m)
			wants(time.Hour, Reservation{true, 10 * m, 10 * m})
			s.posts("#a", s.now())
			testkit.Equal(s, s.update(20*m, time.Hour), Reservation{true, 20 * m, 20 * m}, "an update with a pause that only the caller knows of")
		}},
		{"use", Budgets{Workspace: Window{2, m}}, func(s story) {
			s.posts("#a", 0, time.Microsecond)
			s.clock.Advance(time.Millisecond)
			s.refused("one", Ask{Channel: "#b"}, m-time.Millisecond)
			s.refused("two", Ask{Channel: "#b"}, m-time.Millisecond+time.Microsecond)
			testkit.Equal(s, s.use().Workspace, BudgetUse{Used: 2, Waiting: 1}, "use")
			s.clock.Advance(m)
			testkit.Equal(s, s.use().Workspace, BudgetUse{}, "use a minute later")
		}},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, told := range tales() {
		for _, way := range []script.Scripting{script.Eval, script.Functions} {
			t.Run(string(way)+"/"+told.name, func(t *testing.T) {
				t.Parallel()
				redis, clock := newInRedis(t, client, way, told.budgets)
				told.tell(story{t, redis, clock, clock.Read()})
			})
		}
		t.Run("memory/"+told.name, func(t *testing.T) {
			t.Parallel()
			clock := testkit.NewClock(func(time.Time) {})
			told.tell(story{t, inMemory{clock, newLocal(told.budgets)}, clock, clock.Read()})
		})
	}
}

// TestModel makes random requests of both implementations, which answer alike.
func TestModel(t *testing.T) {
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	checks := 0
	rapid.Check(t, func(r *rapid.T) {
		checks++
		budgets := Budgets{
			Channel: Pace{
				rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, time.Second, time.Minute}).Draw(r, "interval"),
				rapid.IntRange(1, 4).Draw(r, "burst"),
			},
			Workspace: Window{rapid.IntRange(0, 4).Draw(r, "posts"), rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(r, "window")},
			Updates:   Window{rapid.IntRange(0, 4).Draw(r, "updates"), time.Minute},
		}
		client.FlushDB(context.Background())
		redis, clock := newInRedis(t, client, script.Eval, budgets)
		model := inMemory{clock, newLocal(budgets)}
		channel := func() string { return fmt.Sprint("#", rapid.IntRange(0, 3).Draw(r, "channel")) }
		while := rapid.SampledFrom([]time.Duration{0, time.Microsecond, shortest, lead, 3 * time.Second / 4, time.Second, 7 * time.Second, time.Minute})
		same := func(what string, got, want any) {
			if fmt.Sprint(got) != fmt.Sprint(want) {
				r.Fatalf("%s: %v in Redis, %v in memory", what, got, want)
			}
		}
		var wait time.Duration // that an asker was told last
		post := func(r *rapid.T) {
			asker := fmt.Sprint(rapid.IntRange(0, 2).Draw(r, "asker"))
			ask := Ask{Channel: channel(), Urgency: Urgency(rapid.IntRange(0, 1).Draw(r, "urgency")), Since: testkit.Start, MaxWait: while.Draw(r, "longest wait")}
			known := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second}).Draw(r, "known")
			got, want := redis.post(asker, ask, known), model.post(asker, ask, known)
			same("a post", got, want)
			wait = got.Wait
		}
		r.Repeat(map[string]func(*rapid.T){
			"post":   post,
			"again":  post,
			"posts":  post, // more often than the others
			"answer": func(*rapid.T) { clock.Advance(wait) },
			"wait":   func(r *rapid.T) { clock.Advance(while.Draw(r, "time")) },
			"update": func(r *rapid.T) {
				maxWait := while.Draw(r, "longest wait")
				same("an update", redis.update(0, maxWait), model.update(0, maxWait))
			},
			"pause": func(r *rapid.T) {
				name, d := channel(), while.Draw(r, "pause")
				if rapid.IntRange(0, 3).Draw(r, "of the updates") == 0 {
					name = updates
				}
				same("a pause", redis.pause(name, d), model.pause(name, d))
			},
			"": func(*rapid.T) { same("use", redis.use(), model.use()) },
		})
	})
}
