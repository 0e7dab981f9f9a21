package limits

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// wantFaults finds one part in each fault.
func wantFaults(t *testing.T, text string, faults []error, parts []string) {
	t.Helper()
	if len(faults) != len(parts) {
		t.Errorf("%q: faults %v, want %d", text, faults, len(parts))
		return
	}
	for i, part := range parts {
		testkit.Contains(t, "fault of "+text, faults[i].Error(), part)
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
		"global@key=1/1h":                  {`use "*@key"`},
		"a@key=1/1h,*@key=none":            nil,
		"mute=1/1h,room=none":              {`"mute" is reserved for drops that no limit makes`, `"room" is reserved`},
		"closed=1,unpaired=1,folded=1,operator=1": {`"closed" is reserved`, `"unpaired" is reserved`, `"folded" is reserved`, `"operator" is reserved`},
		"mute.*=1/1h,room@key=1/1h":               nil,
	} {
		overrides, faults := ParseOverrides(text)
		wantFaults(t, text, faults, parts)
		testkit.Equal(t, len(overrides), strings.Count(text, ",")+1-len(parts), "%q: overrides", text)
	}
}

func TestParseGuarantees(t *testing.T) {
	t.Parallel()
	guarantees, faults := ParseGuarantees("security=20, payments.refunds = 5")
	want := []Guarantee{{Path: "security", Slots: 20}, {Path: "payments.refunds", Slots: 5}}
	testkit.Check(t, len(faults) == 0 && slices.Equal(guarantees, want), "guarantees %v, %v, want %v", guarantees, faults, want)
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
		global := parse(t, c.global)
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
	plan.Rules = append(plan.Rules, newPlan(t, "none", "none", "a@key=3/1h").Rules...)
	changed := plan.With(parseOverrides(t, " global = 200/1h,a=none, b.*=fixed:1/1h+token:9/1m;burst=3,a@key=1/1h,*@key=2/1h "), FromLive)
	tree := testkit.Must(NewTree(changed))(t)
	got := make(map[string]string)
	for _, level := range tree.AllLevels() {
		got[level.Level] = level.Limits.String() + " " + string(tree.Origin(level.Level))
	}
	want := map[string]string{
		"global": "200/1h live", "category": "10/1h ", "a": "none live", "a.*": "2/1h ", "b.*": "fixed:1/1h+token:9/1m;burst=3 live",
		"a@key": "1/1h live", "*@key": "2/1h live",
	}
	testkit.EqualMaps(t, got, want, "levels")
	if original := newPlan(t, "100/1h", "10/1h", "a=5/1h,a.*=2/1h,a@key=3/1h"); !reflect.DeepEqual(plan.Rules, original.Rules) ||
		len(plan.Origins) != 1 || plan.Origins["a"] != FromEnvironment || plan.Global.String() != "100/1h" {
		t.Errorf("the plan itself was changed: %+v", plan)
	}
}

// A limit is pointless if a log above its level never allows more within the limit's window.
func TestPointless(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		global, category, rules string
		want                    []string
	}{
		{"100/30m", "10/30m", "", nil},
		{"100/30m", "100/30m", "", []string{"100/30m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "99/30m+200/1m", "", []string{"200/1m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "200/31m", "", []string{"200/31m of category never denies anything: global above it allows no more than 100/30m"}},
		{"100/30m", "199/31m", "search=token:200/30m,a=none", nil},
		{"10000000/1ms", "10000000/366d", "", nil},
		{"token:5/1h", "10/30m", "", nil},
		{"100/30m", "10/30m", "a=5/1h,a@key=5/1h,*@key=100/30m,b.c@key=10/30m,a.b=9/2h,a.b@key=4/1h", []string{
			"5/1h of a@key never denies anything: a above it allows no more than 5/1h",
			"100/30m of *@key never denies anything: global above it allows no more than 100/30m",
			"10/30m of b.c@key never denies anything: b above it allows no more than 10/30m",
		}},
		{"none", "10/30m", "payments=40/30m,payments.refunds=40/30m,search.slow=10/1m", []string{
			"40/30m of payments.refunds never denies anything: payments above it allows no more than 40/30m",
			"10/1m of search.slow never denies anything: search above it allows no more than 10/30m",
		}},
		{"100/30m", "10/30m", "payments=40/30m,payments.*=50/30m,*.slow=50/30m,*.fast=100/30m", []string{
			"50/30m of payments.* never denies anything: payments above it allows no more than 40/30m",
			"100/30m of *.fast never denies anything: global above it allows no more than 100/30m",
		}},
	} {
		var got []string
		for _, pointless := range newTree(t, test.global, test.category, test.rules).Pointless() {
			got = append(got, pointless.String())
		}
		testkit.EqualSlices(t, got, test.want, "of %s, %s and %q", test.global, test.category, test.rules)
	}
}
