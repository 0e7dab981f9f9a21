//go:build histories

package store

import (
	"bufio"
	"cmp"
	"encoding/gob"
	"encoding/json"
	goflag "flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var historyFrom = goflag.String("history.from", "", "the folder with the calls that the soak has recorded; TestRecordedHistory makes calls itself if it is empty")

const (
	checkedAtOnce = 1000            // calls in one search, and in one picture
	unwritten     = 5 * time.Second // how long appendfsync everysec may leave an answered call unwritten
)

// readHistory is what the processes of a soak have recorded.
type readHistory struct {
	*history

	begins, ends map[string]recorded // by call
	clients      map[string]int      // by process
	rules        map[limits.Position]*Rules
	losses       []loss
}

// loss is a kill of Redis.
type loss struct{ From, Upto time.Time }

// recordCalls makes a round of the calls of TestHistory, and returns a folder with what a soak writes.
func recordCalls(t *testing.T) (folder string) {
	folder = t.TempDir()
	recording = newRecorder(folder)
	defer func() { recording = nil }()
	server := servertest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	proxy := servertest.StartProxy(t, server.Addr)
	h := &history{prefix: "recorded", shared: true, seed: rand.Uint64N(1_000_000), began: time.Now(), recent: make(map[string][]Request)}
	h.run(t, server, proxy, *historyFor)
	runner := h.client(t, 0, proxy).store.d.runner
	var runs []string
	for _, name := range testkit.Must(runner.Names(t.Context(), "listing the runs"))(t) {
		if call, isMark := strings.CutPrefix(name, "history:"); isMark {
			at := testkit.Must(runner.Options().Client.Get(t.Context(), runner.Key(name)).Result())(t)
			runs = append(runs, at+" "+call)
		}
	}
	slices.Sort(runs) // times of one length
	testkit.NoError(t, os.WriteFile(filepath.Join(folder, "runs"), []byte(strings.Join(runs, "\n")+"\n"), 0o600))
	testkit.NoError(t, os.WriteFile(filepath.Join(folder, "losses.json"), []byte("[]"), 0o600))
	return folder
}

// TestRecordedHistory checks the calls of the workers of a soak. The append-only file of Redis has the order in which Redis ran them, and the time
// of each, so the search never has to try a second order.
func TestRecordedHistory(t *testing.T) {
	h := &readHistory{
		history: &history{prefix: "soak"}, begins: make(map[string]recorded), ends: make(map[string]recorded),
		clients: make(map[string]int), rules: make(map[limits.Position]*Rules),
	}
	if *historyFrom == "" {
		*historyFrom = recordCalls(t)
	}
	began := time.Now()
	for _, path := range testkit.Must(filepath.Glob(filepath.Join(*historyFrom, "*.calls")))(t) {
		h.read(t, path)
	}
	testkit.NoError(t, json.Unmarshal([]byte(testkit.Text(t, filepath.Join(*historyFrom, "losses.json"))), &h.losses))
	operations := h.inOrder(t)
	for number := 0; len(operations) > 0; number++ {
		part := operations[:min(checkedAtOnce, len(operations))]
		operations = operations[len(part):]
		h.explain(t, part, filepath.Join(*historyFrom, fmt.Sprintf("calls-%d.html", number)))
		h.reached = h.reached.replay.state
	}
	t.Logf("%d calls of %d processes were checked in %v", len(h.begins), len(h.clients), time.Since(began).Round(time.Millisecond))
}

// read reads the file of one process, which may have been killed while it wrote the last record.
func (h *readHistory) read(t *testing.T, path string) {
	file := testkit.Must(os.Open(path))(t)
	defer func() { _ = file.Close() }()
	h.clients[strings.TrimSuffix(filepath.Base(path), ".calls")] = len(h.clients)
	decoder := gob.NewDecoder(bufio.NewReader(file))
	for {
		var r recorded
		if decoder.Decode(&r) != nil {
			return
		}
		switch {
		case r.Settings != nil:
			h.compile(t, r)
		case r.Ends:
			h.ends[r.Call] = r
		default:
			h.begins[r.Call] = r
			if h.began.IsZero() || r.Time.Before(h.began) {
				h.began = r.Time
			}
		}
	}
}

// compile makes the limits of one position.
func (h *readHistory) compile(t *testing.T, r recorded) {
	testkit.Require(t, !r.Settings.Forward, "the calls of shadow limits are not recorded in full")
	if h.rules[r.Rules] != nil {
		return
	}
	levels := r.InForce.Levels
	plan := limits.Plan{Global: levels[0].Limits, Category: levels[1].Limits, Guarantees: r.InForce.Guarantees}
	for _, level := range levels[2:] {
		rules, _ := limits.ParseRules(level.Level + "=none")
		rules[0].Limits = level.Limits
		plan.Rules = append(plan.Rules, rules[0])
	}
	rules := Compile(limits.Ruleset{Tree: testkit.Must(limits.NewTree(plan))(t), Mutes: r.InForce.Mutes, Position: r.Rules})
	h.rules[r.Rules] = rules
	h.first = Compile(limits.Ruleset{Tree: rules.Tree}) // nothing is in force before the first call
	s := r.Settings
	h.settings = Settings{Tree: rules.Tree, Lease: s.Lease, Retention: s.Retention, PairTTL: s.PairTTL, Flap: s.Flap}
}

// run is one run of a script, as the append-only file has it.
type run struct {
	call string
	at   int64
}

// inOrder returns the calls in the order in which Redis ran them. A call whose reply was lost may have run at any time after its begin, and
// several times.
func (h *readHistory) inOrder(t *testing.T) (operations []porcupine.Operation) {
	h.reached = &historyState{replay: &historyReplay{history: h.history}}
	var runs []run
	times := make(map[string]int) // of runs by call
	for line := range strings.Lines(testkit.Text(t, filepath.Join(*historyFrom, "runs"))) {
		var r run
		testkit.Must(fmt.Sscan(line, &r.at, &r.call))(t)
		runs = append(runs, r)
		times[r.call]++
	}
	ran := make(map[string]bool) // nonces
	latest := time.Duration(0)
	for i, r := range runs {
		call := h.call(r, times[r.call] > 1)
		if call.kind == callFinish || call.kind == callResolve { // a repetition gets the first answer
			call.unheard, ran[call.nonce] = call.unheard || ran[call.nonce], true
		}
		if call.place = i + 1; call.unheard {
			call.ended = math.MaxInt64
		}
		if call.ended < latest {
			t.Errorf("a call had ended %v before a call began that Redis ran earlier: %v", latest-call.ended, call)
		}
		latest = max(latest, call.began)
		operations = append(operations, porcupine.Operation{ClientId: call.client, Input: call, Output: call, Call: int64(call.began), Return: int64(call.ended)})
	}
	h.checkUnrun(t, times, time.UnixMicro(runs[len(runs)-1].at))
	return operations
}

// call returns the call that one run of a script belongs to.
func (h *readHistory) call(r run, isRepeated bool) *recordedCall {
	begin, answer := h.begins[r.call], h.ends[r.call]
	process, _, _ := strings.Cut(r.call, "-")
	call := &recordedCall{
		kind: kindOfCall(begin.Kind), client: h.clients[process], family: "all", began: begin.Time.Sub(h.began), ended: answer.Time.Sub(h.began),
		rules: cmp.Or(h.rules[begin.Rules], &Rules{Ruleset: limits.Ruleset{Position: begin.Rules}}), nonce: begin.Nonce,
		requests: begin.Requests, restored: begin.Admissions, clock: begin.Clock,
		result: BatchResult{At: r.at, Decisions: answer.Decisions}, leases: begin.Leases, flags: answer.Flags, lasts: begin.Lasts, seen: begin.Seen,
		unheard: answer.Call == "" || answer.Err != "",
	}
	switch call.kind {
	case callExtend:
		call.result.Decisions = extensions(answer.Leases)
	case callResolve:
		call.requests, call.result.Decisions = withoutWaits(begin.Requests, answer.Decisions)
	}
	for i := range call.leases {
		lease := &call.leases[i]
		lease.slotless = lease.Request.Slotless || lease.Resolving
		lease.rules = cmp.Or(h.rules[begin.Trees[i]], h.first)
	}
	if isRepeated { // which run gave the answer is known only if the answer has its time
		call.unheard = call.unheard || answer.At != 0 && answer.At != r.at || call.kind == callRefund || call.kind == callPut
	}
	return call
}

// withoutWaits leaves out the resolved events that have to wait. That has no effect, and may be due to a firing event that waits for a slot, which
// the in-memory store does not know of.
func withoutWaits(requests []Request, decisions []Decision) (left []Request, answers []Decision) {
	if len(decisions) == 0 {
		return requests, nil
	}
	for i, d := range decisions {
		if d.Verdict != Leased {
			left, answers = append(left, requests[i]), append(answers, d)
		}
	}
	return left, answers
}

// checkUnrun wants a run of each call that was answered before the last run. With appendfsync everysec, a Redis that is killed may lose its
// newest runs.
func (h *readHistory) checkUnrun(t *testing.T, times map[string]int, last time.Time) {
	lost := 0
	for id, answer := range h.ends {
		if times[id] > 0 || answer.Err != "" || answer.Time.After(last) {
			continue
		}
		lost++
		if !slices.ContainsFunc(h.losses, func(l loss) bool {
			return answer.Time.After(l.From.Add(-unwritten)) && answer.Time.Before(l.Upto)
		}) {
			t.Errorf("Redis answered a call and has never run it: %+v", h.begins[id])
		}
	}
	t.Logf("%d answered calls were lost in kills of Redis", lost)
}
