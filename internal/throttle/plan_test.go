package throttle

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseOverrides(t *testing.T) {
	t.Parallel()
	overrides, faults := ParseOverrides("global=200/30m, category = none ,payments.*=fixed:5/1h+token:9/1m;burst=3")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var got []string
	for _, o := range overrides {
		got = append(got, o.Level+"="+o.Limits.String())
	}
	want := []string{"global=200/30m", "category=none", "payments.*=fixed:5/1h+token:9/1m;burst=3"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("overrides %q, want %q", got, want)
	}
}

// wantFaults compares what faults say, part by part.
func wantFaults(t *testing.T, text string, faults []error, parts []string) {
	t.Helper()
	if len(faults) != len(parts) {
		t.Errorf("%q: faults %v, want %d", text, faults, len(parts))
		return
	}
	for i, part := range parts {
		if !strings.Contains(faults[i].Error(), part) {
			t.Errorf("%q: fault %q does not say %q", text, faults[i], part)
		}
	}
}

func TestParseOverridesFaults(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string][]string{
		"":                                 {"level=limit"},
		"a":                                {`"a"`},
		"a=1/1h,":                          {"level=limit"},
		"*=1/1h":                           {"category"},
		"A=1/1h":                           {"lower case"},
		"a..b=1/1h":                        {"empty level"},
		"a=x":                              {"<count>/<window>"},
		"global=1/1h,b=2/1h, global =3/1h": {"twice"},
		"a=x,global,b=1/1h,b=none":         {`"a=x"`, `"global"`, "twice"},
		"global=none,category=0/1h,a=none": nil,
	} {
		overrides, faults := ParseOverrides(text)
		wantFaults(t, text, faults, parts)
		if good := strings.Count(text, ",") + 1 - len(parts); len(overrides) != good {
			t.Errorf("%q: %d overrides, want %d", text, len(overrides), good)
		}
	}
}

func TestParseGuarantees(t *testing.T) {
	t.Parallel()
	guarantees, faults := ParseGuarantees("security=20, payments.refunds = 5")
	want := []Guarantee{{"security", 20}, {"payments.refunds", 5}}
	if len(faults) > 0 || !slices.Equal(guarantees, want) {
		t.Errorf("guarantees %v, %v, want %v", guarantees, faults, want)
	}
}

func TestParseGuaranteesFaults(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string][]string{
		"":                       {"path=slots"},
		"a":                      {`"a"`},
		"=5":                     {"empty"},
		"a=":                     {"whole number"},
		"a=-1":                   {"whole number"},
		"a=1.5":                  {"whole number"},
		"a=10000001":             {"10000000"},
		"a=0":                    {"no slots"},
		"A=1":                    {"lower case"},
		"a.*=1":                  {`"a.*=1"`},
		"a..b=1":                 {"empty level"},
		"a=1,a=2":                {"twice"},
		"a=1,b,a=2,c=0":          {`"b"`, "twice", "no slots"},
		"a=1,a.b=2,a.b.c=3,ab=4": nil,
	} {
		_, faults := ParseGuarantees(text)
		wantFaults(t, text, faults, parts)
	}
}

func TestCheckGuarantees(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		global, guarantees string
		fault              string // "" for none
	}{
		{"none", "", ""},
		{"fixed:1/1h", "", ""},
		{"30/1h", "a=10,a.b=20", ""},
		{"30/1h", "a=10,a.b=21", "guarantees of 31 slots together are more than the global limit 30/1h has"},
		{"30/1h+20/1m", "a=10,b=11", "global limit 20/1m has"},
		{"0/1h", "a=1", "global limit 0/1h has"},
		{"none", "a=1", "it is none"},
		{"token:100/1h", "a=1", "it is token:100/1h"},
		{"counter:100/1h+inflight:5/1m", "a=1", "sliding log"},
		{"100/1h+token:5/1h", "a=20", ""},
	} {
		var guarantees []Guarantee
		if c.guarantees != "" {
			guarantees, _ = ParseGuarantees(c.guarantees)
		}
		global := parseLimits(t, c.global)
		_, treeErr := NewTree(Plan{Global: global, Guarantees: guarantees})
		for _, err := range []error{CheckGuarantees(global, guarantees), treeErr} {
			if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%q with %q: %v, want %q", c.global, c.guarantees, err, c.fault)
			}
		}
	}
}

