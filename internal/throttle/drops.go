package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/lua"
)

// Bounds of what is kept of drops.
const (
	MaxDropGroups  = 1000 // first-level categories of one channel that are counted by name
	MaxDropPaths   = 20   // of one first-level category
	MaxDropLevels  = 8    // of one path, as in parts/digests.lua
	MaxDigestPaths = 10   // in a digest
)

// dropsBelieved is how long an instance that said it has drops which it has not told is waited for.
const dropsBelieved = 5 * time.Second

// restOfGroup ends the path of an entry that counts the drops of a first-level category which have no entry of their own.
const restOfGroup = ".>"

// NameCount is how often a name occurred.
type NameCount struct {
	Name  string
	Count int64
}

// DroppedPath is what was counted of one path. Its texts have neither tabs nor line feeds.
type DroppedPath struct {
	Path   string
	Rest   bool // in a digest: of all paths of this first-level category that are not counted by name
	Count  int64
	Title  string      // of one of the events
	Opens  time.Time   // when the next slot opens; zero if that is not known, or now
	Levels []NameCount // in a digest those that denied most come first
}

// DropGroup is what was counted of the paths with one first level.
type DropGroup struct {
	Name  string
	More  int64 // drops of paths that are not among these
	Paths []DroppedPath
}

// Drops are what was counted for one channel.
type Drops struct {
	Channel     string
	First, Last time.Time
	Unpaired    int64 // events that resolve nothing; they belong to no group
	More        int64 // drops of categories that are not among the groups
	Groups      []DropGroup
}

// Total is how many drops these are.
func (d Drops) Total() int64 {
	total := d.Unpaired + d.More
	for _, group := range d.Groups {
		total += group.More
		for _, path := range group.Paths {
			total += path.Count
		}
	}
	return total
}

// DropReport is what one instance has counted for one channel since its last report, by its own clock.
type DropReport struct {
	Instance string // unique for each start of a worker
	Number   int64  // larger than that of the report before: microseconds of the instance's clock
	Dropping bool   // it goes on to drop, so if it is not heard of again, its last counts are lost
	Drops           // without a channel: nothing was dropped
}

// DropDigest is what a channel is to be told. Its times are those of the server.
type DropDigest struct {
	Channel, Claim string
	Failures       int // posts of it that failed

	Total       int64
	AtLeast     bool  // an instance was killed that may have had more counts
	Doubtful    int64 // of the total: were in a digest of which nobody knows whether it was posted
	Unpaired    int64
	First, Last time.Time
	Since       time.Time     // when the digest before was claimed; zero if there was none lately
	Paths       []DroppedPath // the largest, those first
	Counted     int           // how many paths were counted by name
	Partial     bool          // there were others
}

// DigestEnd says what became of a claimed digest.
type DigestEnd struct {
	State   DigestState
	Again   time.Duration // where it failed: when it may be claimed again
	Failure bool          // where it failed: that counts as a failure
}

// DigestState is a word of end_digest.lua.
type DigestState string

// The states in which a claim can end.
const (
	DigestDone   DigestState = "done"   // posted, or given up
	DigestFailed DigestState = "failed" // not posted
	DigestDoubt  DigestState = "doubt"  // perhaps posted
)

// dropsQuiet is how long a channel's drops have to be over before it is told.
func dropsQuiet(interval time.Duration) time.Duration {
	return min(max(interval/10, 2*time.Second), time.Minute)
}

// dropsKept is how long, in microseconds, counts of drops are kept when no instance is there to claim them.
func (r *Redis) dropsKept(interval time.Duration) int64 {
	return (r.settings.Retention + 2*interval).Microseconds()
}

func (k keys) dropsDue() string { return k.meter("drops:due") }

func (k keys) dropping() string { return k.meter("drops:dropping") }

func (k keys) dropsMerged() string { return k.meter("drops:merged") }

func (k keys) dropCounts(channel string) string { return k.meter("drops:counts:" + channel) }

func (k keys) dropTop(channel string) string { return k.meter("drops:top:" + channel) }

