//go:build soak

package soak

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The tests of this file have the verdict judge histories that are made up: each promise finds its planted violation, and nothing in the
// same history with an excuse. Times are seconds since the start.

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

// plant returns a verdict about an empty history.
func plant(t *testing.T) *verdict {
	return &verdict{
		d:        &deployment{t: t, slack: slacktest.New(t), answers: &answers{}},
		intruder: &intruder{producer: &hostile.Producer{}},
		entries:  make(map[string]*entry), posts: make(map[string][]slacktest.Post), updates: make(map[string]int),
		shown: make(map[string]slacktest.Message), dead: make(map[string]int), hostileDead: make(map[string]int),
		outcomes: make(map[string]outcomes),
		history:  &redisHistory{recorded: make(map[string]time.Time), root: make(map[string]*admission)},
	}
}

// publishes plants an event, and returns its place in the ledger.
func (v *verdict) publishes(id, category string, published float64) *entry {
	e := &entry{ID: id, Category: category, Cost: 1, Copies: 1, Fate: limited, Began: at(published), Stored: at(published)}
	v.entries[id] = e
	return e
}

// says is a message with some texts.
func says(texts ...string) (m slacktest.Message) {
	for _, text := range texts {
		m.Blocks = append(m.Blocks, slacktest.Block{Text: &slacktest.Text{Type: "plain_text", Text: text}})
	}
	return m
}

// accepts plants a post of a published event. name is in its metadata.
func (v *verdict) accepts(id, name string, received float64) slacktest.Post {
	post := slacktest.Post{
		ChannelID: "C1", Timestamp: fmt.Sprint(received), Received: at(received), Message: says("id "+id, "category "+v.entries[id].Category),
		Metadata: slacktest.Metadata{Payload: map[string]any{"name": name}},
	}
	v.accepted = append(v.accepted, post)
	v.posts[id] = append(v.posts[id], post)
	return post
}

// records plants the record of an event.
func (v *verdict) records(id string, recorded float64) { v.history.recorded[id] = at(recorded) }

// happens plants an incident.
func (v *verdict) happens(of target, from, upto float64) *incident {
	i := &incident{Target: of, From: at(from), Upto: at(upto)}
	v.incidents = append(v.incidents, i)
	return i
}

// loses plants a kill of Redis of one second.
func (v *verdict) loses(from float64) { v.happens(onRedis, from, from+1).Loses = true }

// planting is a history, and the number of violations that a check finds in it.
type planting struct {
	name   string
	plant  func(v *verdict)
	broken int
}

func judge(t *testing.T, check func(v *verdict), plantings []planting) {
	for _, p := range plantings {
		t.Run(p.name, func(t *testing.T) {
			v := plant(t)
			p.plant(v)
			check(v)
			var broken []string
			for _, promise := range v.promises {
				broken = append(broken, promise.Broken...)
			}
			testkit.Equal(t, len(broken), p.broken, "violations: %v", broken)
		})
	}
}

// folds plants a key with three events, the last of which is recorded at a time, and a message that counts some of them.
func (v *verdict) folds(recorded float64, counts int) {
	for n := range 3 {
		e := v.publishes(fmt.Sprint("folded-", n), foldedCategory, float64(100+n))
		e.Key = "fold-1"
		v.records(e.ID, float64(100+n))
	}
	v.records("folded-2", recorded)
	post := v.accepts("folded-0", "first", 100)
	v.shown[post.ChannelID+" "+post.Timestamp] = says(fmt.Sprintf("seen %d times, last 10:31, worst: error", counts))
}

