package pacing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

func TestMain(m *testing.M) { scripttest.Main(m) }

// suiteBudgets are full after the seed of TestScripts.
var suiteBudgets = Budgets{Channel: Pace{time.Minute, 5}, Workspace: Window{2, time.Hour}, Updates: Window{4, time.Hour}, LookUps: Window{4, time.Hour}}

func TestScripts(t *testing.T) {
	t.Parallel()
	call := func(do func(ctx context.Context, s shared) error) func(context.Context, *script.Runner) error {
		return func(ctx context.Context, runner *script.Runner) error { return do(ctx, shared{runner, suiteBudgets}) }
	}
	post := func(asker, channel string) func(ctx context.Context, s shared) error {
		return func(ctx context.Context, s shared) error {
			_, err := s.post(ctx, asker, Ask{Channel: channel, MaxWait: 2 * time.Hour}, 0)
			return err
		}
	}
	step := func(thread, caller, step string, first, second any) func(ctx context.Context, s shared) error {
		return func(ctx context.Context, s shared) error {
			reading := NewReadings(s.runner, nil).Of(thread)
			reading.caller = caller
			_, err := reading.call(ctx, step, time.Minute, first, second)
			return err
		}
	}
	places := []string{"calls", "pauses", "paces", "posts", "turns", "asked"}
	scripttest.Suite{
		Seed: call(func(ctx context.Context, s shared) error {
			_, updated := s.update(ctx, Update{Message: "seeded", Order: 1}, 0)
			_, lookedUp := s.lookUp(ctx, 0, 0)
			_, mentioned := s.mention(ctx, "seeded", "id", time.Minute)
			_, paused := s.pause(ctx, "#paused", time.Hour)
			_, noted := s.channelID(ctx, "#seeded", "C0000001")
			claimed := step("seeded", "one", "ask", 0, "")(ctx, s)
			begun := step("begun", "one", "ask", 0, "")(ctx, s)
			begun = errors.Join(begun, step("begun", "one", "begin", 0, "")(ctx, s))
			return errors.Join(post("one", "#first")(ctx, s), updated, lookedUp, mentioned, paused, noted, claimed, begun)
		}),
		Keys: append(places, "updates", "routes", "update:seeded", "update:new", "lookups", "limited", "askers:#here", "askers:#first",
			"mention:seeded", "mention:new", "id:#seeded", "id:#new",
			"reading:seeded", "read:seeded", "reading:begun", "read:begun", "reading:new", "read:new"),
		Operations: []scripttest.Operation{
			{
				Name: "pause", Touches: []string{"calls", "pauses", "paces", "limited"}, Writes: []string{"zadd", "pexpire", "zrem", "zremrangebyrank", "set"},
				Trims: []string{"calls", "pauses", "paces"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.pause(ctx, "#elsewhere", time.Hour)
					return err
				}),
			},
			{
				Name: "paused", Touches: []string{"calls", "pauses", "paces", "limited"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.paused(ctx, "#paused")
					return err
				}),
			},
			{
				Name: "post", Touches: append(places, "askers:#here"), Writes: []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
				Trims: []string{"paces", "posts", "asked"}, Call: call(post("one", "#here")),
			},
			{
				Name: "post that waits", Touches: append(places, "askers:#here"), Writes: []string{"zadd", "pexpire", "zrem", "set"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					full := Budgets{Channel: suiteBudgets.Channel, Workspace: Window{1, time.Hour}} // after the seed
					return post("one", "#here")(ctx, shared{runner, full})
				},
			},
			{
				Name: "update", Touches: []string{"calls", "pauses", "updates", "update:new"}, Writes: []string{"set", "zadd", "pexpire", "zrem", "zremrangebyrank"},
				Trims: []string{"updates"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.update(ctx, Update{Message: "new", Order: 1}, 0)
					return err
				}),
			},
			{
				Name: "look-up", Touches: []string{"calls", "pauses", "lookups"}, Writes: []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
				Trims: []string{"lookups"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.lookUp(ctx, 0, 0)
					return err
				}),
			},
			{
				Name: "claim a thread", Touches: []string{"calls", "reading:new", "read:new"}, Writes: []string{"set"}, Call: call(step("new", "two", "ask", 0, "")),
			},
			{
				Name: "wait for the reading of a thread", Touches: []string{"calls", "reading:seeded", "read:seeded"}, Writes: []string{"set"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := NewReadings(s.runner, nil).Of("seeded").call(ctx, "ask", time.Hour, 0, "") // further back than the seed
					return err
				}),
			},
			{
				Name: "keep the claim", Touches: []string{"calls", "reading:seeded", "read:seeded"}, Writes: []string{"set"},
				Call: call(step("seeded", "one", "keep", 0, "")),
			},
			{
				Name: "begin a reading", Touches: []string{"calls", "reading:seeded", "read:seeded"}, Writes: []string{"set"},
				Call: call(step("seeded", "one", "begin", 0, "")),
			},
			{
				Name: "end a reading", Touches: []string{"calls", "reading:begun", "read:begun"}, Writes: []string{"set"},
				Call: call(step("begun", "one", "end", 1, "name ts ")),
			},
			{
				Name: "note the ID of a channel", Touches: []string{"id:#new"}, Writes: []string{"set"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.channelID(ctx, "#new", "C0000002")
					return err
				}),
			},
			{
				Name: "note routes", Touches: []string{"routes"}, Writes: []string{"zadd", "pexpire", "zremrangebyrank"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.routes(ctx, "own")
					return err
				}),
			},
			{
				Name: "ID of a channel", Touches: []string{"id:#seeded"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.channelID(ctx, "#seeded", "")
					return err
				}),
			},
			{
				Name: "updated", Touches: []string{"update:seeded"}, Writes: []string{"set"},
				Call: call(func(ctx context.Context, s shared) error { return s.updated(ctx, "seeded", 1) }),
			},
			{
				Name: "use", Touches: []string{"calls", "pauses", "posts", "asked", "updates", "lookups", "paces", "askers:#first"},
				Call: call(func(ctx context.Context, s shared) error {
					s.budgets.Channel.Burst = 1 // so the channel is at its pace
					_, err := s.use(ctx, []string{"#first"})
					return err
				}),
			},
			{
				Name: "mention", Touches: []string{"mention:new"}, Writes: []string{"set"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.mention(ctx, "new", "id", time.Minute)
					return err
				}),
			},
			{
				Name: "return a mention", Touches: []string{"mention:seeded"}, Writes: []string{"pexpire"},
				Call: call(func(ctx context.Context, s shared) error { return s.returnMention(ctx, "seeded", "id") }),
			},
		},
		SelfTest: SelfTest,
	}.Run(t)
}
