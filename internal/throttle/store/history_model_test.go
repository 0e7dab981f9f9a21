package store

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// kindOfCall is a method of the store.
type kindOfCall string

const (
	callDecide  kindOfCall = "decide"
	callAdopt   kindOfCall = "adopt" // the first decision by newer limits
	callStale   kindOfCall = "decide by older limits"
	callFinish  kindOfCall = "finish"
	callRefund  kindOfCall = "refund"
	callRestore kindOfCall = "restore" // admissions of a client without Redis

	// Calls that only the soak records.
	callExtend  kindOfCall = "extend"
	callResolve kindOfCall = "resolve"
	callPut     kindOfCall = "put in force"
)

// recordedCall is a call with its answer.
type recordedCall struct {
	kind         kindOfCall
	client       int
	family       string // the first level of the categories; "" for all
	began, ended time.Duration
	rules        *Rules

	nonce    string
	requests []Request
	restored []Admission
	clock    time.Time // of the client, at the call
	result   BatchResult
	unheard  bool     // the reply was lost, or a repetition answered, whose answer may differ
	tried    []*Rules // if it is unheard: by which of these it decided is not known
	place    int      // among the calls of its family with At, in the order of At
	leases   []Lease
	flags    []bool
	lasts    time.Duration   // of an extension
	seen     limits.Position // that an operator replaces
	inMemory []Decision      // the latest other answer of the in-memory store
}

func callOf(o porcupine.Operation) *recordedCall {
	call, _ := o.Input.(*recordedCall)
	return call
}

// check fails with a picture if no order of the calls explains the answers. It returns how long it took.
func (h *history) check(t *testing.T) (took time.Duration) {
	var operations []porcupine.Operation
	for _, calls := range h.byFamily() {
		for _, call := range calls {
			operations = append(operations, porcupine.Operation{ClientId: call.client, Input: call, Output: call, Call: int64(call.began), Return: int64(call.ended)})
		}
	}
	took = h.explain(t, operations, filepath.Join(os.TempDir(), fmt.Sprintf("notifier-%s-%d.html", h.prefix, os.Getpid())))
	t.Logf("%d calls checked in %v", len(operations), took.Round(time.Millisecond))
	return took
}

// explain looks for an order of the calls.
func (h *history) explain(t *testing.T, operations []porcupine.Operation, picture string) (took time.Duration) {
	began := time.Now()
	model := h.model()
	result, info := porcupine.CheckOperationsVerbose(model, operations, historyCheckedIn)
	took = time.Since(began)
	if result == porcupine.Ok {
		return took
	}
	for _, part := range info.PartialLinearizationsOperations() {
		h.log(t, operations, slices.MaxFunc(part, func(a, b []porcupine.Operation) int { return len(a) - len(b) }))
	}
	testkit.NoError(t, porcupine.VisualizePath(model, info, picture))
	t.Fatalf("no order of the calls explains their answers (%s): see %s", result, picture)
	return took
}

// log logs the end of an order of calls of one family, and the calls that do not follow.
func (h *history) log(t *testing.T, all, order []porcupine.Operation) {
	const shown = 4
	placed := make(map[any]bool)
	for _, o := range order {
		placed[o.Input] = true
	}
	family := callOf(order[0]).family
	left := slices.DeleteFunc(slices.Clone(all), func(o porcupine.Operation) bool { return placed[o.Input] || callOf(o).family != family })
	if len(left) == 0 {
		return
	}
	slices.SortFunc(left, func(a, b porcupine.Operation) int {
		if h.reached != nil { // the order of all calls is known
			return callOf(a).place - callOf(b).place
		}
		return int(a.Call - b.Call)
	})
	for _, o := range order[max(0, len(order)-shown):] {
		t.Logf("client %d from %v to %v: %v", o.ClientId, time.Duration(o.Call), time.Duration(o.Return), o.Input)
	}
	for _, o := range left[:min(shown, len(left))] {
		t.Logf("does not follow: client %d from %v to %v: %v", o.ClientId, time.Duration(o.Call), time.Duration(o.Return), o.Input)
	}
}

// historyState is the state after some of the calls. It is replayed from the calls, and only the newest state is kept replayed.
type historyState struct {
	before *historyState // nil: the state without a call
	call   *recordedCall
	count  int // of calls
	place  int // of the newest call with a place
	replay *historyReplay
}

// historyReplay is the store of one family.
type historyReplay struct {
	history *history
	store   *Memory
	inForce limits.Position
	clock   time.Time
	state   *historyState // of the store; nil: none
}

func (h *history) model() porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
			families := make(map[string][]porcupine.Operation)
			for _, operation := range all {
				family := callOf(operation).family
				families[family] = append(families[family], operation)
			}
			for _, family := range slices.Sorted(maps.Keys(families)) {
				parts = append(parts, families[family])
			}
			return parts
		},
		Init: func() any {
			if h.reached != nil {
				return h.reached
			}
			return &historyState{replay: &historyReplay{history: h}}
		},
		Step: func(state, input, _ any) (bool, any) {
			s, call := as[*historyState](state), as[*recordedCall](input)
			next := &historyState{before: s, call: call, count: s.count + 1, place: s.place, replay: s.replay}
			if call.place > 0 {
				if call.place != s.place+1 { // the times of Redis order the decisions
					return false, nil
				}
				next.place = call.place
			}
			return s.replay.step(s, next), next
		},
		// Porcupine compares states after the same calls. The order of the decisions is the same too, and so are all answers.
		Equal:             func(a, b any) bool { return as[*historyState](a).count == as[*historyState](b).count },
		DescribeOperation: func(input, _ any) string { return as[*recordedCall](input).String() },
	}
}