func TestVerdictOfFolds(t *testing.T) {
	judge(t, (*verdict).checkFolds, []planting{
		{"all are counted", func(v *verdict) { v.folds(103, 3) }, 0},
		{"one is not counted", func(v *verdict) { v.folds(103, 2) }, 1},
		{"a second message", func(v *verdict) { v.folds(103, 2); v.accepts("folded-2", "second", 104) }, 1},
		{"Redis was slow", func(v *verdict) { v.folds(103, 2); v.happens(onRedis, 101, 102) }, 1},
		{"Redis lost its writes", func(v *verdict) { v.folds(103, 2); v.loses(107) }, 0},
		{"Redis lost later writes", func(v *verdict) { v.folds(103, 2); v.loses(109) }, 1},
		{"Redis lost its writes before a late fold", func(v *verdict) { v.folds(140, 2); v.loses(120) }, 0},
		{"Redis lost a record", func(v *verdict) {
			v.folds(103, 2)
			delete(v.history.recorded, "folded-2")
			v.loses(101)
		}, 0},
	})
}

// swings plants a key whose changes are recorded some time after their publishes, and its reports.
func (v *verdict) swings(delay float64, reports ...float64) {
	for n := range changesOfSwing {
		e := v.publishes(fmt.Sprint("swing-1-", n), swingsCategory, float64(100+n))
		e.Key = "swing-1"
		v.records(e.ID, float64(100+n)+delay)
	}
	for n, report := range reports {
		v.reports = append(v.reports, v.accepts("swing-1-4", fmt.Sprint("report-", n), report))
	}
}

func TestVerdictOfFlaps(t *testing.T) {
	judge(t, (*verdict).checkFlaps, []planting{
		{"one report", func(v *verdict) { v.swings(0.1, 122.1) }, 0},
		{"no report", func(v *verdict) { v.swings(0.1) }, 1},
		{"no report beside a fault that delayed nothing", func(v *verdict) { v.swings(0.1); v.happens(onWorker, 101, 103) }, 1},
		{"no report of changes that were decided after the next ones", func(v *verdict) { v.swings(1.1) }, 0},
		{"no report, and Redis lost changes", func(v *verdict) { v.swings(0.1); v.loses(108) }, 0},
		{"two reports", func(v *verdict) { v.swings(0.1, 122.1, 130) }, 1},
		{"two reports beside a fault", func(v *verdict) { v.swings(1.1, 122.1, 130); v.happens(onRedis, 101, 103) }, 1},
		{"two reports of changes that were decided after the first one", func(v *verdict) { v.swings(16, 122.1, 130) }, 0},
		{"two reports, and Redis lost the first one", func(v *verdict) { v.swings(0.1, 122.1, 130); v.loses(124) }, 0},
		{"two reports of a slow swing", func(v *verdict) {
			v.swings(0.1, 122.1, 130)
			v.entries["swing-1-7"].Stored = at(116)
		}, 1},
	})
}

func TestVerdictOfLimits(t *testing.T) {
	posted := func(v *verdict, events int, published, received float64) {
		for n := range events {
			id := fmt.Sprint("soon-", n)
			v.publishes(id, "soon", published)
			v.accepts(id, id, received)
		}
	}
	judge(t, (*verdict).checkLimits, []planting{
		{"a post without an admission", func(v *verdict) { posted(v, 1, 100, 101) }, 1},
		{"Redis was slow", func(v *verdict) { posted(v, 1, 100, 101); v.happens(onRedis, 100, 103) }, 1},
		{"Redis lost the admission", func(v *verdict) { posted(v, 1, 100, 101); v.loses(103) }, 0},
		{"Redis lost the admission of a late post", func(v *verdict) { posted(v, 1, 100, 400); v.loses(103) }, 0},
		{"Redis lost later admissions", func(v *verdict) { posted(v, 1, 100, 101); v.loses(107) }, 1},
		{"Redis lost earlier admissions", func(v *verdict) { posted(v, 1, 100, 101); v.loses(98) }, 1},
		{"Redis lost all admissions of a limit", func(v *verdict) { posted(v, 8, 100, 101); v.loses(103) }, 0},
		{"more than the limit is missing", func(v *verdict) { posted(v, 9, 100, 101); v.loses(103) }, 1},
		{"two losses", func(v *verdict) { posted(v, 9, 100, 101); v.loses(102); v.loses(104) }, 0},
	})
}

