//go:build !nodev

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// situation is what dev shows of one moment.
type situation struct {
	counts  counts
	waiting int                    // events that wait for a slot, their channel or another event
	limits  []throttle.Explanatory // the global ones first, then those of the busiest categories
	unknown bool                   // the limits could not be asked
}

// How often dev looks, how long that may take, and at the limits of how many categories.
const (
	lookEvery    = time.Second
	lookPatience = 2 * time.Second
	lookAt       = 20
)

// look shows the situation again and again until the context ends.
func (d *dev) look(ctx context.Context, limiter *throttle.Limiter) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		var s situation
		s.limits, s.unknown = d.limitsNow(ctx, limiter.Explain)
		s.counts, s.waiting = d.tally.now()
		if ctx.Err() == nil {
			d.screen.show(s)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// explainer tells what the limits would answer to an event.
type explainer func(context.Context, throttle.Request) (throttle.Explanation, error)

// limitsNow asks for the limits on the paths of the busiest categories, as they are in force now.
func (d *dev) limitsNow(ctx context.Context, explain explainer) (states []throttle.Explanatory, unknown bool) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	for _, category := range append([]string{""}, d.tally.busiest(lookAt)...) {
		if category == noCategory || category == otherCategories {
			continue
		}
		known, err := explain(ctx, throttle.Request{ID: category + " ", Category: category, Cost: 1})
		if err != nil {
			return nil, true
		}
		for _, limit := range known.Limits {
			isSame := func(other throttle.Explanatory) bool {
				return other.Node.Path == limit.Node.Path && other.Limit == limit.Limit
			}
			if !slices.ContainsFunc(states, isSame) {
				states = append(states, limit)
			}
		}
	}
	return states, false
}

func pathOf(limit throttle.Explanatory) string { return cmp.Or(limit.Node.Path, limits.LevelGlobal) }

// nextSlot says when a full limit has a slot again.
func nextSlot(limit throttle.Explanatory) string {
	if limit.Wait == 0 {
		return "no slot opens"
	}
	return "next slot in " + (limit.Wait + time.Second - 1).Truncate(time.Second).String()
}

func (s situation) outcomes(paint painter) string {
	dropped := fmt.Sprintf("dropped %d", s.counts.of(consume.Dropped))
	if by := s.counts.droppedBy(); by != "" {
		dropped += " (" + by + ")"
	}
	texts := []string{
		fmt.Sprintf("events %d", s.counts.events),
		paint.green(fmt.Sprintf("sent %d", s.counts.of(consume.Sent))),
		paint.amber(dropped),
	}
	for _, outcome := range []consume.Outcome{consume.Duplicate, consume.Dead, consume.Expired} {
		texts = append(texts, fmt.Sprintf("%s %d", outcome, s.counts.of(outcome)))
	}
	return strings.Join(append(texts, fmt.Sprintf("waiting %d", s.waiting)), "  ")
}

// maxNamed is how many full limits are named.
const maxNamed = 3

// full lists the paths with a limit that is full. A full global limit stands for all.
func (s situation) full() (paths []string, next string) {
	var soonest throttle.Explanatory
	for _, limit := range s.limits {
		if !limit.Denies() {
			continue
		}
		path := pathOf(limit)
		if path == limits.LevelGlobal {
			return []string{path}, nextSlot(limit)
		}
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
		if len(paths) == 1 || limit.Wait > 0 && (soonest.Wait == 0 || limit.Wait < soonest.Wait) {
			soonest = limit
		}
	}
	return paths, nextSlot(soonest)
}

// slots says whether slots are free, or which limits are full and when the next slot opens.
func (s situation) slots() string {
	paths, next := s.full()
	switch {
	case s.unknown:
		return "the limits cannot be asked"
	case len(paths) == 0:
		return "slots are free"
	}
	named := strings.Join(paths[:min(len(paths), maxNamed)], ", ")
	if more := len(paths) - maxNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return "full: " + named + ", " + next
}

// sameAs tells whether nothing but the time to the next slot has changed.
func (s situation) sameAs(before situation) bool {
	paths, _ := s.full()
	pathsBefore, _ := before.full()
	return s.unknown == before.unknown && slices.Equal(paths, pathsBefore) && s.outcomes(painter{}) == before.outcomes(painter{})
}
