package limits

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// liveKit is a Live with its log.
type liveKit struct {
	*Live
	t        *testing.T
	log      *testkit.Log
	revision uint64
	earlier  map[string][]string // by level, or by "shadow:" and level
	asked    int                 // calls for earlier values
	failing  map[string]error    // of these calls, by level
}

func newLiveKit(t *testing.T, plan Plan, shadow string) *liveKit {
	k := &liveKit{t: t, log: testkit.NewLog(t), earlier: make(map[string][]string), failing: make(map[string]error)}
	k.Live = NewLive(plan, parseOverrides(t, shadow), func(of LiveLevel) ([]string, error) {
		k.asked++
		if of.Shadow {
			return k.earlier["shadow:"+of.Level], nil
		}
		return k.earlier[of.Level], k.failing[of.Level]
	}, k.log.Logger())
	return k
}

// entry returns a new override. The text is "level=limits", or "shadow:level=limits" for the shadow.
func (k *liveKit) entry(text string) LiveEntry {
	k.revision++
	rest, ofShadow := strings.CutPrefix(text, "shadow:")
	level, limits, _ := strings.Cut(rest, "=")
	return LiveEntry{LiveLevel: LiveLevel{level, ofShadow}, Limits: limits, Revision: k.revision}
}

// want compares the limits on the path to a category: the limits in force, and the shadow limits if there is a shadow.
func (k *liveKit) want(category string, entries []LiveEntry, inForce, shadow string) {
	k.t.Helper()
	rules := testkit.Must(k.Ruleset(3, k.revision, entries))(k.t)
	testkit.Check(k.t, rules.Position == (Position{3, k.revision}), "position: got %s, want generation 3, revision %d", rules.Position, k.revision)
	testkit.Equal(k.t, limitsOnPath(rules.Tree, category), inForce, "limits in force on the path to %s", category)
	testkit.Equal(k.t, limitsOnPath(rules.Shadow, category), shadow, "limits of the shadow on the path to %s", category)
}

func limitsOnPath(tree *Tree, category string) string {
	if tree == nil {
		return ""
	}
	var limits []string
	for _, node := range tree.Path(category) {
		limits = append(limits, node.Level+"="+node.Limits.String())
	}
	return strings.Join(limits, " ")
}

// wantLogged compares the number of lines, and finds each part in the last line.
func (k *liveKit) wantLogged(lines int, parts ...string) {
	k.t.Helper()
	logged := k.log.Lines("")
	testkit.Require(k.t, len(logged) == lines, "logged %q, want %d lines", logged, lines)
	testkit.Contains(k.t, "last line of the log", strings.Join(logged[max(0, lines-1):], ""), parts...)
}

func TestLiveOverrides(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", "a=5/1h"), "")
	k.want("a", nil, "global=100/1h a=5/1h", "")
	global, a, b := k.entry("global=200/1h"), k.entry("a=none"), k.entry("b=fixed:1/1h")
	k.want("a", []LiveEntry{global, a, b}, "global=200/1h", "")
	k.want("b", []LiveEntry{global, a, b}, "global=200/1h b=fixed:1/1h", "")
	k.want("c", []LiveEntry{k.entry("category=token:7/1h;burst=2")}, "global=100/1h category=token:7/1h;burst=2", "")
	k.want("a", nil, "global=100/1h a=5/1h", "")
	k.wantLogged(0)
}

func TestLiveBadOverride(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", "a=5/1h"), "")
	good, other := k.entry("a=7/1h"), k.entry("b=3/1h")
	k.want("a", []LiveEntry{good, other}, "global=100/1h a=7/1h", "")

	bad := k.entry("a=seven")
	for range 3 { // the bad value is logged once
		k.want("a", []LiveEntry{bad, other}, "global=100/1h a=7/1h", "")
	}
	k.wantLogged(1, "bad live limit is ignored", "limit_level=a", "limit=seven", fmt.Sprint("revision=", bad.Revision), "last_good_stays=true", "30m")
	k.want("b", []LiveEntry{bad, other}, "global=100/1h b=3/1h", "")
	k.want("a", []LiveEntry{k.entry("a=8/"), other}, "global=100/1h a=7/1h", "")
	k.wantLogged(2, "limit=8/")

	// A bad value at one level stops no change at another level.
	k.want("b", []LiveEntry{bad, k.entry("b=4/1h")}, "global=100/1h b=4/1h", "")
	k.want("a", []LiveEntry{k.entry("a=9/1h")}, "global=100/1h a=9/1h", "")

	// A deleted override leaves no last good value.
	k.want("a", nil, "global=100/1h a=5/1h", "")
	lines := k.log.Count("")
	k.want("a", []LiveEntry{k.entry("a=x")}, "global=100/1h a=5/1h", "")
	k.wantLogged(lines+1, "last_good_stays=false")
}