// CountDrops adds a report to the counts of all instances. Making it again is harmless, but a later report of the instance
// ends that.
func (r *Redis) CountDrops(ctx context.Context, interval time.Duration, report DropReport) error {
	believed := time.Duration(0)
	if report.Dropping {
		believed = dropsBelieved
	}
	arguments := []any{
		report.Instance, report.Number, believed.Microseconds(),
		interval.Microseconds(), dropsQuiet(interval).Microseconds(), r.dropsKept(interval),
		MaxDropGroups, MaxDropPaths, report.Channel,
	}
	now := time.Now()
	if report.Channel != "" {
		arguments = append(arguments, age(now, report.First), age(now, report.Last), report.Unpaired, report.More)
	}
	for _, group := range report.Groups {
		arguments = append(arguments, group.Name, group.More, len(group.Paths))
		for _, path := range group.Paths {
			arguments = append(arguments, path.Path, path.Count, max(0, path.Opens.Sub(now)).Microseconds(), path.Title, len(path.Levels))
			for _, level := range path.Levels {
				arguments = append(arguments, level.Name, level.Count)
			}
		}
	}
	keys := []string{
		r.keys.calls, r.keys.dropsDue(), r.keys.dropping(), r.keys.dropsMerged(), r.keys.dropCounts(report.Channel),
		r.keys.dropTop(report.Channel),
	}
	_, err := r.runInt(ctx, lua.CountDrops, keys, arguments)
	return classify("counting drops", err)
}

func age(now, then time.Time) int64 { return max(0, now.Sub(then)).Microseconds() }

// DueDigests lists channels that are to be told of drops: those whose drops are over, or that have waited an interval since the
// first of them, but not within an interval after the digest before.
func (r *Redis) DueDigests(ctx context.Context) ([]string, error) {
	reply, err := r.run(ctx, lua.DueDigests, []string{r.keys.calls, r.keys.dropsDue(), r.keys.dropping()}, []any{dropsBelieved.Microseconds()})
	if err != nil {
		return nil, classify("looking for digests", err)
	}
	channels := make([]string, 0, len(reply))
	for _, value := range reply {
		if channel, isText := value.(string); isText {
			channels = append(channels, channel)
		}
	}
	return channels, nil
}

// ClaimDigest gives the caller a channel's digest to be posted now, or nil if there is none to be claimed. If the lease ends
// before EndDigest, the digest is in doubt: its counts go into the next one. inDoubt is how many drops were found to be so.
// The name of a claim is letters and digits. Claiming again under the same name gives the same digest as long as nobody
// else has claimed one.
func (r *Redis) ClaimDigest(
	ctx context.Context, interval, lease time.Duration, channel, claim string,
) (digest *DropDigest, inDoubt int64, err error) {
	keys := []string{r.keys.calls, r.keys.dropsDue(), r.keys.dropping(), r.keys.dropCounts(channel), r.keys.dropTop(channel)}
	reply, err := r.run(ctx, lua.ClaimDigest, keys, []any{
		channel, claim, interval.Microseconds(), dropsQuiet(interval).Microseconds(), r.dropsKept(interval),
		dropsBelieved.Microseconds(), lease.Microseconds(), MaxDigestPaths,
	})
	if err != nil {
		return nil, 0, classify("claiming a digest", err)
	}
	digest, inDoubt, err = decodeClaim(channel, reply)
	if err != nil {
		err = fmt.Errorf("claiming a digest: %w: %w", ErrRefused, err)
	}
	return digest, inDoubt, err
}

// EndDigest records what became of a claimed digest. That it is over already is no error.
func (r *Redis) EndDigest(ctx context.Context, interval time.Duration, channel, claim string, end DigestEnd) error {
	failures := 0
	if end.Failure {
		failures = 1
	}
	_, err := r.runInt(ctx, lua.EndDigest, []string{r.keys.calls, r.keys.dropsDue(), r.keys.dropCounts(channel)}, []any{
		channel, claim, string(end.State), end.Again.Microseconds(), failures,
		interval.Microseconds(), dropsQuiet(interval).Microseconds(), r.dropsKept(interval),
	})
	return classify("ending a digest", err)
}

