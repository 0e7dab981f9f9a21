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
	lookUp(known, maxWait time.Duration) Reservation
	update(u Update, known time.Duration) Reservation
	updated(message string, order int64)
	pause(name string, d time.Duration, why cause) map[string]time.Duration
	use(channels ...string) Use
}

// inRedis keeps the budgets in Redis.
type inRedis struct {
	testing.TB
	shared
}

func (r inRedis) post(asker string, a Ask, known time.Duration) Reservation {
	return testkit.Must(r.shared.post(context.Background(), asker, a, known))(r)
}

func (r inRedis) lookUp(known, maxWait time.Duration) Reservation {
	return testkit.Must(r.shared.lookUp(context.Background(), known, maxWait))(r)
}

func (r inRedis) update(u Update, known time.Duration) Reservation {
	return testkit.Must(r.shared.update(context.Background(), u, known))(r)
}

func (r inRedis) updated(message string, order int64) {
	testkit.NoError(r, r.shared.updated(context.Background(), message, order))
}

func (r inRedis) pause(name string, d time.Duration, why cause) map[string]time.Duration {
	return testkit.Must(r.shared.pause(context.Background(), name, d, why))(r)
}

func (r inRedis) use(channels ...string) Use {
	return testkit.Must(r.shared.use(context.Background(), channels))(r)
}

// inMemory keeps the budgets in memory.
type inMemory struct {
	clock *testkit.Clock
	*local
}

func (m inMemory) post(asker string, a Ask, known time.Duration) Reservation {
	return m.local.post(m.clock.Read(), asker, a, known)
}

func (m inMemory) lookUp(known, maxWait time.Duration) Reservation {
	return m.local.lookUp(m.clock.Read(), known, maxWait)
}

func (m inMemory) update(u Update, known time.Duration) Reservation {
	return m.local.update(m.clock.Read(), u, known)
}

func (m inMemory) updated(message string, order int64) {
	m.local.updated(m.clock.Read(), message, order)
}

func (m inMemory) pause(name string, d time.Duration, why cause) map[string]time.Duration {
	return m.local.pause(m.clock.Read(), name, d, why)
}

func (m inMemory) use(channels ...string) Use { return m.local.use(m.clock.Read(), channels) }

// TestClockBack sets the clock of Redis back after a post and after an update that has no end. Times of the clock before close nothing.
func TestClockBack(t *testing.T) {
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	budgets := Budgets{Channel: Pace{time.Minute, 2}, Workspace: Window{1, time.Minute}, Updates: Window{10, time.Minute}}
	r, clock := newInRedis(t, client, script.Eval, budgets)
	s := story{t, r, clock, clock.Read()}
	update := Update{Message: "m", Order: 1, MaxWait: time.Hour, Within: 3 * time.Second, Lasts: 30 * time.Second}
	s.posts("#a", 0)
	s.begins(update, 0)
	clock.Advance(-50 * time.Minute)
	s.posts("#a", s.now())
	update.Order = 2
	s.begins(update, 0)
	s.pause("#a", 10*time.Minute, byLimit)
	s.refused("one", Ask{Channel: "#a"}, 10*time.Minute)
}

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
	return inRedis{t, shared{runner: script.NewRunner(o), budgets: b}}, clock
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
		testkit.Require(s, r.Wait > 0 && r.Wait <= r.Expected+shortest, "asks again after %v for a post in %v", r.Wait, r.Expected)
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
	testkit.Check(s, !r.OK && r.Expected == expected, "%s asks for %s after %v: %+v, want a wait of %v", asker, a.Channel, s.now(), r, expected)
	return r.Wait
}

// begins wants an update to begin after a time.
func (s story) begins(u Update, after time.Duration) {
	s.Helper()
	testkit.Equal(s, s.update(u, 0), Reservation{OK: true, Wait: after, Expected: after}, "update of %s to %d", u.Message, u.Order)
}

// waits wants an update not to begin, and the asker to ask again after a time.
func (s story) waits(u Update, wait time.Duration) {
	s.Helper()
	testkit.Equal(s, s.update(u, 0), Reservation{Wait: wait, Expected: wait}, "update of %s to %d", u.Message, u.Order)
}

