package algorithm_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/oracle"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// TestTable checks that everything that the row of an algorithm names exists, and agrees with the row.
func TestTable(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page := testkit.Text(t, filepath.Join(root, "docs", "limits.md"))
	_, grammar, _ := strings.Cut(page, "\nalgorithm  ")
	grammar, _, _ = strings.Cut(grammar, "\n")
	for _, a := range algorithm.All() {
		row := a.Description()
		named, known := algorithm.Named(row.Name)
		testkit.Check(t, known && named == a, "%q names %v, want %d", row.Name, named, a)
		if !slices.Contains(lua.Algorithms, row.Name) {
			t.Errorf("lua/algorithms has no %s.lua", row.Name)
			continue
		}
		script := testkit.Text(t, filepath.Join(root, "lua", "algorithms", row.Name+".lua"))
		for flag, want := range map[string]bool{"times_admissions = true": row.TimesAdmissions, "follows_delivery = true": row.FollowsDelivery()} {
			testkit.Equal(t, strings.Contains(script, flag), want, "%s.lua has %s", row.Name, flag)
		}
		_, follows := row.Memory().(algorithm.Following)
		testkit.Equal(t, follows, row.FollowsDelivery(), "the state of %s implements Following", row.Name)
		testkit.Equal(t, oracle.Knows(oracle.Kind(row.Name)), true, "the oracle knows %s", row.Name)
		testkit.Check(t, row.Picture != "", "%s has no caption", row.Name)
		testkit.Check(t, slices.Contains(strings.FieldsFunc(grammar, func(r rune) bool { return strings.ContainsRune(" ,()", r) }), row.Name),
			"the grammar in docs/limits.md does not name %s", row.Name)
		testkit.Check(t, strings.Contains(page, "\n| `"+row.Name+"` | "), "the table in docs/limits.md does not have %s", row.Name)
		limit := limits.Limit{Algorithm: a, Count: 7, Window: time.Hour}
		parsed, err := limits.Parse(limit.String())
		testkit.Check(t, err == nil && slices.Equal(parsed, limits.Limits{limit}), "%s is read as %v, %v", limit, parsed, err)
	}
	testkit.Equal(t, len(lua.Algorithms), len(algorithm.All()), "files in lua/algorithms")
	perNode := algorithm.Names(func(d *algorithm.Description) bool { return d.PerNode })
	testkit.EqualSlices(t, perNode, []string{algorithm.SlidingLog.String()}, "algorithms that fastpath.lua can evaluate")
}

// TestStates takes one slot after another of an unused state, and waits as long as it says, with each algorithm.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, a := range algorithm.All() {
		for _, count := range []int64{1, 2, 7} {
			limit := algorithm.Limit{Algorithm: a, Count: count, Window: time.Minute}
			own, state := []algorithm.Limit{limit}, limit.Description().Memory()
			now := time.Date(2026, time.January, 1, 12, 0, 7, 0, time.UTC).UnixMicro()
			for n := range 3 * count {
				event := algorithm.Event{Now: now, Cost: 1, Lease: 1000, Message: string(rune('a' + n))}
				_, wait := state.Wait(event, own)
				if wait > 0 {
					event.Now += wait - 1
					_, early := state.Wait(event, own)
					testkit.Require(t, early == 1, "%s: slot %d opens in %d, and in %d a microsecond before", limit, n, wait, early)
					now += wait
					event.Now = now
				}
				if _, wait := state.Wait(event, own); wait != 0 {
					t.Fatalf("%s: slot %d opens %d too late", limit, n, wait)
				}
				state.Take(event, own)
				used := state.Used(now, 1000, limit)
				testkit.Require(t, used >= 1 && used <= count, "%s: %d slots are taken of %d", limit, used, count)
			}
			now += 2*limit.Window.Microseconds() + 1
			testkit.Equal(t, state.Used(now, 1000, limit), 0, "%s: slots taken two windows later", limit)
		}
	}
}
