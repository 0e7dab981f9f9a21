package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/screen"
)

func (s *Status) merge(reports []Report) {
	limits := make(map[[3]string]Limit)
	channels := make(map[string]Channel)
	budgets := make(map[string]Budget)
	minutes := make(map[time.Time]Minute)
	suppressed := make(map[Denial]Suppressed)
	newest := Newest(reports)
	for _, report := range reports {
		s.Workers = append(s.Workers, report.Worker)
		s.Redis.SlowestCall = max(s.Redis.SlowestCall, report.SlowestCall)
		for _, limit := range report.Limits {
			key := [3]string{limit.Level, limit.Path, limit.Limit}
			limits[key] = limits[key].with(limit)
		}
		for _, channel := range report.Channels {
			channels[channel.Name] = channels[channel.Name].with(channel)
		}
		for _, budget := range report.Budgets {
			budgets[budget.Name] = budgets[budget.Name].with(budget)
		}
		for _, dropped := range report.Suppressed {
			key := Denial{dropped.Category, dropped.Level}
			suppressed[key] = suppressed[key].with(dropped)
		}
		for _, minute := range report.Minutes {
			sum := minutes[minute.At]
			minutes[minute.At] = Minute{
				At: minute.At, Sent: sum.Sent + minute.Sent, Dropped: sum.Dropped + minute.Dropped, Delayed: sum.Delayed + minute.Delayed,
			}
		}
	}
	s.Revision, s.Changes, s.Mutes = newest.Revision, newest.Changes, newest.Mutes
	s.Mismatches = Mismatches(s.Workers)
	s.noteOmitted(reports)
	s.Limits = slices.AppendSeq([]Limit{}, maps.Values(limits)) // never null
	slices.SortFunc(s.Limits, CompareLimits)
	s.Suppressed = byFirstLevel(slices.Collect(maps.Values(suppressed)))
	s.addEnds()
	// A stable sort takes half the code in the program.
	s.Channels = slices.SortedStableFunc(maps.Values(channels), func(a, b Channel) int { return strings.Compare(a.Name, b.Name) })
	s.Budgets = slices.SortedStableFunc(maps.Values(budgets), func(a, b Budget) int { return strings.Compare(b.Name, a.Name) })
	s.Minutes = slices.SortedStableFunc(maps.Values(minutes), func(a, b Minute) int { return a.At.Compare(b.At) })
}

// noteOmitted notes what is missing in the reports of the workers. Without the use of the limits in any report, the limits are unknown.
func (s *Status) noteOmitted(reports []Report) {
	isRead := slices.ContainsFunc(reports, func(r Report) bool { return !r.LimitsUnread })
	if !isRead {
		s.Unknown = append(s.Unknown, LimitsPart+": no worker has read their use from Redis")
	}
	workers, examples := make(map[string]int), make(map[string]string) // by kind
	for i, name := range Names(s.Workers) {
		omitted := slices.Clip(reports[i].Omitted)
		if isRead && reports[i].LimitsUnread {
			omitted = append(omitted, Omission{Kind: "the use of limits (not read from Redis)"})
		}
		for _, o := range omitted {
			example := name
			if o.Of > 0 {
				example += " without " + o.String()
			}
			workers[o.Kind]++
			examples[o.Kind] = cmp.Or(examples[o.Kind], example)
		}
		if len(omitted) > 0 {
			s.Omitted = append(s.Omitted, name+" reports without "+listOmissions(omitted))
		}
	}
	if len(s.Omitted) <= mostOmissions {
		return
	}
	s.Omitted = nil
	for _, kind := range slices.Sorted(maps.Keys(workers)) {
		reporting := screen.Numbered(workers[kind], "worker reports", "workers report")
		s.Omitted = append(s.Omitted, fmt.Sprintf("%s without %s, such as %s", reporting, kind, examples[kind]))
	}
}

// mostOmissions is the number of workers with a sentence each about what they left out. More workers have a sentence for each kind of entries: a line
// of each of forty workers would push the limits off the screen.
const mostOmissions = 3

func listOmissions(all []Omission) string {
	texts := make([]string, len(all))
	for i, o := range all {
		texts[i] = o.String()
	}
	return strings.Join(texts, ", ")
}