// as returns a value that Porcupine holds, which has one type only.
func as[T any](value any) T {
	typed, _ := value.(T)
	return typed
}

// step makes the call of the next state, and returns whether the answer is the recorded one.
func (r *historyReplay) step(s, next *historyState) bool {
	if r.state != s {
		r.store, r.inForce = NewMemory(r.history.settings, func() time.Time { return r.clock }, nil), r.history.first.Position
		r.store.AdoptRules(r.history.first)
		r.store.KeepPairs()
		var calls []*recordedCall
		for ; s.before != nil; s = s.before {
			calls = append(calls, s.call)
		}
		for _, call := range slices.Backward(calls) {
			r.answers(call)
		}
	}
	r.state = nil
	if r.answers(next.call) {
		r.state = next
	}
	return r.state != nil
}

// answers makes a call to the in-memory store, and returns whether the answer is the recorded one.
func (r *historyReplay) answers(call *recordedCall) bool {
	if call.result.At != 0 {
		r.clock = time.UnixMicro(call.result.At)
	}
	switch call.kind {
	case callStale:
		return call.rules.Position.Before(r.inForce)
	case callFinish:
		return slices.Equal(r.store.Finish(call.leases), call.flags) || call.unheard
	case callRefund:
		return slices.Equal(r.store.Refund(call.leases), call.flags) || call.unheard
	case callRestore:
		end := r.store.restore(call.restored, call.clock)
		return call.unheard || end == call.result.At+r.history.settings.Lease.Microseconds()
	case callExtend:
		return call.answered(extensions(r.store.Extend(call.leases, call.lasts)))
	case callResolve:
		decisions := r.store.Resolve(call.requests)
		r.store.times.name(call.result.At, call.nonce)
		return call.answered(decisions)
	case callPut:
		put := r.inForce == call.seen
		if put {
			r.inForce = call.rules.Position
		}
		return call.unheard || put == call.flags[0]
	}
	if !slices.Contains(call.tried, r.store.rules) && !r.adopts(call) {
		return false
	}
	result := r.store.DecideOnce(call.nonce, call.requests)
	return call.answered(result.Decisions) && (call.unheard || result.At == call.result.At)
}

// adopts puts the limits of a call in force. It returns false if newer limits are in force. A call about no event puts nothing in force.
func (r *historyReplay) adopts(call *recordedCall) bool {
	if call.rules.Position.Before(r.inForce) {
		return false
	}
	if len(call.requests) > 0 {
		r.inForce = call.rules.Position
		if r.store.rules != call.rules {
			r.store.AdoptRules(call.rules)
		}
	}
	return true
}

// answered returns whether the answer of the in-memory store is the recorded one.
func (c *recordedCall) answered(decisions []Decision) bool {
	if c.unheard || slices.EqualFunc(decisions, c.result.Decisions, sameDecision) {
		return true
	}
	c.inMemory = decisions
	return false
}

// extensions are extended leases as answers.
func extensions(leases []Lease) (decisions []Decision) {
	for _, lease := range leases {
		decisions = append(decisions, Decision{Lease: lease})
	}
	return decisions
}

// name gives the call of that time its nonce, by which a repetition of the call finds what it granted.
func (t *timeline) name(at int64, nonce string) {
	for i := range t.calls {
		if t.calls[i].at == at {
			t.calls[i].nonce = nonce
		}
	}
}

func sameDecision(a, b Decision) bool { return a.describe() == b.describe() }

// describe is the part of a decision that both stores return. Redis returns microseconds.
func (d Decision) describe() string {
	return fmt.Sprint(d.Verdict, " ", d.Node.Path, " ", d.Limit, " ", d.Wait.Truncate(time.Microsecond), " ", d.Lease.End, " ", d.InDoubt)
}

// String lists the answers, or those alone that differ in the in-memory store.
func (c *recordedCall) String() string {
	text := fmt.Sprintf("%s by limits %d", c.kind, c.rules.Position.Revision)
	for i, request := range c.requests {
		if c.differs(i) {
			text += fmt.Sprintf("; %s (message %d, cost %d)%s", request.ID, request.Message.Sequence, request.Cost, c.answer(i))
		}
	}
	for i, lease := range c.leases {
		if c.differs(i) {
			text += fmt.Sprintf("; %s until %d%s", lease.Request.ID, lease.End, c.answer(i))
		}
	}
	return fmt.Sprintf("%s; %v at %d", text, c.flags, c.result.At)
}

// differs returns false if the in-memory store gave other answers, but not this one.
func (c *recordedCall) differs(i int) bool {
	return i >= len(c.inMemory) || i >= len(c.result.Decisions) || !sameDecision(c.inMemory[i], c.result.Decisions[i])
}

// answer is the text of one answer, and of the answer of the in-memory store if that was another one.
func (c *recordedCall) answer(i int) (text string) {
	if i < len(c.result.Decisions) {
		text = ": " + c.result.Decisions[i].describe()
	}
	if i < len(c.inMemory) {
		text += " (in memory: " + c.inMemory[i].describe() + ")"
	}
	return text
}
