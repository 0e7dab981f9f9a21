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
	MaxDropCategories = 10_000 // with counts at one time
	MaxDropNames      = 50     // levels, and titles, of one category
)

// dropsBelieved is how long an instance that said it has drops which it has not told is waited for.
const dropsBelieved = 5 * time.Second

// What is counted by name, as the scripts spell it.
const (
	levelKind = 'L'
	titleKind = 'T'
)

// NameCount is how often a name occurred.
type NameCount struct {
	Name  string
	Count int64
}

// Drops are what was counted of one category. What its levels or titles lack of the total had no room, or no name.
type Drops struct {
	Category    string
	Total       int64
	First, Last time.Time
	Opens       time.Time   // when its next slot opens; zero if that is not known, or now
	Levels      []NameCount // names without line feeds, as those of the titles
	Titles      []NameCount
}

// DropReport is what one instance has counted since its last report, by its own clock.
type DropReport struct {
	Instance string // unique for each start of a worker
	Number   int64  // larger than that of the report before: microseconds of the instance's clock
	Dropping bool   // it goes on to drop, so if it is not heard of again, its last counts are lost
	Drops    []Drops
}

// DropSummary is a summary that the caller has the lease of. Its times are those of the server.
type DropSummary struct {
	Drops         // names that occurred most come first
	Claim   int64 // names it, together with the category
	Attempt int   // from 1
	AtLeast bool  // an instance was killed that may have had more counts
}

// summaryQuiet is how long a category's drops have to be over before they are summed up.
func summaryQuiet(interval time.Duration) time.Duration {
	return min(max(interval/10, 2*time.Second), time.Minute)
}

// dropsKept is how long, in microseconds, counts of drops are kept when no instance is there to claim them.
func (r *Redis) dropsKept(interval time.Duration) int64 {
	return (r.settings.Retention + 2*interval).Microseconds()
}

func (k keys) drops() string { return k.meter("drops") }

func (k keys) dropsDue() string { return k.meter("drops:due") }

func (k keys) dropping() string { return k.meter("drops:dropping") }

func (k keys) dropsMerged() string { return k.meter("drops:merged") }

// CountDrops adds a report to the counts of all instances and returns how many drops were left out, because of too many
// categories. Making it again is harmless, but a later report of the instance ends that.
func (r *Redis) CountDrops(ctx context.Context, interval time.Duration, report DropReport) (leftOut int64, err error) {
	believed := time.Duration(0)
	if report.Dropping {
		believed = dropsBelieved
	}
	arguments := []any{
		report.Instance, report.Number, believed.Microseconds(),
		interval.Microseconds(), summaryQuiet(interval).Microseconds(), r.dropsKept(interval),
		MaxDropCategories, MaxDropNames,
	}
	now := time.Now()
	for _, d := range report.Drops {
		arguments = append(arguments, d.Category, d.Total, age(now, d.First), age(now, d.Last), max(0, d.Opens.Sub(now)).Microseconds())
		arguments = append(arguments, len(d.Levels)+len(d.Titles))
		arguments = appendNames(arguments, levelKind, d.Levels)
		arguments = appendNames(arguments, titleKind, d.Titles)
	}
	keys := []string{r.keys.calls, r.keys.drops(), r.keys.dropsDue(), r.keys.dropping(), r.keys.dropsMerged()}
	leftOut, err = r.runInt(ctx, lua.CountDrops, keys, arguments)
	return leftOut, classify("counting drops", err)
}

func age(now, then time.Time) int64 { return max(0, now.Sub(then)).Microseconds() }

func appendNames(arguments []any, kind byte, names []NameCount) []any {
	for _, name := range names {
		arguments = append(arguments, string(kind)+name.Name, name.Count)
	}
	return arguments
}

// ClaimSummaries takes at most so many of the summaries that are due. They are the caller's until the lease ends; then they
// are claimed again by whoever comes first. One of a category is due when its drops are over, or an interval after the
// first of them, but not within an interval after the one before.
func (r *Redis) ClaimSummaries(ctx context.Context, interval, lease time.Duration, limit int) ([]DropSummary, error) {
	keys := []string{r.keys.calls, r.keys.drops(), r.keys.dropsDue(), r.keys.dropping()}
	reply, err := r.run(ctx, lua.ClaimSummary, keys, []any{
		interval.Microseconds(), lease.Microseconds(), dropsBelieved.Microseconds(), r.dropsKept(interval), limit,
	})
	if err != nil {
		return nil, classify("claiming summaries", err)
	}
	summaries, err := decodeSummaries(reply)
	if err != nil {
		err = fmt.Errorf("claiming summaries: %w: %w", ErrRefused, err)
	}
	return summaries, err
}