// with merges another worker's report of the limit. All workers share the used slots, and each worker counts its own denials.
func (l Limit) with(other Limit) Limit {
	other.Used = max(l.Used, other.Used)
	other.PerMinute += l.PerMinute
	if other.Next == nil || l.Next != nil && l.Next.After(*other.Next) {
		other.Next = l.Next
	}
	return other
}

// with merges another worker's report of the budget. All workers share the budget, and count it at different times.
func (b Budget) with(other Budget) Budget {
	other.Used, other.Waiting = max(b.Used, other.Used), max(b.Waiting, other.Waiting)
	other.PausedUntil = latest(other.PausedUntil, b.PausedUntil)
	return other
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func (c Channel) with(other Channel) Channel {
	other.PerMinute += c.PerMinute
	other.Held += c.Held
	other.PacedUntil, other.PausedUntil = latest(other.PacedUntil, c.PacedUntil), latest(other.PausedUntil, c.PausedUntil)
	other.LastDigest = latest(other.LastDigest, c.LastDigest)
	return other
}

// CompareWaiting orders channels: those with the most waiting deliveries and events first.
func CompareWaiting(a, b Channel) int { return cmp.Compare(b.Queued()+b.Held, a.Queued()+a.Held) }

// CompareLimits orders limits: the fullest first, then by denials in descending order.
func CompareLimits(a, b Limit) int {
	return cmp.Or(
		cmp.Compare(b.Share(), a.Share()), cmp.Compare(b.PerMinute, a.PerMinute),
		strings.Compare(a.Path, b.Path), strings.Compare(a.Limit, b.Limit),
	)
}

// Newest returns a report with the newest limits. There must be at least one report.
func Newest(reports []Report) Report {
	return slices.MaxFunc(reports, func(a, b Report) int { return compareRevisions(a.Revision, b.Revision) })
}

func compareRevisions(a, b string) int {
	numbers := func(text string) (generation, revision int64) {
		first, second, _ := strings.Cut(text, ":")
		generation, _ = strconv.ParseInt(first, 10, 64)
		revision, _ = strconv.ParseInt(second, 10, 64)
		return generation, revision
	}
	generationA, revisionA := numbers(a)
	generationB, revisionB := numbers(b)
	return cmp.Or(cmp.Compare(generationA, generationB), cmp.Compare(revisionA, revisionB))
}

// Names returns readable names of workers, in the order of the workers. A name is the worker's host. If several workers run on a host, a
// slash and the process number follow. If the process numbers are equal too, which happens in containers, the end of the instance follows.
func Names(workers []Worker) []string {
	type process struct {
		host string
		id   int
	}
	onHost, ofProcess := make(map[string]int), make(map[process]int)
	for _, w := range workers {
		onHost[w.Name]++
		ofProcess[process{w.Name, w.Process}]++
	}
	names := make([]string, len(workers))
	for i, w := range workers {
		names[i] = w.Name
		switch {
		case ofProcess[process{w.Name, w.Process}] > 1:
			names[i] += "/" + w.Instance[max(0, len(w.Instance)-6):] // instances that started together differ there
		case onHost[w.Name] > 1:
			names[i] += "/" + strconv.Itoa(w.Process)
		}
	}
	return names
}

// Mismatches lists the settings that differ between the workers that have them, ordered by variable. Other workers may run another version.
func Mismatches(workers []Worker) []Mismatch {
	names := Names(workers)
	values := make(map[string]map[string][]string) // by variable and value
	for i, worker := range workers {
		for variable, value := range worker.Settings {
			if values[variable] == nil {
				values[variable] = make(map[string][]string)
			}
			values[variable][value] = append(values[variable][value], names[i])
		}
	}
	var mismatches []Mismatch
	for _, variable := range slices.Sorted(maps.Keys(values)) {
		if byValue := values[variable]; len(byValue) > 1 {
			mismatches = append(mismatches, Mismatch{Variable: variable, Values: byValue})
		}
	}
	return mismatches
}

// String is "VARIABLE is VALUE on NAMES, VALUE on NAMES".
func (m Mismatch) String() string { return m.Variable + " is " + strings.Join(m.List(), ", ") }

// List returns "VALUE on NAMES" for each value.
func (m Mismatch) List() []string {
	var parts []string
	for value, names := range m.Values {
		parts = append(parts, fmt.Sprintf("%s on %s", cmp.Or(value, "not set"), strings.Join(slices.Sorted(slices.Values(names)), " and ")))
	}
	slices.Sort(parts)
	return parts
}