// decodeClaim reads the reply of claim_digest.lua.
func decodeClaim(channel string, reply []any) (*DropDigest, int64, error) {
	if len(reply) != 3 {
		return nil, 0, fmt.Errorf("%w: %d values of a digest", errReply, len(reply))
	}
	now, hasTime := reply[0].(int64)
	text, hasText := reply[1].(string)
	inDoubt, hasDoubt := reply[2].(int64)
	if !hasTime || !hasText || !hasDoubt {
		return nil, 0, fmt.Errorf("%w: a digest is %T, %T, %T", errReply, reply[0], reply[1], reply[2])
	}
	if text == "" {
		return nil, inDoubt, nil
	}
	digest, err := decodeDigest(channel, text, time.UnixMicro(now))
	return digest, inDoubt, err
}

// decodeDigest reads a claimed digest as it is kept, see parts/digests.lua.
func decodeDigest(channel, text string, now time.Time) (*DropDigest, error) {
	malformed := fmt.Errorf("%w: the digest for %q is %q", errReply, channel, text)
	lines := strings.Split(text, "\n")
	if len(lines) < 2 {
		return nil, malformed
	}
	claim := strings.Split(lines[0], " ")
	numbers, err := parseNumbers(lines[1], 9)
	if err != nil || len(claim) != 4 {
		return nil, malformed
	}
	failures, err := strconv.Atoi(claim[3])
	if err != nil {
		return nil, malformed
	}
	digest := DropDigest{
		Channel: channel, Claim: claim[0], Failures: failures,
		Total: numbers[0], First: time.UnixMicro(numbers[1]), Last: time.UnixMicro(numbers[2]), Unpaired: numbers[3],
		Counted: int(numbers[4]), Partial: numbers[5] == 1, AtLeast: numbers[7] == 1, Doubtful: numbers[8],
	}
	if numbers[6] > 0 {
		digest.Since = time.UnixMicro(numbers[6])
	}
	for _, line := range lines[2:] {
		path, err := decodePath(line, now)
		if err != nil {
			return nil, malformed
		}
		digest.Paths = append(digest.Paths, path)
	}
	return &digest, nil
}

// decodePath reads an entry.
func decodePath(line string, now time.Time) (DroppedPath, error) {
	values := strings.Split(strings.TrimSuffix(line, "\t"), "\t")
	if len(values) < 4 || len(values)%2 != 0 {
		return DroppedPath{}, errReply
	}
	count, countErr := strconv.ParseInt(values[1], 10, 64)
	opens, opensErr := strconv.ParseInt(values[2], 10, 64)
	path := DroppedPath{Count: count, Title: values[3]}
	path.Path, path.Rest = strings.CutSuffix(values[0], restOfGroup)
	if at := time.UnixMicro(opens); at.After(now) {
		path.Opens = at
	}
	faults := []error{countErr, opensErr}
	for level := range slices.Chunk(values[4:], 2) {
		count, err := strconv.ParseInt(level[1], 10, 64)
		faults = append(faults, err)
		path.Levels = append(path.Levels, NameCount{Name: level[0], Count: count})
	}
	slices.SortStableFunc(path.Levels, func(a, b NameCount) int {
		if byCount := b.Count - a.Count; byCount != 0 {
			return int(byCount)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return path, errors.Join(faults...)
}

func parseNumbers(line string, count int) ([]int64, error) {
	texts := strings.Split(line, " ")
	if len(texts) != count {
		return nil, errReply
	}
	numbers := make([]int64, count)
	for i, text := range texts {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers[i] = number
	}
	return numbers, nil
}

// rehearseDigests runs the scripts of digests, on scratch keys.
func (r *Redis) rehearseDigests(ctx context.Context) error {
	const name = "rehearsal"
	past := time.Now().Add(-time.Hour)
	path := DroppedPath{Path: name, Count: 1, Levels: []NameCount{{Name: LevelGlobal, Count: 1}}}
	report := DropReport{Instance: name, Number: past.UnixMicro(), Drops: Drops{
		Channel: name, First: past, Last: past, Groups: []DropGroup{{Name: name, Paths: []DroppedPath{path}}},
	}}
	if err := r.CountDrops(ctx, time.Second, report); err != nil {
		return err
	}
	channels, err := r.DueDigests(ctx)
	if err != nil {
		return err
	}
	for _, channel := range channels {
		if _, _, err := r.ClaimDigest(ctx, time.Second, time.Minute, channel, name); err != nil {
			return err
		}
		if err := r.EndDigest(ctx, time.Second, channel, name, DigestEnd{State: DigestDone}); err != nil {
			return err
		}
	}
	return nil
}
