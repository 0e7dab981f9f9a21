package limits

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const minute, hour = time.Minute, time.Hour
	for text, want := range map[string]Limits{
		"none":             nil,
		" none ":           nil,
		"10/30m+3/1m":      {{Count: 10, Window: 30 * minute}, {Count: 3, Window: minute}},
		" 10 / 30m + 3/1m": {{Count: 10, Window: 30 * minute}, {Count: 3, Window: minute}},
		"0/1h":             {{Count: 0, Window: hour}},
		"1/1h30m":          {{Count: 1, Window: 90 * minute}},
		"1/1d12h":          {{Count: 1, Window: 36 * hour}},
		"1/366d":           {{Count: 1, Window: MaxWindow}},
		"1/8784h":          {{Count: 1, Window: MaxWindow}},
		"1/1ms":            {{Count: 1, Window: MinWindow}},
		"1/1s500ms":        {{Count: 1, Window: 1500 * time.Millisecond}},
		"10000000/1h":      {{Count: MaxCount, Window: hour}},
		"007/1h":           {{Count: 7, Window: hour}},

		"log:10/30m":              {{Count: 10, Window: 30 * minute}},
		"counter:10/30m":          {{Count: 10, Window: 30 * minute, Algorithm: algorithm.SlidingCounter}},
		"token:100/1h":            {{Count: 100, Window: hour, Algorithm: algorithm.TokenBucket}},
		"token:100/1h;burst=20":   {{Count: 100, Window: hour, Algorithm: algorithm.TokenBucket, Burst: 20}},
		"token:100/1h;burst=1":    {{Count: 100, Window: hour, Algorithm: algorithm.TokenBucket, Burst: 1}},
		"token:100/1h;burst=100":  {{Count: 100, Window: hour, Algorithm: algorithm.TokenBucket}},
		" token : 9/1h ; burst=2": {{Count: 9, Window: hour, Algorithm: algorithm.TokenBucket, Burst: 2}},
		"token:284/366d":          {{Count: 284, Window: MaxWindow, Algorithm: algorithm.TokenBucket}},
		"token:10000000/15m719ms": {{Count: MaxCount, Window: 15*minute + 719*time.Millisecond, Algorithm: algorithm.TokenBucket}},
		"leaky:1/1m + 5/1h":       {{Count: 5, Window: hour}, {Count: 1, Window: minute, Algorithm: algorithm.LeakyBucket}},
		"inflight:2/1m+fixed:3/1m+4/1m+token:5/1m+6/1h": {
			{Count: 4, Window: minute}, {Count: 6, Window: hour}, {Count: 2, Window: minute, Algorithm: algorithm.InFlight},
			{Count: 3, Window: minute, Algorithm: algorithm.FixedWindow}, {Count: 5, Window: minute, Algorithm: algorithm.TokenBucket},
		},
		"fixed:1/1h+fixed:2/1d": {{Count: 1, Window: hour, Algorithm: algorithm.FixedWindow}, {Count: 2, Window: day, Algorithm: algorithm.FixedWindow}},
		"1/1h+2/1h":             {{Count: 1, Window: hour}, {Count: 2, Window: hour}},
	} {
		testkit.EqualDeeply(t, parse(t, text), want, "%q", text)
	}
}

func TestParseUnits(t *testing.T) {
	t.Parallel()
	for window, units := range map[time.Duration][]string{
		time.Second: {"s", "sec", "second"}, time.Minute: {"m", "min", "minute"}, time.Hour: {"h", "hour"}, day: {"d", "day"}, 7 * day: {"week"},
	} {
		for _, unit := range units {
			testkit.EqualDeeply(t, parse(t, "5/"+unit), Limits{{Count: 5, Window: window}}, "5/%s", unit)
		}
	}
}

