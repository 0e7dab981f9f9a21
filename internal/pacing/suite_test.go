package pacing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	scripttest.Suite{
		Seed: func(ctx context.Context, runner *script.Runner) error {
			s := shared{runner}
			_, reserved := s.reserve(ctx, "#here", Pace{time.Second, 5}, 0, 2*time.Hour)
			_, mentioned := s.mention(ctx, "seeded", "id", time.Minute)
			return errors.Join(s.pause(ctx, "#here", Pace{}, time.Hour), reserved, mentioned)
		},
		Keys: []string{"calls", "pauses", "paces", "mention:seeded", "mention:new"},
		Operations: []scripttest.Operation{
			{
				Name: "pause", Touches: []string{"calls", "pauses", "paces"}, Writes: []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
				Trims: []string{"calls", "pauses", "paces"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					return shared{runner}.pause(ctx, "#elsewhere", Pace{}, time.Hour)
				},
			},
			{
				Name: "reserve", Touches: []string{"calls", "pauses", "paces"}, Writes: []string{"zadd", "pexpire", "zrem", "zremrangebyrank"},
				Trims: []string{"calls", "pauses", "paces"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					_, err := shared{runner}.reserve(ctx, "#here too", Pace{time.Minute, 5}, 0, 2*time.Hour)
					return err
				},
			},
			{
				Name: "paused", Touches: []string{"calls", "pauses", "paces"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					_, err := shared{runner}.paused(ctx, "#here")
					return err
				},
			},
			{
				Name: "mention", Touches: []string{"mention:new"}, Writes: []string{"set"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					_, err := shared{runner}.mention(ctx, "new", "id", time.Minute)
					return err
				},
			},
			{
				Name: "return a mention", Touches: []string{"mention:seeded"}, Writes: []string{"pexpire"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					return shared{runner}.returnMention(ctx, "seeded", "id")
				},
			},
		},
		SelfTest: SelfTest,
	}.Run(t)
}
