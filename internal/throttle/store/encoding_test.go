package store

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// replyCall returns a call for two events with three limits on their path.
func replyCall(t testing.TB, forward bool) *decideCall {
	settings := Settings{Tree: newTree(t, "10/1h", "5/1h+2/1m", ""), Lease: testLease, Retention: testRetention, Forward: forward}
	return newDecideCall(keysOf("reply"), settings, Compile(settings.rules()), "nonce", []Request{request("one", "a"), request("two", "a")})
}

func list(values ...any) []any { return values }

func numbers(values ...int64) []any {
	converted := make([]any, len(values))
	for i, v := range values {
		converted[i] = v
	}
	return converted
}

func TestDecodeReply(t *testing.T) {
	t.Parallel()
	const at = 1_700_000_000_000_000
	call := replyCall(t, false)
	result, err := call.decode(list(int64(at), list("#a", "1700000001000000", "#b", "1.7000000025e+15"), numbers(1, 0, 30_000_000, 2, 3, 1500, 5, 0, 7), int64(1), int64(2)))
	testkit.NoError(t, err)
	want := BatchResult{
		At:     at,
		Pauses: map[string]time.Duration{"#a": time.Second, "#b": 2500 * time.Millisecond},
		Decisions: []Decision{
			{Verdict: Admitted, Lease: Lease{Request: request("one", "a"), End: at + 30_000_000, rules: call.rules}},
			{Verdict: Denied, Node: call.limits[2].node, Limit: limits.Limit{Count: 2, Window: time.Minute}, Wait: 1500 * time.Microsecond},
		},
	}
	testkit.Check(t, alike(result, want), "decoded as\n%+v, want\n%+v", result, want)
	call = replyCall(t, true)
	result, err = call.decode(list(int64(at), list(), numbers(2, 1, 5, 8, 0, 0), int64(1), int64(2)))
	if err != nil || result.Decisions[0].Lease != (Lease{Request: request("one", "a"), End: at + testLease.Microseconds(), rules: call.rules, slotless: true}) || result.Decisions[1].Verdict != Unknown {
		t.Errorf("decoded as %+v, %v", result, err)
	}
}

func TestDecodeReplyOfAnotherForm(t *testing.T) {
	t.Parallel()
	call := replyCall(t, false)
	for name, reply := range map[string][]any{
		"nothing":               nil,
		"an event too few":      list(int64(1), list(), numbers(1, 0, 1), int64(1)),
		"an event too many":     list(int64(1), list(), numbers(1, 0, 1), int64(1), int64(1), int64(1)),
		"time as text":          list("1", list(), numbers(1, 0, 1), int64(1), int64(1)),
		"no pauses":             list(int64(1), nil, numbers(1, 0, 1), int64(1), int64(1)),
		"half a pause":          list(int64(1), list("#a"), numbers(1, 0, 1), int64(1), int64(1)),
		"a pause of numbers":    list(int64(1), numbers(1, 2), numbers(1, 0, 1), int64(1), int64(1)),
		"a pause without end":   list(int64(1), list("#a", "soon"), numbers(1, 0, 1), int64(1), int64(1)),
		"answers as text":       list(int64(1), list(), "1", int64(1), int64(1)),
		"part of an answer":     list(int64(1), list(), numbers(1, 0), int64(1), int64(1)),
		"an answer of text":     list(int64(1), list(), list("1", "0", "1"), int64(1), int64(1)),
		"verdict 0":             list(int64(1), list(), numbers(0, 0, 1), int64(1), int64(1)),
		"verdict 9":             list(int64(1), list(), numbers(9, 0, 1), int64(1), int64(1)),
		"limit 0 denies":        list(int64(1), list(), numbers(2, 0, 1), int64(1), int64(1)),
		"limit 4 of 3 denies":   list(int64(1), list(), numbers(3, 4, 1), int64(1), int64(1)),
		"answer 0":              list(int64(1), list(), numbers(1, 0, 1), int64(1), int64(0)),
		"answer 2 of 1":         list(int64(1), list(), numbers(1, 0, 1), int64(2), int64(1)),
		"a number of an answer": list(int64(1), list(), numbers(1, 0, 1), "1", int64(1)),
	} {
		_, err := call.decode(reply)
		testkit.Fails(t, name, err, script.ErrReply)
	}
}