// parseFaults has bad texts by a part of their fault.
var parseFaults = map[string][]string{
	"none":                 {""},
	"30m":                  {"ten"},
	"not <count>/<window>": {"None", "none+1/1h", "+1/1h", "1/1h+"},
	"<count>/<window>":     {"10", "log:none", "fixed:", "fixed:10"},
	"whole number":         {"/1h", "-1/1h", "1.5/1h", "1e3/1h", "１/1h", "fixed:token:1/1h"},
	"10000000":             {"10000001/1h", "99999999999999999999/1h"},
	"1ms":                  {"1/0s", "1/0", "fixed:1/0s"},
	"not a duration":       {"1/1us", "1/1.5s"},
	"366d":                 {"1/367d", "1/366d1ms", "1/65535d"},
	"duration": {
		"10/", "1/-1h", "1/+1h", "1/99999999d", "1/106751d24h", "1/9999999999999999999999h", "1/1h1d", "1/d1", "1/1d1d", "1/1d-1h", "1/1 h", "1/month",
		"1/1h/2h", "1/1h,2/1h",
	},

	"log, counter, fixed, token, leaky, inflight": {"bucket:1/1h"},
	`""`:                                   {":1/1h"},
	`"Fixed"`:                              {"Fixed:1/1h"},
	"fixed limit with that window already": {"fixed:1/1h+fixed:2/60m"},
	"token limit with that window already": {"token:1/1h+5/1h+token:2/1h"},
	"only a token limit":                   {"10/1h;burst=2", "log:10/1h;burst=2", "leaky:10/1h;burst=2"},

	"up to 284 in 366d":           {"token:285/366d", "token:300000/366d"},
	"up to 104249 in 1d":          {"token:104250/1d;burst=1"},
	"up to 9999999 in 15m720ms":   {"token:10000000/15m720ms"},
	"burst=<count>":               {"token:10/1h;", "token:10/1h;burst", "token:10/1h;size=3"},
	"burst: count":                {"token:10/1h;burst=", "token:10/1h;burst=-1", "token:10/1h;burst=2;burst=3"},
	"between 1 and the count, 10": {"token:10/1h;burst=0", "token:10/1h;burst=11"},
	"between 1 and the count":     {"token:0/1h;burst=0"},
}

func TestParseFaults(t *testing.T) {
	t.Parallel()
	for part, texts := range parseFaults {
		for _, text := range texts {
			if limits, err := Parse(text); err == nil {
				t.Errorf("%q: %v, want a fault", text, limits)
			} else {
				wantFaults(t, text, []error{err}, []string{part})
			}
		}
	}
}

func TestLimitsString(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"none": "none", "100/30m": "100/30m", "5/minute": "5/1m", "1/90m": "1/1h30m", "1/36h": "1/1d12h", "1/week": "1/7d",
		"10/30m+3/1m": "10/30m+3/1m", "1/90061001ms": "1/1d1h1m1s1ms", "0/1500ms": "0/1s500ms",
		"log:5/1m": "5/1m", "counter:5/minute": "counter:5/1m", "fixed:5/week": "fixed:5/7d", "leaky:1/90s": "leaky:1/1m30s",
		"inflight:2/1m": "inflight:2/1m", "token:9/1h;burst=3": "token:9/1h;burst=3", "token:9/1h;burst=9": "token:9/1h",
		"fixed:1/1h+2/1h+leaky:3/1h": "2/1h+fixed:1/1h+leaky:3/1h",
	} {
		testkit.Equal(t, parse(t, text).String(), want, "%q is written as", text)
	}
}