func TestVerdictOfNeedlessDrops(t *testing.T) {
	dropped := func(v *verdict) { v.publishes("clock-1", "clock", 100).Settled = at(100.5) }
	judge(t, (*verdict).checkNeedlessDrops, []planting{
		{"a drop with room", dropped, 1},
		{"Redis was slow", func(v *verdict) { dropped(v); v.happens(onRedis, 99, 103) }, 1},
		{"Redis lost what made the limit full", func(v *verdict) { dropped(v); v.loses(103) }, 0},
		{"Redis lost what made the limit full in a deny cache", func(v *verdict) { dropped(v); v.loses(98.5) }, 0},
		{"Redis lost later admissions", func(v *verdict) { dropped(v); v.loses(107) }, 1},
	})
}

func TestVerdictOfPosts(t *testing.T) {
	posted := func(v *verdict, received ...float64) {
		v.publishes("clock-1", "clock", 100)
		for _, at := range received {
			v.accepts("clock-1", "name", at)
		}
	}
	judge(t, (*verdict).checkPostedOnce, []planting{
		{"one post", func(v *verdict) { posted(v, 101) }, 0},
		{"two posts", func(v *verdict) { posted(v, 101, 110) }, 1},
		{"two posts beside another fault", func(v *verdict) { posted(v, 101, 110); v.happens(onRedis, 102, 105) }, 1},
		{"Redis lost the record of the first one", func(v *verdict) { posted(v, 101, 110); v.loses(104) }, 0},
		{"Redis lost the lease of the first one", func(v *verdict) { posted(v, 101, 110); v.loses(98) }, 0},
		{"Redis lost earlier writes", func(v *verdict) { posted(v, 101, 110); v.loses(90) }, 1},
		{"Redis lost later writes", func(v *verdict) { posted(v, 101, 110); v.loses(116) }, 1},
	})
}

func TestVerdictOfPairs(t *testing.T) {
	unpaired := func(v *verdict, posted, recorded float64) {
		v.publishes("firing", "pairs", 100)
		v.accepts("firing", "firing", posted)
		v.records("firing", recorded)
		resolved := v.publishes("resolved", "pairs", recorded+5)
		resolved.Fate, resolved.Resolves = resolves, "firing"
	}
	judge(t, (*verdict).checkPairs, []planting{
		{"the resolved event is missing", func(v *verdict) { unpaired(v, 101, 101.1) }, 1},
		{"Redis was slow", func(v *verdict) { unpaired(v, 101, 101.1); v.happens(onRedis, 100, 104) }, 1},
		{"Redis lost the pair", func(v *verdict) { unpaired(v, 101, 101.1); v.loses(105) }, 0},
		{"Redis lost the pair of a late post", func(v *verdict) { unpaired(v, 130, 130.1); v.loses(134) }, 0},
		{"Redis lost that the post was to come", func(v *verdict) { unpaired(v, 130, 130.1); v.loses(104) }, 0},
		{"Redis lost the record too", func(v *verdict) {
			unpaired(v, 101, 101.1)
			delete(v.history.recorded, "firing")
			v.loses(109)
		}, 0},
		{"Redis lost later writes", func(v *verdict) { unpaired(v, 101, 101.1); v.loses(107) }, 1},
	})
}