func TestLiveBadLevel(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "")
	entries := []LiveEntry{k.entry("*=1/1h"), k.entry("A=1/1h"), k.entry("a..b=1/1h"), k.entry("=1/1h")}
	k.want("a", entries, "global=100/1h category=10/1h", "")
	k.wantLogged(4, "last_good_stays=false")
}

// An instance that begins with a value that is lost or bad, and finds no earlier one, says so. One that goes on keeps what it had.
func TestLiveUnreadable(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", "a=5/1h"), "")
	lost := k.entry("a=")
	lost.Lost = true
	wantUnreadable := func(entries []LiveEntry, says string) {
		t.Helper()
		testkit.Must(k.Ruleset(3, k.revision, entries))(t)
		if err := k.Unreadable(); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("unreadable: got %v, want %q", err, says)
		}
	}
	wantUnreadable([]LiveEntry{lost}, "the live limit of a is not readable, and no earlier value is known: its history holds only messages that neither")
	wantUnreadable([]LiveEntry{k.entry("shadow:b=x")}, "the live limit of b (--shadow) is not readable")
	wantUnreadable([]LiveEntry{k.entry("*=1/1h")}, "") // no limit has this name
	k = newLiveKit(t, newPlan(t, "100/1h", "10/1h", "a=5/1h"), "")
	wantUnreadable([]LiveEntry{lost, k.entry("b=x")}, "the live limit of b is")
	k.earlier["a"], k.earlier["b"] = []string{"x", "7/1h"}, []string{"3/1h"}
	k.revision = 100
	lost.Revision = 100
	bad := k.entry("b=y")
	wantUnreadable([]LiveEntry{lost, bad}, "")
	k.want("a", []LiveEntry{lost, bad}, "global=100/1h a=7/1h", "")
	k.want("b", []LiveEntry{lost, bad}, "global=100/1h b=3/1h", "")
	wantUnreadable([]LiveEntry{k.entry("c=x")}, "") // it was not set before
	k.want("c", []LiveEntry{k.entry("c=x")}, "global=100/1h category=10/1h", "")
}

func TestLiveGlobalKeepsGuarantees(t *testing.T) {
	t.Parallel()
	plan := newPlan(t, "100/1h", "none", "")
	plan.Guarantees = []Guarantee{{Path: "a", Slots: 20}, {Path: "b", Slots: 10}}
	k := newLiveKit(t, plan, "")
	k.want("a", []LiveEntry{k.entry("global=30/1h")}, "global=30/1h", "")
	for _, limits := range []string{"29/1h", "none", "token:100/1h", "100/1h+5/1m"} {
		lines := k.log.Count("")
		k.want("a", []LiveEntry{k.entry("global=" + limits)}, "global=30/1h", "")
		k.wantLogged(lines+1, "level=global", "limit="+limits, "guarantees", "last_good_stays=true")
	}
	k.want("a", []LiveEntry{k.entry("global=50/1h+token:5/1h")}, "global=50/1h+token:5/1h", "")
	rules := testkit.Must(k.Ruleset(3, 1, nil))(t)
	testkit.EqualSlices(t, rules.Tree.Guarantees(), []Guarantee{{Path: "a", Slots: 20}, {Path: "b", Slots: 10}}, "guarantees")
}

func TestLiveShadow(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "")
	both := []LiveEntry{k.entry("a=5/1h"), k.entry("shadow:a=4/1h")}
	k.want("a", both, "global=100/1h a=5/1h", "global=100/1h a=4/1h")
	k.want("b", both, "global=100/1h category=10/1h", "global=100/1h category=10/1h")
	k.want("a", both[:1], "global=100/1h a=5/1h", "")

	// A bad shadow limit leaves the limit in force alone, and the reverse.
	bad := []LiveEntry{k.entry("a=5/1h"), k.entry("shadow:a=x")}
	k.want("a", []LiveEntry{bad[0], k.entry("shadow:a=3/1h")}, "global=100/1h a=5/1h", "global=100/1h a=3/1h")
	k.want("a", bad, "global=100/1h a=5/1h", "global=100/1h a=3/1h")
	k.wantLogged(1, "shadow=true", "last_good_stays=true")
	k.want("a", []LiveEntry{k.entry("a=y"), k.entry("shadow:a=2/1h")}, "global=100/1h a=5/1h", "global=100/1h a=2/1h")
	k.wantLogged(2, "shadow=false")
}