// FuzzReply decodes any values as the script's reply. The input is JSON. Its whole numbers stand for integers of Redis.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		`[1700000000000000, ["#a", "1700000001000000"], [1, 0, 30000000, 2, 3, 1500], 1, 2]`,
		`[1, [], [3, 1, 0, 4, 0, 5, 5, 0, 5, 6, 0, 0, 7, 0, 0, 8, 0, 0], 1, 6]`,
		`[1, [], [1, 0], 1, 1]`, `[1, null, [], 1, 1]`, `["1", [], [1, 0, 1], 1, 1]`, `[1, ["#a", "nan"], [1, 0, 1], 1, 1]`,
		`[-1, ["#a", "inf"], [1, 0, -9223372036854775808], 1, 1]`, `[1, [], [2, 9223372036854775807, 1], 1, 1]`, `[]`, `[[], [], [], [], []]`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, forward bool) {
		var values []any
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		decoder.UseNumber()
		if decoder.Decode(&values) != nil {
			return
		}
		call := replyCall(t, forward)
		result, err := call.decode(redisValues(values))
		if err != nil {
			testkit.Fails(t, "error", err, script.ErrReply)
			return
		}
		testkit.Require(t, len(result.Decisions) == len(call.requests), "got %d decisions, want %d", len(result.Decisions), len(call.requests))
		for i, d := range result.Decisions {
			testkit.Require(t, d.Verdict >= Admitted && d.Verdict <= Unknown, "verdict %d", d.Verdict)
			if denied := d.Verdict == Denied || d.Verdict == ExceedsCapacity; denied != (len(d.Node.Limits) > 0) {
				t.Fatalf("verdict %d by %+v", d.Verdict, d.Node)
			}
			if d.Lease.End != 0 && d.Lease.Request != call.requests[i] {
				t.Fatalf("lease of %+v for %+v", d.Lease.Request, call.requests[i])
			}
		}
	})
}

func redisValues(values []any) []any {
	converted := make([]any, len(values))
	for i, value := range values {
		switch v := value.(type) {
		case json.Number:
			if n, err := v.Int64(); err == nil {
				converted[i] = n
			} else {
				converted[i] = v.String()
			}
		case []any:
			converted[i] = redisValues(v)
		default:
			converted[i] = v
		}
	}
	return converted
}

func TestArgumentsNameEachLogOnce(t *testing.T) {
	t.Parallel()
	settings := Settings{Tree: newTree(t, "10/1h", "5/1h", "a.b=1/1h,none=none"), Lease: time.Second, Retention: time.Minute}
	requests := []Request{request("1", "a"), request("2", "a.b"), request("3", "a").withCost(2), derived(4, start, "none"), request("5", "a")}
	call := newDecideCall(keysOf("p"), settings, Compile(limits.Ruleset{Tree: settings.Tree, Position: limits.Position{Generation: 7, Revision: 8}}), "nonce", requests)
	wantKeys := []string{
		"{p}:calls", "{p}:leased", "{p}:done", "{p}:message", "{p}:pauses", "{p}:limits", "{p}:taken",
		"{p}:absent", "{p}:log", "{p}:log:a", "{p}:log:a.b",
	}
	testkit.EqualDeeply(t, call.keys, wantKeys, "keys")
	version := "1814903193600965"
	want := []any{
		"nonce", int64(1000000), int64(60000000), false, int64(7), uint64(8), true, []byte{0, 1, 0, 2, 0, 3, 0, 4, 0, 1}, int64(0), "", "",
		"3 log 1 10 3600000000 10 0 log 1 5 3600000000 5 0 log 1 1 3600000000 1 0 " +
			"4 1 0 2 1 2 1 0 3 1 2 3 2 0 2 1 2 1 0 1 1 ",
		"",
		"1", "2", "3", "EVENTS:4\n1814903193600968", "5", version, version, version, "", version,
	}
	testkit.EqualDeeply(t, call.arguments, want, "arguments")
}

func TestStamp(t *testing.T) {
	t.Parallel()
	of := func(stream string, sequence uint64, stored time.Time) int64 {
		return Message{Stream: stream, Sequence: sequence, Stored: stored}.version()
	}
	versions := map[string]int64{
		"one":             of("EVENTS", 1, start),
		"next":            of("EVENTS", 2, start),
		"a stream anew":   of("EVENTS", 1, start.Add(time.Millisecond)),
		"another stream":  of("OTHERS", 1, start),
		"the year 2200":   of("EVENTS", 1, time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)),
		"the last number": of("EVENTS", 1<<64-1, start),
	}
	seen := make(map[int64]string)
	for name, version := range versions {
		testkit.Check(t, version > 0 && int64(float64(version)) == version && version < 1<<53,
			"%s: %d is no number that a score holds exactly", name, version)
		if other, taken := seen[version]; taken {
			t.Errorf("%s and %s have the version %d", name, other, version)
		}
		seen[version] = name
	}
	testkit.Equal(t, of("EVENTS", 1, start.Add(time.Microsecond)), versions["one"], "version within a millisecond")
}