func TestVerdictOfAnswers(t *testing.T) {
	posted := func(v *verdict, messages int, found outcomes) {
		v.publishes("posted", "search", 100).Copies = messages
		v.accepts("posted", "posted", 101)
		v.outcomes["posted"] = found
	}
	judge(t, (*verdict).checkAnswers, []planting{
		{"sent", func(v *verdict) { posted(v, 1, outcomes{journal.Sent: 1}) }, 0},
		{"sent, and published again", func(v *verdict) { posted(v, 2, outcomes{journal.Sent: 1, journal.Duplicate: 1}) }, 0},
		{"a duplicate that was published once", func(v *verdict) { posted(v, 1, outcomes{journal.Sent: 1, journal.Duplicate: 1}) }, 1},
		{"no outcome", func(v *verdict) { posted(v, 1, nil) }, 1},
		{"no outcome, and a worker was killed", func(v *verdict) { posted(v, 1, nil); v.happens(onWorker, 102, 103) }, 0},
		{"sent twice", func(v *verdict) { posted(v, 1, outcomes{journal.Sent: 2}) }, 1},
		{"dropped, and sent when it was published again", func(v *verdict) { posted(v, 2, outcomes{journal.Sent: 1, journal.Dropped: 1}) }, 0},
		{"dropped too", func(v *verdict) { posted(v, 1, outcomes{journal.Sent: 1, journal.Dropped: 1}) }, 1},
		{"sent without a post", func(v *verdict) {
			posted(v, 1, outcomes{journal.Sent: 1})
			clear(v.posts)
			v.happens(onWorker, 102, 103)
		}, 1},
		{"dead without a dead letter", func(v *verdict) { posted(v, 1, outcomes{journal.Dead: 1}); clear(v.posts) }, 1},
		{"dropped", func(v *verdict) { posted(v, 1, outcomes{journal.Dropped: 1}); clear(v.posts) }, 0},
	})
}

func TestVerdictOfMutes(t *testing.T) {
	fails := func(v *verdict) {
		v.checkMutes(&muter{failed: []failedMute{{mute{at(100), at(105)}, "exit status 1"}}})
	}
	judge(t, fails, []planting{
		{"a mute fails", func(*verdict) {}, 1},
		{"a mute fails beside a fault of a worker", func(v *verdict) { v.happens(onWorker, 101, 102) }, 1},
		{"NATS was away", func(v *verdict) { v.happens(onNATS, 101, 102) }, 0},
		{"Redis had been away", func(v *verdict) { v.happens(onRedis, 95, 97) }, 0},
		{"nothing was muted in a long soak", func(v *verdict) { v.happens(onNATS, 101, 102); v.lasted = longSoak }, 1},
	})
}

func TestVerdictOfAttacks(t *testing.T) {
	attacks := func(v *verdict, name string, stored int64) {
		for n := range 3 {
			v.intruder.attacks = append(v.intruder.attacks, attack{Name: name, Stored: stored, From: at(float64(100 + n)), Upto: at(float64(101 + n))})
		}
	}
	judge(t, (*verdict).checkHostile, []planting{
		{"what is stored", func(v *verdict) { attacks(v, "floods", 1) }, 0},
		{"what is not stored", func(v *verdict) { attacks(v, "floods", 0) }, 1},
		{"what is not stored beside a fault", func(v *verdict) { attacks(v, "floods", 0); v.happens(onNATS, 101.5, 101.6) }, 0},
		{"what the server refuses", func(v *verdict) { attacks(v, "rolls the stream up", 0) }, 0},
		{"nothing is stored in a long soak", func(v *verdict) { v.lasted = longSoak }, 1},
	})
}

// TestVerdictOfNothing checks nothing in a long soak.
func TestVerdictOfNothing(t *testing.T) {
	for name, check := range map[string]func(v *verdict){
		"nothing lost": (*verdict).checkLost, "one outcome": (*verdict).checkOutcomes, "counted once": (*verdict).checkCountedOnce,
		"no needless drop": (*verdict).checkNeedlessDrops, "posted once": (*verdict).checkPostedOnce, "given back": (*verdict).checkGivenBack,
		"pairs": (*verdict).checkPairs, "folds": (*verdict).checkFolds, "flaps": (*verdict).checkFlaps, "digests": (*verdict).checkDigests,
	} {
		t.Run(name, func(t *testing.T) {
			judge(t, check, []planting{
				{"a long soak", func(v *verdict) { v.lasted = longSoak }, 1},
				{"a short soak", func(v *verdict) { v.lasted = time.Minute }, 0},
			})
		})
	}
}