func TestParseRulesFaults(t *testing.T) {
	t.Parallel()
	for text, parts := range map[string][]string{
		"":                     {`entry "" is not path=limit`},
		"a=1/1h,":              {`entry "" is not path=limit`},
		"a":                    {`"a"`},
		"=1/1h":                {"empty"},
		"a=":                   {"30m"},
		"A=1/1h":               {"lower case"},
		"a..b=1/1h":            {"empty level"},
		"a.b*=1/1h":            {"whole level"},
		"global=1/1h":          {"NOTIFIER_GLOBAL_LIMIT"},
		"category=1/1h":        {"NOTIFIER_CATEGORY_LIMIT"},
		"*=1/1h":               {"NOTIFIER_CATEGORY_LIMIT"},
		"global@key=1/1h":      {`use "*@key"`},
		"category@key=1/1h":    {`use "*@key"`},
		"a@db=1/1h":            {`"a@db" names one key; "a@key" limits each key`},
		"a.>=1/1h":             {`the limit of "a" covers all paths below it, and "a.*" limits each of them`},
		"a.>@key=1/1h":         {"may hold only"},
		"@key=1/1h":            {`use "*@key"`},
		"a@key=1/1h,a@key=2/h": {"twice"},
		"a@key=1/1h,a=1/1h,*@key=none,a.*@key=token:2/1h;burst=1": nil,
		"  global=none":        {"NOTIFIER_GLOBAL_LIMIT"},
		"a=1/1h,a=2/1h":        {"twice"},
		"a=1/1h,b=x,c,a=2/1h":  {`"b=x"`, `"c"`, "twice"},
		"a.b.c.d.e.f.g.h.i=1":  {"levels"},
		"a=1/1h;b=1/1h":        {"burst="},
		"a=1/1h,global.x=1/1s": nil,
		"*.b=1/1h,a.*=1/1h":    nil,
	} {
		_, faults := ParseRules(text)
		wantFaults(t, text, faults, parts)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"100/30m", "10/30m+3/1m", "5/minute", "0/1h", "none", "1/1d12h30m", "1/1s500ms", "+", "1/", "/", "9999999/366d", "1/1h+none",
		"log:1/1h", "counter:5/1m+fixed:6/1m", "token:100/1h;burst=20", "leaky:4/1m+3/1h", "inflight:2/30s", "token:1/1h;", "fixed:;burst=1",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		limits, err := Parse(text)
		if err != nil {
			testkit.Require(t, limits == nil && err.Error() != "", "%q: %v with fault %q", text, limits, err)
			return
		}
		for _, limit := range limits {
			if limit.Burst < 0 || limit.Burst > 0 && (limit.Algorithm != algorithm.TokenBucket || limit.Burst >= limit.Count) {
				t.Fatalf("%q: %+v has a burst that it cannot have", text, limit)
			}
			if limit.Count < 0 || limit.Count > MaxCount || limit.Window < MinWindow || limit.Window > MaxWindow || limit.Window%time.Millisecond != 0 {
				t.Fatalf("%q: %+v is out of bounds", text, limit)
			}
		}
		again, err := Parse(limits.String())
		testkit.Require(t, err == nil && reflect.DeepEqual(again, limits), "%q is written as %q, which reads as %v, %v", text, limits, again, err)
	})
}

func FuzzParseRules(f *testing.F) {
	for _, seed := range []string{
		"payments=40/30m,payments.*=5/10m,debug=1/1h,security=none", "*=1/1h", "global=1/1h", "a=1/1h,a=1/1h", "=", ",", "a.*.c=none", "a=1/1h+2/1d",
		"a=fixed:1/1h+token:5/1m;burst=2,b=leaky:1/1s", "a=inflight:2/1m,a.*=counter:3/1h",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rules, faults := ParseRules(text)
		testkit.Require(t, len(rules)+len(faults) == strings.Count(text, ",")+1, "%q: %d rules and %d faults", text, len(rules), len(faults))
		if len(faults) > 0 {
			return
		}
		_, err := NewTree(Plan{Rules: rules})
		testkit.Require(t, err == nil, "%q: %v", text, err)
		var written []string
		for _, rule := range rules {
			written = append(written, rule.Pattern.String()+"="+rule.Limits.String())
		}
		again, faults := ParseRules(strings.Join(written, ","))
		testkit.Require(t, len(faults) == 0 && reflect.DeepEqual(again, rules),
			"%q is written as %q, which reads as %v, %v", text, written, again, faults)
	})
}
