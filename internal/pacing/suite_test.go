package pacing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

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
	places := []string{"calls", "pauses", "paces", "posts", "turns", "asked"}
	scripttest.Suite{
		Seed: call(func(ctx context.Context, s shared) error {
			_, updated := s.update(ctx, Update{Message: "seeded", Order: 1}, 0)
			_, lookedUp := s.lookUp(ctx, 0, 0)
			_, mentioned := s.mention(ctx, "seeded", "id", time.Minute)
			_, paused := s.pause(ctx, "#paused", time.Hour)
			_, noted := s.channelID(ctx, "#seeded", "C0000001")
			return errors.Join(post("one", "#first")(ctx, s), updated, lookedUp, mentioned, paused, noted)
		}),
		Keys: append(places, "updates", "update:seeded", "update:new", "lookups", "limited", "askers:#here", "askers:#first", "mention:seeded", "mention:new", "id:#seeded", "id:#new"),
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
				Name: "note the ID of a channel", Touches: []string{"id:#new"}, Writes: []string{"set"},
				Call: call(func(ctx context.Context, s shared) error {
					_, err := s.channelID(ctx, "#new", "C0000002")
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