func TestVerdictOfNeighbours(t *testing.T) {
	took := func(v *verdict, in phase, seconds float64) {
		for n := range 10 {
			id := fmt.Sprintf("%s-%d", in, n)
			v.publishes(id, watchedCategory, float64(100+n)).Phase = in
			v.accepts(id, id, float64(100+n)+seconds)
		}
	}
	slow := func(v *verdict) { took(v, alone, 0.01); took(v, disturbed, 0.7); v.measured = &measurement{} }
	judge(t, (*verdict).checkNeighbours, []planting{
		{"as fast under attack", func(v *verdict) { took(v, alone, 0.01); took(v, disturbed, 0.01); v.measured = &measurement{} }, 0},
		{"slow under attack, at the median and the 99th percentile", slow, 2},
		{"slow on a machine that the attack stalled", func(v *verdict) { slow(v); v.measured.busy.stall = 200 * time.Millisecond }, 2},
		{"a phase that was not measured", func(v *verdict) {
			took(v, alone, 0.01)
			took(v, disturbed, 0.01)
			v.measured = &measurement{missing: []string{"alone"}}
		}, 1},
		{"slow on a machine that was busy with others", func(v *verdict) { slow(v); v.measured.busy.others = 0.5 }, 0},
	})
}

// measured measures the phases with a watcher, while the machine stalls in some of them, and returns the events of each phase.
func measured(t *testing.T, m *measurement) map[phase]int {
	events := make(map[phase]int)
	synctest.Test(t, func(*testing.T) {
		m.w = &watcher{p: &publisher{d: &deployment{js: &failing{messages: make(map[string]bool)}}, entries: make(map[string]*entry)}}
		m.rest = func(bool) {}
		end := make(chan struct{})
		var actors sync.WaitGroup
		actors.Go(func() { m.w.run(end) })
		m.run(phaseLeast)
		close(end)
		actors.Wait()
		for _, e := range m.w.p.entries {
			events[e.Phase]++
		}
	})
	return events
}

func TestMeasurement(t *testing.T) {
	isCalm := func() bool { return true }
	stalls := func(times int) func() func() busy {
		return func() func() busy {
			return func() busy {
				if times == 0 {
					return busy{}
				}
				times--
				return busy{stall: time.Second}
			}
		}
	}
	t.Run("the machine never stalls", func(t *testing.T) {
		m := &measurement{awaitCalm: isCalm, observe: stalls(0)}
		events := measured(t, m)
		testkit.Equal(t, events[discarded], 0, "discarded events")
		testkit.Equal(t, events[alone] > 0 && events[disturbed] > 0, true, "events of both phases")
	})
	t.Run("the machine stalls once", func(t *testing.T) {
		m := &measurement{awaitCalm: isCalm, observe: stalls(1)}
		events := measured(t, m)
		testkit.Equal(t, events[discarded] > 0 && events[alone] > events[discarded], true, "one phase is measured again")
		testkit.Equal(t, m.busy.stall, 0, "longest stall of the phases that count")
	})
	t.Run("the machine stalls all the time", func(t *testing.T) {
		m := &measurement{awaitCalm: isCalm, observe: stalls(1000)}
		events := measured(t, m)
		testkit.Equal(t, events[alone] > 0 && events[disturbed] > 0, true, "the last tries count")
		testkit.Equal(t, m.busy.stall, time.Second, "longest stall of the phases that count")
	})
	t.Run("the backlog never ends", func(t *testing.T) {
		m := &measurement{awaitCalm: func() bool { return false }, observe: stalls(0)}
		measured(t, m)
		testkit.Equal(t, len(m.missing), 4, "missing phases")
	})
}
