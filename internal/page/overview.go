package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// How many entries of a list are visible at first. The page folds the rest, to stay a few screens long.
const (
	topLimits     = 10 // paths
	topSuppressed = 6
	topChannels   = 6
	topWorkers    = 6
)

// overview is the data for the templates of the parts.
type overview struct {
	status.Status
	State      string // problems and full limits; "normal" if there are none
	Bad        bool   // events may be lost or late
	Reported   bool   // at least one worker's report is in the status
	Tiles      []tile
	Chart      chart
	Suppressed folded[status.Suppressed] // the largest of each first level first
	Channels   folded[status.Channel]    // paused ones first, then those at their pace
	Workers    folded[worker]            // faulty ones first
}

// tile is one counter, which links to its details.
type tile struct {
	Key, Name string
	Known     bool
	Count     int64
	Bad       bool
	Note      string // such as "of 12"; may be empty
	Link      string // ID of the details
}

// folded is a list with visible first entries. The reader unfolds the rest.
type folded[T any] struct{ First, Rest []T }

type worker struct {
	status.Worker
	Shown string
}

func fold[T any](all []T, most int) folded[T] {
	first := min(len(all), most)
	return folded[T]{all[:first], all[first:]}
}

func newOverview(s status.Status) overview {
	o := overview{Status: s, Tiles: tiles(s), Chart: draw(s), Suppressed: fold(s.Suppressed, topSuppressed), Reported: isReported(s)}
	o.State, o.Bad = stateOf(s)
	channels := slices.SortedStableFunc(slices.Values(s.Channels), status.CompareWaiting)
	channels = first(channels, func(c status.Channel) bool { return !c.PacedUntil.IsZero() })
	o.Channels = fold(first(channels, func(c status.Channel) bool { return c.PausedUntil.After(s.At) }), topChannels)

	var workers []worker
	for i, name := range status.Names(s.Workers) {
		workers = append(workers, worker{s.Workers[i], name})
	}
	o.Workers = fold(first(workers, func(w worker) bool { return w.Degraded != "" || len(w.Problems(s.At)) > 0 }), topWorkers)
	return o
}

// first returns the elements with those first that are chosen, each part in its order.
func first[T any](all []T, chosen func(T) bool) (sorted []T) {
	rest := slices.DeleteFunc(slices.Clone(all), chosen)
	return append(slices.DeleteFunc(all, func(each T) bool { return !chosen(each) }), rest...)
}

func tiles(s status.Status) []tile {
	var dropped, inRoom, letters int64
	for _, w := range s.Workers {
		dropped += w.PerMinute.Dropped
	}
	for _, n := range s.Backlog.InRoom {
		inRoom += n
	}
	for _, l := range s.DeadLetters {
		letters += l.Count
	}
	full, paused, idle := int64(len(fullLimits(s))), int64(pausedChannels(s)), int64(number(s.Workers, isNotReady))
	reported := isReported(s)
	return []tile{
		{"full", "Full limits", knowsLimits(s), full, full > 0, fmt.Sprintf("of %d reported", len(s.Limits)), "limits-title"},
		{"dropped", "Dropped a minute", reported, dropped, dropped > 0, "", "suppressed-title"},
		{"waiting", "Waiting", s.Knows(status.BacklogPart), s.Backlog.Waiting + inRoom, false, "", "waiting-title"},
		{"letters", "Dead letters", s.Knows(status.DeadLettersPart), letters, letters > 0, "", "letters-title"},
		{"paused", "Paused channels", reported, paused, paused > 0, fmt.Sprintf("of %d", len(s.Channels)), "channels-title"},
		{"idle", "Workers not ready", s.Knows(status.Everything), idle, idle > 0 || len(s.Workers) == 0, fmt.Sprintf("of %d", len(s.Workers)), "workers-title"},
	}
}

// isReported reports whether the status has the report of a worker. Without one nothing is known about limits, drops and channels.
func isReported(s status.Status) bool { return len(s.Workers) > 0 }

