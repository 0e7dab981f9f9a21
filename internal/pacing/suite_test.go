package pacing

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

func TestMain(m *testing.M) { scripttest.Main(m) }

// suiteBudgets are full after the seed of TestScripts.
var suiteBudgets = Budgets{Channel: Pace{time.Minute, 5}, Workspace: Window{2, time.Hour}, Updates: Window{4, time.Hour}, LookUps: Window{4, time.Hour}}

// operation is a call of a script after the seed of TestScripts. Keys and commands are separated by blanks.
type operation struct {
	name, touches, writes, trims string
	call                         func(ctx context.Context, s shared) error
}

// posts asks for a post.
func posts(asker, channel string) func(ctx context.Context, s shared) error {
	return func(ctx context.Context, s shared) error {
		return scripttest.Only(s.post(ctx, asker, Ask{Channel: channel, MaxWait: 2 * time.Hour}, 0))
	}
}

// reads takes a step in the reading of a thread.
func reads(thread, caller, step string, first, second any) func(ctx context.Context, s shared) error {
	return func(ctx context.Context, s shared) error {
		reading := NewReadings(s.runner, nil).Of(thread)
		reading.caller = caller
		return scripttest.Only(reading.call(ctx, step, time.Minute, first, second))
	}
}

const places = "calls pauses paces posts turns asked "

var operations = []operation{
	{"pause", "calls pauses paces limited", "zadd pexpire zrem zremrangebyrank set", "calls pauses paces",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(s.pause(ctx, "#elsewhere", time.Hour, byLimit))
		}},
	{"paused", "calls pauses paces limited", "", "",
		func(ctx context.Context, s shared) error { return scripttest.Only(s.pause(ctx, "#paused", 0, byLimit)) }},
	{"post", places + "askers:#here", "zadd pexpire zrem zremrangebyrank", "paces posts asked", posts("one", "#here")},
	{"post that waits", places + "askers:#here", "zadd pexpire zrem set", "",
		func(ctx context.Context, s shared) error {
			s.budgets = Budgets{Channel: suiteBudgets.Channel, Workspace: Window{1, time.Hour}} // full after the seed
			return posts("one", "#here")(ctx, s)
		}},
	{"update", "calls pauses updates update:new", "set zadd pexpire zrem zremrangebyrank", "updates",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(s.update(ctx, Update{Message: "new", Order: 1}, 0))
		}},
	{"look-up", "calls pauses lookups", "zadd pexpire zrem zremrangebyrank", "lookups",
		func(ctx context.Context, s shared) error { return scripttest.Only(s.lookUp(ctx, 0, 0)) }},
	{"claim a thread", "calls reading:new read:new", "set", "", reads("new", "two", "ask", 0, "")},
	{"wait for the reading of a thread", "calls reading:seeded read:seeded", "set", "",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(NewReadings(s.runner, nil).Of("seeded").call(ctx, "ask", time.Hour, 0, "")) // further back than the seed
		}},
	{"keep the claim", "calls reading:seeded read:seeded", "set", "", reads("seeded", "one", "keep", 0, "")},
	{"begin a reading", "calls reading:seeded read:seeded", "set", "", reads("seeded", "one", "begin", 0, "")},
	{"end a reading", "calls reading:begun read:begun", "set", "", reads("begun", "one", "end", 1, "name ts ")},
	{"note the ID of a channel", "id:#new", "set", "",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(NewChannels(s.runner, nil).call(ctx, "#new", "C0000002"))
		}},
	{"note routes", "routes", "zadd pexpire zremrangebyrank", "",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(NewChannels(s.runner, nil).Routes(ctx, "own"))
		}},
	{"ID of a channel", "id:#seeded", "", "",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(NewChannels(s.runner, nil).call(ctx, "#seeded", ""))
		}},
	{"updated", "update:seeded", "set", "",
		func(ctx context.Context, s shared) error { return s.updated(ctx, "seeded", 1) }},
	{"use", "calls pauses posts asked updates lookups paces askers:#first", "", "",
		func(ctx context.Context, s shared) error {
			s.budgets.Channel.Burst = 1 // so the channel is at its pace
			return scripttest.Only(s.use(ctx, []string{"#first"}))
		}},
	{"mention", "mention:new", "set", "",
		func(ctx context.Context, s shared) error {
			return scripttest.Only(s.mention(ctx, "new", "id", time.Minute))
		}},
	{"return a mention", "mention:seeded", "pexpire", "",
		func(ctx context.Context, s shared) error { return scripttest.Only(s.mention(ctx, "seeded", "id", 0)) }},
}

func seed(ctx context.Context, s shared) error {
	return errors.Join(
		posts("one", "#first")(ctx, s),
		scripttest.Only(s.update(ctx, Update{Message: "seeded", Order: 1}, 0)),
		scripttest.Only(s.lookUp(ctx, 0, 0)),
		scripttest.Only(s.mention(ctx, "seeded", "id", time.Minute)),
		scripttest.Only(s.pause(ctx, "#paused", time.Hour, byLimit)),
		scripttest.Only(NewChannels(s.runner, nil).call(ctx, "#seeded", "C0000001")),
		reads("seeded", "one", "ask", 0, "")(ctx, s), reads("begun", "one", "ask", 0, "")(ctx, s), reads("begun", "one", "begin", 0, "")(ctx, s),
	)
}

func TestScripts(t *testing.T) {
	t.Parallel()
	call := func(do func(ctx context.Context, s shared) error) func(context.Context, *script.Runner) error {
		return func(ctx context.Context, runner *script.Runner) error {
			return do(ctx, shared{runner: runner, budgets: suiteBudgets})
		}
	}
	suite := scripttest.Suite{Seed: call(seed), SelfTest: SelfTest, Keys: strings.Fields(places +
		"updates routes update:seeded update:new lookups limited askers:#here askers:#first mention:seeded mention:new id:#seeded id:#new " +
		"reading:seeded read:seeded reading:begun read:begun reading:new read:new")}
	for _, o := range operations {
		suite.Operations = append(suite.Operations, scripttest.Operation{
			Name: o.name, Touches: strings.Fields(o.touches), Writes: strings.Fields(o.writes), Trims: strings.Fields(o.trims), Call: call(o.call),
		})
	}
	suite.Run(t)
}
