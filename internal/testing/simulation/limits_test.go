package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// slotsOf returns how many slots each limit of a revision has in a window, by the path of the limit: "" is the global limit.
func slotsOf(revision uint64) map[string]int {
	return map[string]int{"": 12, "flood": []int{4, 7, 3}[revision%3], "later": 5, "pairs": 6, "bad": 5}
}

// ruleset returns the limits of a revision.
func ruleset(t testing.TB, revision uint64) limits.Ruleset {
	slots := slotsOf(revision)
	var texts []string
	for _, path := range slices.Sorted(maps.Keys(slots)) {
		if path != "" {
			texts = append(texts, fmt.Sprintf("%s.*=none,%s=%d/%v", path, path, slots[path], window))
		}
	}
	rules, faults := limits.ParseRules(strings.Join(texts, ","))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	global, err := limits.Parse(fmt.Sprintf("%d/%v", slots[""], window))
	testkit.NoError(t, err)
	made, err := limits.NewRuleset(limits.Plan{Global: global, Rules: rules}, nil, nil, nil)
	testkit.NoError(t, err)
	made.Position = limits.Position{Generation: 1, Revision: revision}
	return made
}

// change is when Redis adopted a revision of the limits.
type change struct {
	revision uint64
	at       time.Time
}

// since adds a change of the limits, unless it is known. It returns the first and the last revision of the limits that were in force after a time.
func (l *ledger) since(from time.Time, newest change) (first, last uint64) {
	if len(l.changes) == 0 || newest.revision > l.changes[len(l.changes)-1].revision {
		l.changes = append(l.changes, newest)
	}
	for _, c := range slices.Backward(l.changes) {
		first, last = c.revision, max(last, c.revision)
		if !c.at.After(from) {
			break
		}
	}
	return first, last
}

// compare compares the slots that were taken after a time with the limits of that time. Each admission keeps the limits that are in force then, so
// the greatest of them bounds all of them.
func (l *ledger) compare(from time.Time, newest change, counts map[string]*redis.IntCmd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, last := l.since(from, newest)
	for path, count := range counts {
		n, most := int(count.Val()), 0
		for revision := first; revision <= last; revision++ {
			most = max(most, slotsOf(revision)[path])
		}
		switch above := fmt.Sprintf("%q: %d slots of %d", path, n, most); {
		case n > most && !slices.Contains(l.above, above):
			l.above = append(l.above, above)
		case n == most:
			l.full[path]++
		}
	}
}

// look compares the logs in Redis with their limits.
func (w *world) look() {
	from, ctx := time.Now().Add(-window), w.t.Context()
	counts := make(map[string]*redis.IntCmd)
	var inForce *redis.StringCmd
	_, err := w.redis.TxPipelined(ctx, func(p redis.Pipeliner) error {
		inForce = p.Get(ctx, "{"+prefix+"}:limits")
		for path := range slotsOf(1) {
			key := strings.TrimSuffix("{"+prefix+"}:log:"+path, ":")
			counts[path] = p.ZCount(ctx, key, fmt.Sprint("(", from.UnixMicro()), "+inf")
		}
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return // nothing is decided
	}
	var generation, at int64
	newest := change{}
	if err == nil {
		_, err = fmt.Sscan(inForce.Val(), &generation, &newest.revision, &at)
	}
	if err != nil {
		w.t.Errorf("count the slots: %v", err)
		return
	}
	newest.at = time.UnixMicro(at)
	w.ledger.compare(from, newest, counts)
}