// knowsLimits reports whether a worker has reported the use of the limits.
func knowsLimits(s status.Status) bool { return isReported(s) && s.Knows(status.LimitsPart) }

// stateOf describes the problems, the worst first, and reports whether events may be lost or late.
func stateOf(s status.Status) (state string, isBad bool) {
	if !s.Knows(status.Everything) {
		return "not known", true
	}
	var problems []string
	if len(s.Workers) == 0 {
		problems = append(problems, "no worker answers")
	}
	if i := slices.IndexFunc(s.Workers, func(w status.Worker) bool { return w.Degraded != "" }); i >= 0 {
		problems = append(problems, "degraded: Redis is unavailable, policy "+s.Workers[i].Degraded)
	}
	if n := number(s.Workers, status.Worker.Unjournaled); n > 0 {
		problems = append(problems, fmt.Sprintf("%d of %s cannot write the journal", n, plural(len(s.Workers), "worker")))
	}
	if n := number(s.Workers, func(w status.Worker) bool { return w.Failing != "" }); n > 0 {
		problems = append(problems, fmt.Sprintf("%d of %s failing", n, plural(len(s.Workers), "worker")))
	}
	if n := number(s.Workers, isNotReady); n > 0 {
		problems = append(problems, fmt.Sprintf("%d of %s not ready", n, plural(len(s.Workers), "worker")))
	}
	for _, paused := range s.Backlog.Paused {
		problems = append(problems, "consumer "+paused.Consumer+" is paused")
	}
	for _, mute := range s.Mutes {
		if mute.Path == event.Everything && mute.Until.After(s.At) {
			muted := "all events are muted"
			if mute.Except != "" {
				muted += " except " + mute.Except
			}
			problems = append(problems, muted)
		}
	}
	full := fullLimits(s)
	if i := slices.IndexFunc(full, func(l status.Limit) bool { return l.Path == "" }); i >= 0 {
		problems = append(problems, "the global limit "+full[i].Limit+" is full")
	}
	isBad = len(problems) > 0
	if shadow := s.ShadowMode(); shadow != "" {
		problems = append(problems, "shadow mode, "+shadow)
	}
	if !s.Knows(status.LimitsPart) {
		problems = append(problems, "the use of the limits is not known")
	}
	if n := len(full); n > 0 {
		problems = append(problems, plural(n, "limit")+" full")
	}
	if n := pausedChannels(s); n > 0 {
		problems = append(problems, plural(n, "channel")+" paused")
	}
	if n := mutedPaths(s); n > 0 {
		problems = append(problems, plural(n, "path")+" muted")
	}
	return cmp.Or(strings.Join(problems, "; "), "normal"), isBad
}

// news is one sentence about the state for screen readers. It seldom changes.
func news(s status.Status) string {
	state, _ := stateOf(s)
	sentence := fmt.Sprintf("%s: %s.", plural(len(s.Workers), "worker"), state)
	if len(s.Unknown) > 0 {
		sentence += " Not everything could be asked."
	}
	return sentence
}

func fullLimits(s status.Status) []status.Limit {
	return slices.DeleteFunc(slices.Clone(s.Limits), func(l status.Limit) bool { return !l.Full() })
}

// mutedPaths returns the number of paths, below everything, with a mute in force.
func mutedPaths(s status.Status) int {
	muted := make(map[string]bool)
	for _, mute := range s.Mutes {
		if mute.Path != event.Everything && mute.Until.After(s.At) {
			muted[mute.Path] = true
		}
	}
	return len(muted)
}

func pausedChannels(s status.Status) int {
	return number(s.Channels, func(c status.Channel) bool { return c.PausedUntil.After(s.At) })
}

func isNotReady(w status.Worker) bool { return !w.Ready }

func number[T any](all []T, chosen func(T) bool) (n int) {
	for _, each := range all {
		if chosen(each) {
			n++
		}
	}
	return n
}
