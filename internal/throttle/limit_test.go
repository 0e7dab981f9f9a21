package throttle

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseLimits(t *testing.T) {
	t.Parallel()
	const minute, hour = time.Minute, time.Hour
	for text, want := range map[string]Limits{
		"none":             nil,
		" none ":           nil,
		"100/30m":          {{100, 30 * minute}},
		"10/30m+3/1m":      {{10, 30 * minute}, {3, minute}},
		" 10 / 30m + 3/1m": {{10, 30 * minute}, {3, minute}},
		"5/minute":         {{5, minute}},
		"5/m":              {{5, minute}},
		"5/min":            {{5, minute}},
		"5/s":              {{5, time.Second}},
		"5/sec":            {{5, time.Second}},
		"5/second":         {{5, time.Second}},
		"5/h":              {{5, hour}},
		"5/hour":           {{5, hour}},
		"5/d":              {{5, 24 * hour}},
		"5/day":            {{5, 24 * hour}},
		"5/week":           {{5, 7 * 24 * hour}},
		"1000/1d":          {{1000, 24 * hour}},
		"0/1h":             {{0, hour}},
		"1/1h30m":          {{1, 90 * minute}},
		"1/1d12h":          {{1, 36 * hour}},
		"1/366d":           {{1, MaxWindow}},
		"1/8784h":          {{1, MaxWindow}},
		"1/1ms":            {{1, MinWindow}},
		"1/1000us":         {{1, MinWindow}},
		"1/1.5s":           {{1, 1500 * time.Millisecond}},
		"10000000/1h":      {{MaxCount, hour}},
		"007/1h":           {{7, hour}},
	} {
		got, err := ParseLimits(text)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestParseLimitsFaults(t *testing.T) {
	t.Parallel()
	for text, part := range map[string]string{
		"":                          "none",
		"ten":                       "30m",
		"None":                      "not <count>/<window>",
		"none+1/1h":                 "not <count>/<window>",
		"10":                        "<count>/<window>",
		"10/":                       "duration",
		"/1h":                       "whole number",
		"-1/1h":                     "whole number",
		"+1/1h":                     "not <count>/<window>",
		"1.5/1h":                    "whole number",
		"1e3/1h":                    "whole number",
		"１/1h":                      "whole number",
		"10000001/1h":               "10000000",
		"99999999999999999999/1h":   "10000000",
		"1/0s":                      "1ms",
		"1/0":                       "1ms",
		"1/-1h":                     "duration",
		"1/+1h":                     "duration",
		"1/1us":                     "1ms",
		"1/1500us":                  "milliseconds",
		"1/367d":                    "366d",
		"1/366d1ms":                 "366d",
		"1/99999999d":               "duration",
		"1/106751d24h":              "duration",
		"1/65535d":                  "366d",
		"1/1h1d":                    "duration",
		"1/d1":                      "duration",
		"1/1d1d":                    "duration",
		"1/1d-1h":                   "duration",
		"1/1 h":                     "duration",
		"1/month":                   "duration",
		"1/1h/2h":                   "duration",
		"1/1h+":                     "not <count>/<window>",
		"1/1h,2/1h":                 "duration",
		"1/9999999999999999999999h": "duration",
	} {
		limits, err := ParseLimits(text)
		if err == nil {
			t.Errorf("%q: %v, want a fault", text, limits)
			continue
		}
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q: fault %q does not say %q", text, err, part)
		}
	}
}

func TestLimitsString(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"none": "none", "100/30m": "100/30m", "5/minute": "5/1m", "1/90m": "1/1h30m", "1/36h": "1/1d12h", "1/week": "1/7d",
		"10/30m+3/1m": "10/30m+3/1m", "1/90061001ms": "1/1d1h1m1s1ms", "0/1500ms": "0/1s500ms",
	} {
		if got := parseLimits(t, text).String(); got != want {
			t.Errorf("%q is written as %q, want %q", text, got, want)
		}
	}
}