func TestWhichBatchesMayBeEvaluatedAsOne(t *testing.T) {
	t.Parallel()
	plain := newPlan(t, "10/1h+3/1m", "5/1h", "a.b=1/1h,free=none")
	variant := func(change func(*limits.Plan)) limits.Plan {
		plan := plain
		change(&plan)
		return plan
	}
	one := []Request{request("1", "a")}
	for name, c := range map[string]struct {
		plan     limits.Plan
		settings Settings
		requests []Request
		want     string
		shadow   string
	}{
		"an event":          {plan: plain, requests: one, want: "1 1 2 1 2 10 3600000000 3 60000000 2 1 5 3600000000 1 2 1 2 "},
		"some of two kinds": {plan: plain, requests: append(several(3, "e", "b"), request("2", "free")), want: "1 1 2 1 2 10 3600000000 3 60000000 2 1 5 3600000000 2 2 1 2 1 1 "},
		"a deeper path":     {plan: plain, requests: []Request{request("1", "a.b")}, want: "1 1 3 1 2 10 3600000000 3 60000000 2 1 5 3600000000 3 1 1 3600000000 1 3 1 2 3 "},
		"no global limit":   {plan: variant(func(p *limits.Plan) { p.Global = nil }), requests: one, want: "0 1 1 1 1 5 3600000000 1 1 1 "},
		"no limit at all":   {plan: limits.Plan{}, requests: one, want: "0 1 0 1 0 "},
		"keys without a limit": {
			plan: plain, requests: []Request{request("1", "a").ofKey("x"), request("2", "a").ofKey("y"), request("3", "a")},
			want: "1 1 2 1 2 10 3600000000 3 60000000 2 1 5 3600000000 1 2 1 2 ",
		},
		"keys with a limit": {
			plan: newPlan(t, "10/1h", "none", "a@key=1/1h"), requests: []Request{request("1", "a").ofKey("x"), request("2", "a").ofKey("y"), request("3", "a").ofKey("x"), request("4", "a"), request("5", "b").ofKey("x")},
			want: "1 1 3 1 1 10 3600000000 2 1 1 3600000000 3 1 1 3600000000 4 2 1 2 2 1 3 1 1 1 1 ",
		},
		"shadow limits": {
			plan: plain, settings: Settings{Shadow: newTree(t, "7/1m", "none", "b=2/1m")}, requests: append(several(2, "e", "b"), one...),
			want:   "1 1 3 1 2 10 3600000000 3 60000000 2 1 5 3600000000 5 1 5 3600000000 2 2 1 2 2 1 5 ",
			shadow: "1 4 2 3 1 7 60000000 4 1 2 60000000 2 2 3 4 1 3 ",
		},
		"nothing":             {plan: plain},
		"a cost of 2":         {plan: plain, requests: append(several(3, "e", "b"), request("1", "a").withCost(2))},
		"a question":          {plan: plain, requests: []Request{request("1", "a").withCost(0)}},
		"forwarded denials":   {plan: plain, settings: Settings{Forward: true}, requests: one},
		"another algorithm":   {plan: variant(func(p *limits.Plan) { p.Category = parseLimits(t, "token:5/1h") }), requests: one},
		"a log beside it":     {plan: variant(func(p *limits.Plan) { p.Category = parseLimits(t, "5/1h+token:5/1h") }), requests: one},
		"a limit of 0":        {plan: variant(func(p *limits.Plan) { p.Category = parseLimits(t, "0/1h") }), requests: one},
		"a limit of 0 aside":  {plan: newPlan(t, "10/1h", "5/1h", "a.b=0/1h"), requests: []Request{request("1", "a"), request("2", "a.b")}},
		"a guarantee":         {plan: variant(func(p *limits.Plan) { p.Guarantees = []limits.Guarantee{{Path: "x", Slots: 1}} }), requests: one},
		"a shadow of another": {plan: plain, settings: Settings{Shadow: newTree(t, "token:1/1h", "none", "")}, requests: one},
	} {
		tree := testkit.Must(limits.NewTree(c.plan))(t)
		c.settings.Tree = tree
		call := newDecideCall(keysOf("p"), c.settings, Compile(c.settings.rules()), "nonce", c.requests)
		testkit.Equal(t, call.arguments[9], any(c.want), "%s: evaluated as one", name)
		testkit.Equal(t, call.arguments[10], any(c.shadow), "%s: evaluated as one in the shadow", name)
	}
}
