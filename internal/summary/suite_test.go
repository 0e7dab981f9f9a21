package summary

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
)

// seedDigests leaves a digest of "#claimed" that is claimed, and one of "#due" that is due.
func seedDigests(ctx context.Context, runner *script.Runner) error {
	r, past := NewRedis(runner, interval, 24*time.Hour), time.Now().Add(-time.Hour)
	for i, report := range []Report{
		{Counts: dropped("#claimed", path("a", 1))}, {Counts: dropped("#due", path("a", 1), path("b", 2))}, {Dropping: true},
	} {
		report.First, report.Last = past, past
		report.Instance, report.Number = "seed", past.UnixMicro()+int64(i)
		if err := r.CountDrops(ctx, report); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		// Claim before the last report. The digest would wait for that instance.
		claimed, err := r.ClaimDigest(ctx, "#claimed", "claimed", LimitChanges{})
		if err != nil {
			return err
		}
		if claimed.Digest == nil {
			return errors.New("there is no digest to claim")
		}
	}
	return nil
}

// onStore makes an operation of a call of the store.
func onStore(call func(ctx context.Context, r *Redis) error) func(ctx context.Context, runner *script.Runner) error {
	return func(ctx context.Context, runner *script.Runner) error {
		return call(ctx, NewRedis(runner, interval, 24*time.Hour))
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	end := func(end DigestEnd) func(ctx context.Context, runner *script.Runner) error {
		return onStore(func(ctx context.Context, r *Redis) error { return r.EndDigest(ctx, "#claimed", "claimed", end) })
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
				Call: onStore(func(ctx context.Context, r *Redis) error {
					report := Report{Instance: "new", Number: time.Now().UnixMicro(), Dropping: true}
					report.Counts = dropped("#due", path("a", 1), path("new", 1))
					return r.CountDrops(ctx, report)
				}),
			},
			{
				Name: "look for digests", Touches: []string{"calls", "drops:due", "drops:dropping"},
				Call: onStore(func(ctx context.Context, r *Redis) error {
					return scripttest.Only(r.DueDigests(ctx))
				}),
			},
			{
				Name:    "claim a digest",
				Touches: []string{"calls", "drops:due", "drops:dropping", "drops:counts:#due", "drops:top:#due"},
				Writes:  []string{"zadd", "pexpire", "zrem", "hset", "hdel"},
				Call: onStore(func(ctx context.Context, r *Redis) error {
					return scripttest.Only(r.ClaimDigest(ctx, "#due", "new", LimitChanges{}))
				}),
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