func TestParseRules(t *testing.T) {
	t.Parallel()
	rules, faults := ParseRules("payments=40/30m, payments.* = 5/10m+1/1s ,debug=1/1h,security=none")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var got []string
	for _, rule := range rules {
		got = append(got, rule.Pattern.String()+"="+rule.Limits.String())
	}
	want := []string{"payments=40/30m", "payments.*=5/10m+1/1s", "debug=1/1h", "security=none"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("rules %q, want %q", got, want)
	}
}

func TestParseRulesFaults(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string][]string{
		"":                     {"empty"},
		"a=1/1h,":              {"empty"},
		"a":                    {`"a"`},
		"=1/1h":                {"empty"},
		"a=":                   {"30m"},
		"A=1/1h":               {"lower case"},
		"a..b=1/1h":            {"empty level"},
		"a.b*=1/1h":            {"whole level"},
		"global=1/1h":          {"NOTIFIER_GLOBAL_LIMIT"},
		"category=1/1h":        {"NOTIFIER_CATEGORY_LIMIT"},
		"*=1/1h":               {"NOTIFIER_CATEGORY_LIMIT"},
		"  global=none":        {"NOTIFIER_GLOBAL_LIMIT"},
		"a=1/1h,a=2/1h":        {"twice"},
		"a=1/1h,b=x,c,a=2/1h":  {`"b=x"`, `"c"`, "twice"},
		"a.b.c.d.e.f.g.h.i=1":  {"levels"},
		"a=1/1h;b=1/1h":        {"window"},
		"a=1/1h,global.x=1/1s": nil,
		"*.b=1/1h,a.*=1/1h":    nil,
	} {
		_, faults := ParseRules(text)
		if len(faults) != len(parts) {
			t.Errorf("%q: faults %v, want %d", text, faults, len(parts))
			continue
		}
		for i, part := range parts {
			if !strings.Contains(faults[i].Error(), part) {
				t.Errorf("%q: fault %q does not say %q", text, faults[i], part)
			}
		}
	}
}

func FuzzParseLimits(f *testing.F) {
	for _, seed := range []string{"100/30m", "10/30m+3/1m", "5/minute", "0/1h", "none", "1/1d12h30m", "1/1.5s", "+", "1/", "/", "9999999/366d", "1/1h+none"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := ParseLimits(text)
		if err != nil {
			if limits != nil || err.Error() == "" {
				t.Fatalf("%q: %v with fault %q", text, limits, err)
			}
			return
		}
		for _, limit := range limits {
			if limit.Count < 0 || limit.Count > MaxCount || limit.Window < MinWindow || limit.Window > MaxWindow || limit.Window%time.Millisecond != 0 {
				t.Fatalf("%q: %+v is out of bounds", text, limit)
			}
		}
		again, err := ParseLimits(limits.String())
		if err != nil || !reflect.DeepEqual(again, limits) {
			t.Fatalf("%q is written as %q, which reads as %v, %v", text, limits, again, err)
		}
	})
}

func FuzzParseRules(f *testing.F) {
	for _, seed := range []string{"payments=40/30m,payments.*=5/10m,debug=1/1h,security=none", "*=1/1h", "global=1/1h", "a=1/1h,a=1/1h", "=", ",", "a.*.c=none", "a=1/1h+2/1d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, faults := ParseRules(text)
		if len(rules)+len(faults) != strings.Count(text, ",")+1 {
			t.Fatalf("%q: %d rules and %d faults", text, len(rules), len(faults))
		}
		if len(faults) > 0 {
			return
		}
		if _, err := NewTree(nil, nil, rules); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var written []string
		for _, rule := range rules {
			written = append(written, rule.Pattern.String()+"="+rule.Limits.String())
		}
		again, faults := ParseRules(strings.Join(written, ","))
		if len(faults) > 0 || !reflect.DeepEqual(again, rules) {
			t.Fatalf("%q is written as %q, which reads as %v, %v", text, written, again, faults)
		}
	})
}