// obsolete wants a state of a message to be obsolete.
func (s story) obsolete(u Update) {
	s.Helper()
	testkit.Equal(s, s.update(u, 0), Reservation{Obsolete: true}, "update of %s to %d", u.Message, u.Order)
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
			s.pause("#a", m, byLimit)
			s.posts("#b", 0, 0)
			s.refused("one", Ask{Channel: "#a"}, m)
			s.begins(Update{Message: "m", Order: 1}, 0)
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
			s.pause("#a", 10*m, byLimit)
			s.pause("#a", m, byLimit) // the longer pause stays
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
			testkit.Equal(s, s.post("y", Ask{"#a", Overdue, recent, time.Hour}, 0), Reservation{OK: true, Wait: lead / 2, Expected: lead / 2}, "the overdue message")
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
			testkit.Equal(s, s.post("one", Ask{Channel: "#flood", MaxWait: time.Second}, 0), Reservation{OK: true, Wait: time.Second, Expected: time.Second}, "a post of the flood")
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
			s.pause("#paused", time.Hour, byLimit)
			s.refused("one", Ask{Channel: "#paused"}, time.Hour)
			s.posts("#b", m)
		}},
		{"two channels limited within a second pause the workspace", Budgets{Channel: Pace{m, 2}}, func(s story) {
			testkit.Equal(s, len(s.pause("#a", 5*m, byLimit)), 1, "pauses after one channel")
			s.clock.Advance(time.Second)
			testkit.Equal(s, len(s.pause("#a", 5*m, byLimit)), 1, "pauses after the same channel")
			s.clock.Advance(time.Second)
			pauses := s.pause("#b", 7*m, byLimit)
			testkit.Equal(s, maps.Equal(pauses, map[string]time.Duration{"#b": 7 * m, workspace: 5*m - time.Second}), true, "pauses after two channels")
			s.refused("one", Ask{Channel: "#c"}, 5*m-time.Second)
			testkit.Equal(s, s.use().Workspace.Paused, 5*m-time.Second, "pause of the workspace")
			s.begins(Update{Message: "m", Order: 1}, 0)
		}},
		{"two channels limited apart", Budgets{}, func(s story) {
			s.pause("#a", 5*m, byLimit)
			s.clock.Advance(time.Second + time.Microsecond)
			testkit.Equal(s, len(s.pause("#b", 7*m, byLimit)), 1, "pauses")
			s.posts("#c", s.now())
		}},
		{"channels that refuse messages do not pause the workspace", Budgets{Channel: Pace{m, 2}}, func(s story) {
			testkit.Equal(s, len(s.pause("#a", 5*m, byLimit)), 1, "pauses after a limited channel")
			for _, channel := range []string{"#b", "#c"} {
				testkit.Equal(s, len(s.pause(channel, 7*m, byRefusal)), 1, "pauses after the refusal of %s", channel)
				s.refused("one", Ask{Channel: channel}, 7*m)
			}
			testkit.Equal(s, len(s.pause("#d", 5*m, byLimit)), 2, "pauses after another limited channel")
		}},
		{"updates", Budgets{Updates: Window{2, m}}, func(s story) {
			of := func(message string) Update {
				return Update{Message: message, Order: 1, MaxWait: time.Hour, Within: time.Second}
			}
			s.begins(of("a"), 0)
			s.clock.Advance(time.Second)
			s.begins(of("b"), 0)
			soon := of("c")
			soon.MaxWait = time.Second
			s.waits(soon, m-time.Second) // reserves nothing
			s.waits(of("c"), m-time.Second)
			s.waits(of("d"), m)
			s.waits(of("c"), m-time.Second) // the message keeps its slot
			testkit.Equal(s, s.use().Updates, BudgetUse{Used: 2, Waiting: 2}, "use")
			s.clock.Advance(m - 2*time.Second)
			s.begins(of("c"), time.Second)
			s.clock.Advance(2*time.Second + lateUpdate)
			s.begins(of("d"), 0) // late
			s.pause(updates, 10*m, byLimit)
			s.waits(of("e"), 10*m)
			s.posts("#a", s.now())
			later := of("f")
			testkit.Equal(s, s.update(later, 20*m), Reservation{Wait: 20 * m, Expected: 20 * m}, "an update with a pause that only the caller knows of")
		}},
		{"look-ups beside updates", Budgets{Updates: Window{1, m}, LookUps: Window{2, m}}, func(s story) {
			testkit.Equal(s, s.lookUp(0, 0).OK, true, "the first look-up")
			s.clock.Advance(time.Second)
			testkit.Equal(s, s.lookUp(0, 0).OK, true, "the second look-up")
			s.begins(Update{Message: "a", Order: 1}, 0)
			testkit.Equal(s, s.lookUp(0, 0), Reservation{Wait: m - time.Second, Expected: m - time.Second}, "the third look-up")
			s.pause(lookUps, 10*m, byLimit)
			testkit.Equal(s, s.lookUp(0, time.Hour).Wait, 10*m, "a look-up after the pause")
			s.waits(Update{Message: "b", Order: 1, MaxWait: time.Hour}, m)
			testkit.Equal(s, s.use().Updates, BudgetUse{Used: 1, Waiting: 1}, "use of the updates")
			testkit.Equal(s, s.use().LookUps, BudgetUse{Used: 2, Waiting: 1, Paused: 10 * m}, "use of the look-ups")
			s.posts("#a", s.now())
		}},
		{"a reserved update in a pause", Budgets{Updates: Window{1, m}}, func(s story) {
			of := func(message string) Update { return Update{Message: message, Order: 1, MaxWait: time.Hour} }
			s.begins(of("a"), 0)
			s.waits(of("b"), m)
			s.pause(updates, 5*m, byLimit)
			s.waits(of("b"), 5*m) // its slot is in the pause
			s.clock.Advance(5*m + lateUpdate + time.Microsecond)
			s.waits(of("b"), m-lateUpdate-time.Microsecond) // it is too late for its slot
		}},
		{"states of a message", Budgets{Updates: Window{1, m}}, func(s story) {
			state := func(order int64) Update {
				return Update{Message: "a", Order: order, MaxWait: time.Hour, Within: time.Second, Lasts: 10 * time.Second}
			}
			s.begins(state(3), 0)
			s.obsolete(state(2))
			s.waits(state(4), time.Second) // while the request for an older state may be made
			s.clock.Advance(9*time.Second + 400*time.Millisecond)
			s.waits(state(4), 600*time.Millisecond)
			s.waits(state(3), m-9*time.Second-400*time.Millisecond) // a state may be repeated, in a new slot
			s.updated("a", 3)
			s.obsolete(state(3))
			s.waits(state(4), m-9*time.Second-400*time.Millisecond) // in the same slot
			s.clock.Advance(m - 9*time.Second - 400*time.Millisecond)
			s.begins(state(5), 0)
			s.obsolete(state(4))
			s.updated("a", 4) // late
			s.waits(state(6), time.Second)
			s.updated("a", MostOrder)
			s.obsolete(state(6))
			s.clock.Advance(messageKept - time.Microsecond)
			s.obsolete(state(MostOrder))
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
		{"use of the channels", Budgets{Channel: Pace{m, 2}}, func(s story) {
			uses := func(when string, want ...ChannelUse) {
				s.Helper()
				testkit.EqualSlices(s, s.use("#a", "#b", "#idle").Channels, want, "channels at their pace %s", when)
			}
			s.posts("#a", 0)
			uses("within a burst")
			s.posts("#a", 0)
			uses("after a burst", ChannelUse{"#a", m, 0})
			s.refused("one", Ask{Channel: "#a"}, m)
			s.refused("two", Ask{Channel: "#a"}, 2*m)
			uses("with askers", ChannelUse{"#a", m, 2})
			testkit.EqualSlices(s, s.use("#b").Channels, nil, "another channel at its pace")
			s.clock.Advance(m / 2)
			uses("half an interval later", ChannelUse{"#a", m / 2, 2})
			s.pause("#b", 10*m, byLimit)
			uses("beside a pause", ChannelUse{"#a", m / 2, 2})
			s.clock.Advance(m / 2)
			uses("when its next post is due")
			s.clock.Advance(9 * m)
			uses("at the end of a pause", ChannelUse{"#b", m / 2, 0})
		}},
		{"use of channels without a pace", Budgets{Workspace: Window{1, m}}, func(s story) {
			s.posts("#a", 0)
			s.refused("one", Ask{Channel: "#a"}, m)
			testkit.EqualSlices(s, s.use("#a").Channels, nil, "channels at their pace")
		}},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	client := scripttest.NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	ways := scripttest.Ways(t)
	for _, told := range tales() {
		for _, way := range ways {
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
			LookUps:   Window{rapid.IntRange(0, 4).Draw(r, "look-ups"), time.Minute},
		}
		client.FlushDB(context.Background())
		redis, clock := newInRedis(t, client, script.Eval, budgets)
		model := inMemory{clock, newLocal(budgets)}
		message := func(r *rapid.T) string { return fmt.Sprint(rapid.IntRange(0, 3).Draw(r, "message")) }
		order := rapid.SampledFrom([]int64{1, 2, 3, MostOrder})
		channel := func() string { return fmt.Sprint("#", rapid.IntRange(0, 3).Draw(r, "channel")) }
		while := rapid.SampledFrom([]time.Duration{0, time.Microsecond, shortest, lead, 3 * time.Second / 4, time.Second, 7 * time.Second, time.Minute})
		same := func(what string, got, want any) {
			testkit.Require(r, fmt.Sprint(got) == fmt.Sprint(want), "%s: %v in Redis, %v in memory", what, got, want)
		}
		var wait time.Duration // of the last answer to an asker
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
			"look-up": func(r *rapid.T) {
				maxWait := while.Draw(r, "longest wait")
				same("a look-up", redis.lookUp(0, maxWait), model.lookUp(0, maxWait))
			},
			"update": func(r *rapid.T) {
				u := Update{
					Message: message(r), Order: order.Draw(r, "order"), MaxWait: while.Draw(r, "longest wait"),
					Within: while.Draw(r, "within"), Lasts: while.Draw(r, "longest request"),
				}
				same("an update", redis.update(u, 0), model.update(u, 0))
			},
			"updated": func(r *rapid.T) {
				name, shown := message(r), order.Draw(r, "order")
				redis.updated(name, shown)
				model.updated(name, shown)
			},
			"pause": func(r *rapid.T) {
				name, d := channel(), while.Draw(r, "pause")
				switch rapid.IntRange(0, 7).Draw(r, "of what") {
				case 0:
					name = updates
				case 1:
					name = lookUps
				}
				why := rapid.SampledFrom([]cause{byLimit, byRefusal}).Draw(r, "why")
				same("a pause", redis.pause(name, d, why), model.pause(name, d, why))
			},
			"": func(*rapid.T) { same("use", redis.use("#0", "#2", "#3"), model.use("#0", "#2", "#3")) },
		})
	})
}