func TestLiveShadowOverTheSettings(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "a=5/1h,global=50/1h")
	k.want("a", nil, "global=100/1h category=10/1h", "global=50/1h a=5/1h")
	k.want("a", []LiveEntry{k.entry("shadow:a=6/1h"), k.entry("global=90/1h")}, "global=90/1h category=10/1h", "global=50/1h a=6/1h")
}

// TestLiveStartsAfterABadValue starts an instance while a bad value is set. The instance uses the last good value of the history.
func TestLiveStartsAfterABadValue(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "")
	k.earlier["a"] = []string{"y", "7/1h", "8/1h"}
	k.earlier["shadow:a"] = []string{"3/1h"}
	k.earlier["b"] = []string{"z", ""}
	entries := []LiveEntry{k.entry("a=x"), k.entry("shadow:a=x"), k.entry("b=x")}
	k.want("a", entries, "global=100/1h a=7/1h", "global=100/1h a=3/1h")
	k.want("b", entries, "global=100/1h category=10/1h", "global=100/1h category=10/1h")
	k.wantLogged(3, "level=b", "last_good_stays=false")
	testkit.Equal(t, k.asked, 3, "asked what was set earlier, want once for each")
}

// TestLiveLooksAgain starts an instance while two bad values are set and one of their histories cannot be read for a moment.
func TestLiveLooksAgain(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "")
	k.earlier["a"], k.earlier["b"] = []string{"7/1h"}, []string{"8/1h"}
	k.failing["b"] = errors.New("no reply")
	entries := []LiveEntry{k.entry("a=x"), k.entry("b=x")}
	_, err := k.Ruleset(3, k.revision, entries)
	testkit.Fails(t, "ruleset", err, ErrEarlier, "of b: no reply")
	delete(k.failing, "b")
	k.want("a", entries, "global=100/1h a=7/1h", "")
	k.want("b", entries, "global=100/1h b=8/1h", "")
	testkit.NoError(t, k.Unreadable())
	k.wantLogged(2, "last_good_stays=true")
}

// TestLiveMissesAGoodValue replaces a good value before the instance reads it. The instance finds the good value in the history.
func TestLiveMissesAGoodValue(t *testing.T) {
	t.Parallel()
	k := newLiveKit(t, newPlan(t, "100/1h", "10/1h", ""), "")
	k.want("a", []LiveEntry{k.entry("a=x")}, "global=100/1h category=10/1h", "")
	k.earlier["a"] = []string{"6/1h", "x"}
	k.want("a", []LiveEntry{k.entry("a=y")}, "global=100/1h a=6/1h", "")
}

func TestNewRuleset(t *testing.T) {
	t.Parallel()
	parse := func(text string) []Override { return parseOverrides(t, text) }
	plan := newPlan(t, "100/1h", "10/1h", "a=5/1h")
	rules := testkit.Must(NewRuleset(plan, parse("a=6/1h,b=7/1h"), parse("a=8/1h,c=9/1h"), parse("c=1/1h,category=2/1h")))(t)
	for path, want := range map[string][2]string{"a": {"6/1h", "8/1h"}, "b": {"7/1h", "7/1h"}, "c": {"10/1h", "1/1h"}, "d": {"10/1h", "2/1h"}} {
		got := [2]string{rules.Tree.Path(path)[1].Limits.String(), rules.Shadow.Path(path)[1].Limits.String()}
		testkit.Equal(t, got, want, "%s: limits in force and in the shadow", path)
	}
	if rules, err := NewRuleset(plan, parse("a=6/1h"), nil, nil); err != nil || rules.Shadow != nil {
		t.Errorf("a shadow of no overrides: %v, %v", rules.Shadow, err)
	}
	plan.Guarantees = []Guarantee{{Path: "a", Slots: 50}}
	_, err := NewRuleset(plan, parse("global=49/1h"), nil, nil)
	testkit.Fails(t, "limits that cannot keep the guarantees", err, nil)
	_, err = NewRuleset(plan, nil, parse("global=49/1h"), nil)
	testkit.Fails(t, "a shadow that cannot keep the guarantees", err, nil, "shadow")
}

func TestPositions(t *testing.T) {
	t.Parallel()
	ordered := []Position{{}, {1, 1}, {1, 2}, {2, 0}, {2, 1}}
	for i, p := range ordered {
		for j, q := range ordered {
			testkit.Equal(t, p.Before(q), i < j, "%v before %v", p, q)
		}
	}
	for p, want := range map[Position]string{{}: "none", {1_766_000_000_123, 2}: "revision 2 of generation 1766000000123 (2025-12-17T19:33:20Z)"} {
		testkit.Equal(t, p.String(), want, "position")
	}
}
