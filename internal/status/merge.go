package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// merge makes one status of the reports of all workers.
func (s *Status) merge(reports []Report) {
	limits := make(map[[3]string]Limit)
	channels := make(map[string]Channel)
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
	s.Revision, s.Changes = newest.Revision, newest.Changes
	s.Mismatches = Mismatches(s.Workers)
	for i, name := range Names(s.Workers) {
		if omitted := reports[i].Omitted; len(omitted) > 0 {
			s.Omitted = append(s.Omitted, fmt.Sprintf("%s reports without %s", name, strings.Join(omitted, ", ")))
		}
	}
	s.Limits = slices.AppendSeq([]Limit{}, maps.Values(limits)) // never null
	slices.SortFunc(s.Limits, CompareLimits)
	s.Suppressed = slices.SortedFunc(maps.Values(suppressed), compareSuppressed)
	s.addEnds()
	s.Channels = slices.SortedFunc(maps.Values(channels), func(a, b Channel) int { return strings.Compare(a.Name, b.Name) })
	s.Minutes = slices.SortedFunc(maps.Values(minutes), func(a, b Minute) int { return a.At.Compare(b.At) })
}

// with adds what another worker says of the limit. All of them count in the same log, and each denies for itself.
func (l Limit) with(other Limit) Limit {
	other.Used = max(l.Used, other.Used)
	other.PerMinute += l.PerMinute
	if other.Next == nil || l.Next != nil && l.Next.After(*other.Next) {
		other.Next = l.Next
	}
	return other
}

// with adds what another worker says of the channel.
func (c Channel) with(other Channel) Channel {
	other.PerMinute += c.PerMinute
	if c.PausedUntil.After(other.PausedUntil) {
		other.PausedUntil = c.PausedUntil
	}
	if c.LastDigest.After(other.LastDigest) {
		other.LastDigest = c.LastDigest
	}
	return other
}

// CompareLimits orders limits: the fullest first, and among those the ones that deny most.
func CompareLimits(a, b Limit) int {
	return cmp.Or(
		cmp.Compare(b.Share(), a.Share()), cmp.Compare(b.PerMinute, a.PerMinute),
		strings.Compare(a.Path, b.Path), strings.Compare(a.Limit, b.Limit),
	)
}

// Share is how full a limit is, from 0 to 1. A limit of no slots is full.
func (l Limit) Share() float64 {
	if l.Full() {
		return 1
	}
	return float64(l.Used) / float64(l.Size)
}

// Newest is the report of a worker that has the newest limits. There has to be a report.
func Newest(reports []Report) Report {
	return slices.MaxFunc(reports, func(a, b Report) int { return compareRevisions(a.Revision, b.Revision) })
}

// compareRevisions orders "<generation>:<revision>".
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

func compareWorkers(a, b Worker) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), a.Started.Compare(b.Started), strings.Compare(a.Instance, b.Instance))
}

// Names are the names of workers for people, in the order of the workers: a worker's host, and behind a slash the number of its process
// if several run on that host, or the end of its instance if their numbers are equal, as those of containers may be.
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
			names[i] += "/" + shortInstance(w.Instance)
		case onHost[w.Name] > 1:
			names[i] += "/" + strconv.Itoa(w.Process)
		}
	}
	return names
}

// Mismatches lists the settings that differ between workers, ordered by variable. A worker that does not know a setting, as one of
// another version may not, is not compared in it.
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
	for variable, byValue := range values {
		if len(byValue) > 1 {
			mismatches = append(mismatches, Mismatch{Variable: variable, Values: byValue})
		}
	}
	slices.SortFunc(mismatches, func(a, b Mismatch) int { return strings.Compare(a.Variable, b.Variable) })
	return mismatches
}

// shortInstance is the end of an instance's name, in which instances of one moment differ.
func shortInstance(instance string) string { return instance[max(0, len(instance)-6):] }

// String is "VARIABLE is VALUE on NAMES, VALUE on NAMES".
func (m Mismatch) String() string {
	var parts []string
	for value, names := range m.Values {
		slices.Sort(names)
		parts = append(parts, fmt.Sprintf("%s on %s", cmp.Or(value, "not set"), strings.Join(names, " and ")))
	}
	slices.Sort(parts)
	return m.Variable + " is " + strings.Join(parts, ", ")
}
