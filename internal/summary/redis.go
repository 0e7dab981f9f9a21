package summary

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// believed is how long an instance that reported drops may still owe its final counts.
const believed = 5 * time.Second

// Redis is the Store that all instances of a deployment share. It uses the server's clock.
type Redis struct {
	runner *script.Runner
	spans  []any // durations for the scripts: the interval between digests, of silence before a digest, of retention
}

// mutedFor is longer than any mute. The counts of a mute wait for its end.
const mutedFor = limits.LongestMute + 24*time.Hour

// NewRedis returns a store for digests at an interval. It keeps unclaimed counts for the retention and two intervals, and longer than a mute.
func NewRedis(runner *script.Runner, interval, retention time.Duration) *Redis {
	return &Redis{runner: runner, spans: []any{
		interval.Microseconds(), quiet(interval).Microseconds(), max(retention+2*interval, mutedFor+interval).Microseconds(),
	}}
}

// quiet is how long a channel must have no drops before its digest is due.
func quiet(interval time.Duration) time.Duration {
	return min(max(interval/10, 2*time.Second), time.Minute)
}

// CountDrops adds a report to the counts of all instances. It may be repeated until the instance makes its next report.
func (r *Redis) CountDrops(ctx context.Context, report Report) error {
	waitedFor := time.Duration(0)
	if report.Dropping {
		waitedFor = believed
	}
	arguments := []any{report.Instance, report.Number, report.Round, waitedFor.Microseconds()}
	arguments = append(append(arguments, r.spans...), maxGroups, maxPaths, report.Channel)
	now := time.Now()
	if report.Channel != "" {
		arguments = append(arguments, age(now, report.First), age(now, report.Last), report.Unpaired, report.More, report.MoreKeys, len(report.Keys))
		for _, key := range report.Keys {
			arguments = append(arguments, key.Name, key.At.UnixMicro(), key.Firing, key.Title)
		}
	}
	for _, group := range report.Groups {
		arguments = append(arguments, group.Name, group.More, len(group.Paths))
		for _, path := range group.Paths {
			arguments = append(arguments, path.Path, path.Dropped, max(0, path.Opens.Sub(now)).Microseconds(), path.Title, len(path.Reasons))
			for _, reason := range path.Reasons {
				arguments = append(arguments, reason.Level, reason.Dropped)
			}
		}
	}
	keys := r.runner.Keys("calls", "drops:due", "drops:dropping", "drops:merged", "drops:counts:"+report.Channel, "drops:top:"+report.Channel)
	_, err := r.runner.RunInt(ctx, "counting drops", lua.CountDrops, keys, arguments)
	return err
}

func age(now, then time.Time) int64 { return max(0, now.Sub(then)).Microseconds() }

// duePage is the maximum number of due digests of each kind that one call lists.
const duePage = 1000

// DueDigests lists the channels with a due digest: their drops have ended, or their first drop was an interval ago. It lists all of them,
// because the caller may have to skip many: the digest of a mute waits for the mute's end.
func (r *Redis) DueDigests(ctx context.Context) (due []string, err error) {
	for from := 0; ; from += duePage {
		arguments := []any{believed.Microseconds(), r.spans[0], lease.Microseconds(), from, duePage}
		page, err := r.runner.RunTexts(ctx, "looking for digests", lua.DueDigests, r.runner.Keys("calls", "drops:due", "drops:dropping"), arguments)
		if due = append(due, page...); err != nil || len(page) < duePage {
			return due, err
		}
	}
}

// ClaimDigest claims the digest of a channel, to be posted at once. It claims none while a digest of the channel is in doubt, because its
// claim has lapsed or its post had no answer. The name of a claim is letters and digits. A repeated claim under this name returns the same
// digest until the next claim under another name. The digest reports the changes in known that are new to the channel.
func (r *Redis) ClaimDigest(ctx context.Context, channel, claim string, known LimitChanges) (claimed Claimed, err error) {
	keys := r.runner.Keys("calls", "drops:due", "drops:dropping", "drops:counts:"+channel, "drops:top:"+channel)
	arguments := append([]any{channel, claim}, r.spans...)
	arguments = append(arguments, believed.Microseconds(), lease.Microseconds(), lookLease.Microseconds(), maxDigestPaths, known.Generation, known.nextRevision())
	decode := func(reply []any) (Claimed, error) { return decodeClaim(channel, reply) }
	return script.RunDecoded(ctx, r.runner, script.Call{Tried: "claiming a digest", Script: lua.ClaimDigest, Keys: keys, Arguments: arguments}, decode)
}

// EndDigest records the end of a claimed digest. It returns no error if the claim has already ended.
func (r *Redis) EndDigest(ctx context.Context, channel, claim string, end DigestEnd) error {
	failures := 0
	if end.Failure {
		failures = 1
	}
	keys := r.runner.Keys("calls", "drops:due", "drops:counts:"+channel)
	arguments := append([]any{channel, claim, string(end.State), end.Again.Microseconds(), failures}, r.spans...)
	_, err := r.runner.RunInt(ctx, "ending a digest", lua.EndDigest, keys, arguments)
	return err
}

// SelfTest runs every script of this package on the keys of a scratch runner, to find missing rights.
func SelfTest(ctx context.Context, scratch *script.Runner) error {
	const name = "selftest"
	r := NewRedis(scratch, time.Second, time.Second)
	past := time.Now().Add(-time.Hour)
	path := Path{Path: name, Dropped: 1, Reasons: []Reason{{Level: limits.LevelClosed, Dropped: 1}}}
	report := Report{Instance: name, Number: past.UnixMicro(), Counts: Counts{
		Channel: name, First: past, Last: past, Groups: []Group{{Name: name, Paths: []Path{path}}},
	}}
	if err := r.CountDrops(ctx, report); err != nil {
		return err
	}
	channels, err := r.DueDigests(ctx)
	if err != nil {
		return err
	}
	for _, channel := range channels {
		if _, err := r.ClaimDigest(ctx, channel, name, LimitChanges{}); err != nil {
			return err
		}
		if err := r.EndDigest(ctx, channel, name, DigestEnd{State: DigestDone}); err != nil {
			return err
		}
	}
	return nil
}