// EndSummary forgets a claimed summary or, if again is not 0, has it claimed again after that time. That it is over already
// is no error.
func (r *Redis) EndSummary(ctx context.Context, interval time.Duration, s DropSummary, again time.Duration) error {
	keys := []string{r.keys.calls, r.keys.drops(), r.keys.dropsDue()}
	arguments := []any{s.Category, s.Claim, again.Microseconds(), r.dropsKept(interval)}
	_, err := r.runInt(ctx, lua.EndSummary, keys, arguments)
	return classify("ending a summary", err)
}

// decodeSummaries reads the reply of claim_summary.lua. One that cannot be read does not hide the others.
func decodeSummaries(reply []any) ([]DropSummary, error) {
	if len(reply)%2 != 1 {
		return nil, fmt.Errorf("%w: %d values of summaries", errReply, len(reply))
	}
	now, isNumber := reply[0].(int64)
	if !isNumber {
		return nil, fmt.Errorf("%w: the time is %T", errReply, reply[0])
	}
	var (
		summaries []DropSummary
		faults    []error
	)
	for pair := range slices.Chunk(reply[1:], 2) {
		category, isText := pair[0].(string)
		text, alsoText := pair[1].(string)
		if !isText || !alsoText {
			return nil, fmt.Errorf("%w: a summary is %T, %T", errReply, pair[0], pair[1])
		}
		s, err := decodeSummary(category, text, time.UnixMicro(now))
		if err != nil {
			faults = append(faults, err)
			continue
		}
		summaries = append(summaries, s)
	}
	return summaries, errors.Join(faults...)
}

// decodeSummary reads a claimed summary as it is kept.
func decodeSummary(category, text string, now time.Time) (DropSummary, error) {
	malformed := fmt.Errorf("%w: the summary of %q is %q", errReply, category, text)
	lines := strings.Split(text, "\n")
	if len(lines) < 2 {
		return DropSummary{}, malformed
	}
	claim, inClaim := parseNumbers(lines[0], 3)
	head, inHead := parseNumbers(lines[1], 5)
	if !inClaim || !inHead {
		return DropSummary{}, malformed
	}
	s := DropSummary{Claim: claim[0], Attempt: int(claim[1]), AtLeast: claim[2] == 1}
	s.Category, s.Total, s.First, s.Last = category, head[0], time.UnixMicro(head[1]), time.UnixMicro(head[2])
	if opens := time.UnixMicro(head[3]); opens.After(now) {
		s.Opens = opens
	}
	for _, line := range lines[2:] {
		number, name, _ := strings.Cut(line, " ")
		count, err := strconv.ParseInt(number, 10, 64)
		if err != nil || name == "" {
			return DropSummary{}, malformed
		}
		counted := NameCount{Name: name[1:], Count: count}
		switch name[0] {
		case levelKind:
			s.Levels = append(s.Levels, counted)
		case titleKind:
			s.Titles = append(s.Titles, counted)
		}
	}
	mostFirst(s.Levels)
	mostFirst(s.Titles)
	return s, nil
}

func parseNumbers(line string, count int) ([]int64, bool) {
	texts := strings.Split(line, " ")
	if len(texts) != count {
		return nil, false
	}
	numbers := make([]int64, count)
	for i, text := range texts {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, false
		}
		numbers[i] = number
	}
	return numbers, true
}

func mostFirst(names []NameCount) {
	slices.SortStableFunc(names, func(a, b NameCount) int {
		if byCount := b.Count - a.Count; byCount != 0 {
			return int(byCount)
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// rehearseSummaries runs the scripts of summaries, on scratch keys.
func (r *Redis) rehearseSummaries(ctx context.Context) error {
	past := time.Now().Add(-time.Hour)
	drops := Drops{Category: "rehearsal", Total: 1, First: past, Last: past, Levels: []NameCount{{Name: "global", Count: 1}}}
	report := DropReport{Instance: "rehearsal", Number: past.UnixMicro(), Drops: []Drops{drops}}
	if _, err := r.CountDrops(ctx, time.Second, report); err != nil {
		return err
	}
	summaries, err := r.ClaimSummaries(ctx, time.Second, time.Minute, 1)
	if err != nil {
		return err
	}
	for _, s := range summaries {
		if err := r.EndSummary(ctx, time.Second, s, 0); err != nil {
			return err
		}
	}
	return nil
}