func TestPlanWithOverrides(t *testing.T) {
	t.Parallel()
	plan := newPlan(t, "100/1h", "10/1h", "a=5/1h,a.*=2/1h")
	plan.Origins = map[string]Origin{"a": FromEnvironment}
	overrides, _ := ParseOverrides("global=200/1h,a=none,b.*=fixed:1/1h")
	changed := plan.With(overrides, FromLive)
	tree, err := NewTree(changed)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, level := range tree.AllLevels() {
		got[level.Level] = level.Limits.String() + " " + string(tree.Origin(level.Level))
	}
	want := map[string]string{
		"global": "200/1h live", "category": "10/1h ", "a": "none live", "a.*": "2/1h ", "b.*": "fixed:1/1h live",
	}
	if !maps.Equal(got, want) {
		t.Errorf("levels %q, want %q", got, want)
	}
	if original := newPlan(t, "100/1h", "10/1h", "a=5/1h,a.*=2/1h"); !reflect.DeepEqual(plan.Rules, original.Rules) ||
		len(plan.Origins) != 1 || plan.Origins["a"] != FromEnvironment || plan.Global.String() != "100/1h" {
		t.Errorf("the plan itself was changed: %+v", plan)
	}
}

func TestRulesetKnowsItsAlgorithms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		global, rules, shadow string
		want                  []string
	}{
		{"none", "", "", nil},
		{"1/1h", "", "", []string{"log"}},
		{"inflight:1/1h+1/1h", "a=token:1/1h", "", []string{"log", "token", "inflight"}},
		{"1/1h", "a=fixed:1/1h", "a=counter:1/1h,b=leaky:1/1h", []string{"log", "counter", "fixed", "leaky"}},
	} {
		rules := newRuleset(t, newPlan(t, c.global, "none", c.rules), c.shadow)
		if got := rules.algorithms(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: algorithms %q", c, got)
		}
	}
}

func TestNewRuleset(t *testing.T) {
	t.Parallel()
	parse := func(text string) []Override {
		t.Helper()
		overrides, faults := ParseOverrides(text)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		return overrides
	}
	plan := newPlan(t, "100/1h", "10/1h", "a=5/1h")
	rules, err := NewRuleset(plan, parse("a=6/1h,b=7/1h"), parse("a=8/1h,c=9/1h"), parse("c=1/1h,category=2/1h"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{"a": {"6/1h", "8/1h"}, "b": {"7/1h", "7/1h"}, "c": {"10/1h", "1/1h"}, "d": {"10/1h", "2/1h"}} {
		got := [2]string{rules.Tree.Path(path)[1].Limits.String(), rules.Shadow.Path(path)[1].Limits.String()}
		if got != want {
			t.Errorf("%s: limits in force and in the shadow %q, want %q", path, got, want)
		}
	}
	if rules, err = NewRuleset(plan, parse("a=6/1h"), nil, nil); err != nil || rules.Shadow != nil {
		t.Errorf("a shadow of no overrides: %v, %v", rules.Shadow, err)
	}
	plan.Guarantees = []Guarantee{{"a", 50}}
	if _, err = NewRuleset(plan, parse("global=49/1h"), nil, nil); err == nil {
		t.Error("limits that cannot keep the guarantees are no fault")
	}
	if _, err = NewRuleset(plan, nil, parse("global=49/1h"), nil); err == nil || !strings.Contains(err.Error(), "shadow") {
		t.Errorf("a shadow that cannot keep the guarantees: %v", err)
	}
	if kept := (&Ruleset{Shadow: newTree(t, "1/1h", "2/1d", "")}).shadowKept(); kept != (24 * time.Hour).Microseconds() {
		t.Errorf("what the shadow admitted counts for %dµs", kept)
	}
}
