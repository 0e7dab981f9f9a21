package summary

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/script/scripttest"
)

// seedDigests leaves a digest of "#claimed" that is claimed, and one of "#due" that is due.
func seedDigests(ctx context.Context, runner *script.Runner) error {
	r, past := NewRedis(runner, 24*time.Hour), time.Now().Add(-time.Hour)
	for i, report := range []Report{
		{Counts: dropped("#claimed", path("a", 1))}, {Counts: dropped("#due", path("a", 1), path("b", 2))}, {Dropping: true},
	} {
		report.First, report.Last = past, past
		report.Instance, report.Number = "seed", past.UnixMicro()+int64(i)
		if err := r.CountDrops(ctx, digestInterval, report); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		// Later somebody drops on, for whom the digest would wait.
		digest, _, err := r.ClaimDigest(ctx, digestInterval, digestLease, "#claimed", "claimed")
		if err != nil {
			return err
		}
		if digest == nil {
			return errors.New("there is no digest to claim")
		}
	}
	return nil
}

func TestScripts(t *testing.T) {
	t.Parallel()
	end := func(end DigestEnd) func(ctx context.Context, runner *script.Runner) error {
		return func(ctx context.Context, runner *script.Runner) error {
			return NewRedis(runner, 24*time.Hour).EndDigest(ctx, digestInterval, "#claimed", "claimed", end)
		}
	}
	scripttest.Suite{
		Seed: seedDigests,
		Keys: []string{
			"calls", "drops:due", "drops:dropping", "drops:merged", "drops:counts:#due", "drops:counts:#claimed", "drops:top:#due",
		},
		Operations: []scripttest.Operation{
			{
				Name:    "count drops",
				Touches: []string{"calls", "drops:due", "drops:dropping", "drops:merged", "drops:counts:#due", "drops:top:#due"},
				Writes:  []string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hset"},
				Trims:   []string{"calls", "drops:dropping", "drops:merged"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					report := Report{Instance: "new", Number: time.Now().UnixMicro(), Dropping: true}
					report.Counts = dropped("#due", path("a", 1), path("new", 1))
					return NewRedis(runner, 24*time.Hour).CountDrops(ctx, digestInterval, report)
				},
			},
			{
				Name: "look for digests", Touches: []string{"calls", "drops:due", "drops:dropping"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					_, err := NewRedis(runner, 24*time.Hour).DueDigests(ctx)
					return err
				},
			},
			{
				Name:    "claim a digest",
				Touches: []string{"calls", "drops:due", "drops:dropping", "drops:counts:#due", "drops:top:#due"},
				Writes:  []string{"zadd", "pexpire", "zrem", "hset", "hdel"},
				Call: func(ctx context.Context, runner *script.Runner) error {
					_, _, err := NewRedis(runner, 24*time.Hour).ClaimDigest(ctx, digestInterval, digestLease, "#due", "new")
					return err
				},
			},
			{
				Name: "end a digest", Touches: []string{"calls", "drops:due", "drops:counts:#claimed"},
				Writes: []string{"zadd", "pexpire", "zrem", "hdel"}, Call: end(DigestEnd{State: DigestDone}),
			},
			{
				Name: "try a digest again", Touches: []string{"calls", "drops:due", "drops:counts:#claimed"},
				Writes: []string{"zadd", "pexpire", "zrem", "hset"},
				Call:   end(DigestEnd{State: DigestFailed, Again: time.Minute, Failure: true}),
			},
		},
		SelfTest: SelfTest,
	}.Run(t)
}
