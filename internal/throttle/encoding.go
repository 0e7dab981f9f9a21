package throttle

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// bucketIndex numbers the buckets of a script call in the order in which they are first named, and builds what read_buckets
// in lib/buckets.lua reads.
type bucketIndex struct {
	names     keys
	keys      []string // the script's KEYS
	arguments []any
	index     map[string]int
	limits    []limitAt // by the number of the limit, from 1, as the scripts count them
}

// limitAt is a limit and whose it is.
type limitAt struct {
	node  limits.Node
	limit limits.Limit
}

func newBucketIndex(names keys, fixed ...string) *bucketIndex {
	return &bucketIndex{names: names, keys: fixed, index: make(map[string]int)}
}

// of is a bucket's number, from 1.
func (x *bucketIndex) of(b *bucket, tree *routes, set string) int {
	key := x.names.key(set + b.name)
	number, known := x.index[key]
	if known {
		return number
	}
	number = len(x.index) + 1
	x.index[key] = number
	x.keys = append(x.keys, key)
	x.arguments = append(x.arguments, b.definition...)
	for _, limit := range b.limits {
		x.limits = append(x.limits, limitAt{b.node, limit})
	}
	if !b.guaranteed() {
		x.arguments = append(x.arguments, 0)
		return number
	}
	x.arguments = append(x.arguments, len(tree.guarantees))
	for _, guarantee := range tree.guarantees {
		x.keys = append(x.keys, x.names.key(set+"guarantee:"+guarantee.Path))
		x.arguments = append(x.arguments, guarantee.Slots)
	}
	return number
}

// appendRoute appends the number of a category's guarantee, and the path.
func (x *bucketIndex) appendRoute(arguments []any, tree *routes, r *route, set string) []any {
	return x.appendPath(append(arguments, tree.guaranteeNumber(r.guarantee)), tree, r, set)
}

// appendPath appends the number of a category's buckets, and the number of each, as read_path reads them.
func (x *bucketIndex) appendPath(arguments []any, tree *routes, r *route, set string) []any {
	arguments = append(arguments, len(r.buckets))
	for i := range r.buckets {
		arguments = append(arguments, x.of(&r.buckets[i], tree, set))
	}
	return arguments
}

// appendBuckets appends the buckets that have been named.
func (x *bucketIndex) appendBuckets(arguments []any) []any {
	arguments = append(arguments, len(x.index))
	return append(arguments, x.arguments...)
}

// Sets of limits, as their keys begin.
const (
	inForce  = ""
	inShadow = "shadow:"
)

// decideCall is one call of decide.lua: its arguments, and what is needed to read the reply.
type decideCall struct {
	keys      []string
	arguments []any
	requests  []Request
	rules     *ruleset
	lease     time.Duration
	forward   bool
	limits    []limitAt
}

// ask is what requests of one category and cost have in common.
type ask struct {
	category string
	cost     int
}

// askIndex numbers what is asked in a call, in the order in which it is first asked.
type askIndex struct {
	rules     *ruleset
	buckets   *bucketIndex
	index     map[ask]int
	arguments []any // as decide.lua reads them
	inForce   fastpath
	shadow    fastpath
}

// of is the number of what a request asks, from 1.
func (x *askIndex) of(request Request) int {
	this := ask{request.Category, request.Cost}
	number, known := x.index[this]
	if known {
		return number
	}
	number = len(x.index) + 1
	x.index[this] = number
	x.arguments = append(x.arguments, request.Cost)
	x.ask(request, x.rules.tree, inForce, &x.inForce)
	if x.rules.shadow != nil {
		x.ask(request, x.rules.shadow, inShadow, &x.shadow)
	}
	return number
}

func (x *askIndex) ask(request Request, tree *routes, set string, w *fastpath) {
	r := tree.route(request.Category)
	w.add(x.buckets, tree, set, r, request.Cost)
	x.arguments = x.buckets.appendRoute(x.arguments, tree, r, set)
}

// definitions is the argument with buckets and asks.
func (x *askIndex) definitions() string {
	return words(append(append(x.buckets.appendBuckets(nil), len(x.index)), x.arguments...))
}

// fastpath is what fastpath.lua reads of one set of limits.
type fastpath struct {
	possible bool // that may evaluate the requests
	begun    bool
	atRoot   bool // all paths begin with the root's log
	first    int  // number of the first log's first limit
	count    int  // of the logs
	logs     []any
	asks     int
	paths    []any
}

// add takes note of an ask.
func (w *fastpath) add(buckets *bucketIndex, tree *routes, set string, r *route, cost int) {
	if !w.begun {
		w.possible, w.begun, w.atRoot, w.first = true, true, true, len(buckets.limits)+1
	}
	w.possible = w.possible && r.fastpath && cost == 1
	w.atRoot = w.atRoot && len(r.buckets) > 0 && r.buckets[0].node.Path == ""
	w.asks++
	w.paths = append(w.paths, len(r.buckets))
	for i := range r.buckets {
		before := len(buckets.index)
		number := buckets.of(&r.buckets[i], tree, set)
		if number > before {
			w.count++
			w.logs = append(append(w.logs, number), r.buckets[i].fastpath...)
		}
		w.paths = append(w.paths, number)
	}
}

// argument is "" where the requests are not to be evaluated as one.
func (w *fastpath) argument() string {
	if !w.possible {
		return ""
	}
	atRoot := 0
	if w.atRoot {
		atRoot = 1
	}
	arguments := append([]any{atRoot, w.first, w.count}, w.logs...)
	return words(append(append(arguments, w.asks), w.paths...))
}

func newDecideCall(names keys, s Settings, rules *ruleset, nonce string, requests []Request) *decideCall {
	buckets := newBucketIndex(names, names.calls, names.leased, names.done, names.message, names.pauses,
		names.limits, names.taken, names.shadowTaken(rules))
	asks := askIndex{rules: rules, buckets: buckets, index: make(map[ask]int)}
	var (
		askNumbers = make([]byte, 0, 2*len(requests))
		eventKeys  = make([]any, 0, 2*len(requests))
		versions   []any // nil if all are ""
	)
	for i, request := range requests {
		askNumbers = binary.BigEndian.AppendUint16(askNumbers, uint16(asks.of(request))) //nolint:gosec // MaxBatch is far below its end
		eventKey, version := request.keyAndVersion()
		eventKeys = append(eventKeys, eventKey)
		if version != "" {
			if versions == nil {
				versions = slices.Repeat([]any{""}, len(requests))
			}
			versions[i] = version
		}
	}
	forward, versioned, shadowKept := 0, 0, int64(0)
	if s.Forward {
		forward = 1
	}
	if rules.shadow != nil {
		shadowKept = rules.shadowKept()
	}
	fast, fastShadow := asks.inForce.argument(), asks.shadow.argument()
	if s.Forward || rules.shadow != nil && fastShadow == "" {
		fast, fastShadow = "", ""
	}
	if versions != nil {
		versioned = 1
	}
	arguments := make([]any, 0, 12+len(eventKeys)+len(versions))
	arguments = append(arguments, nonce, s.Lease.Microseconds(), s.Retention.Microseconds(), forward,
		rules.Generation, rules.Revision, versioned, askNumbers, shadowKept, fast, fastShadow, asks.definitions())
	arguments = append(append(arguments, eventKeys...), versions...)
	return &decideCall{
		keys: buckets.keys, arguments: arguments, requests: requests, rules: rules, lease: s.Lease, forward: s.Forward,
		limits: buckets.limits,
	}
}

// words makes one argument of several, each a number or a name, with a blank behind it.
func words(arguments []any) string {
	text := make([]byte, 0, 8*len(arguments))
	for _, argument := range arguments {
		switch v := argument.(type) {
		case string:
			text = append(text, v...)
		case int:
			text = strconv.AppendInt(text, int64(v), 10)
		case int64:
			text = strconv.AppendInt(text, v, 10)
		}
		text = append(text, ' ')
	}
	return string(text)
}

// Shape of the reply of decide.lua.
const (
	replyHead   = 3 // time, pauses, answers
	answerParts = 3 // verdict, limit, time
)

// decode reads the script's reply strictly: a reply of another shape comes from another script.
func (c *decideCall) decode(reply []any) (BatchResult, error) {
	events := len(c.requests)
	expected := replyHead + events
	if c.rules.shadow != nil {
		expected += events
	}
	if len(reply) != expected {
		return BatchResult{}, fmt.Errorf("%w: %d values for %d events", script.ErrReply, len(reply), events)
	}
	at, isNumber := reply[0].(int64)
	if !isNumber {
		return BatchResult{}, fmt.Errorf("%w: time is %T", script.ErrReply, reply[0])
	}
	pauses, err := decodePauses(reply[1], at)
	if err != nil {
		return BatchResult{}, err
	}
	answers, err := c.decodeAnswers(reply[2], at)
	if err != nil {
		return BatchResult{}, err
	}
	result := BatchResult{At: at, Pauses: pauses, Decisions: make([]Decision, events)}
	for i, request := range c.requests {
		number, isNumber := reply[replyHead+i].(int64)
		if !isNumber || number < 1 || number > int64(len(answers)) {
			return BatchResult{}, fmt.Errorf("%w: answer %v of %d", script.ErrReply, reply[replyHead+i], len(answers))
		}
		answer, decision := &answers[number-1], &result.Decisions[i] // large: not copied whole
		decision.Verdict, decision.Wait, decision.InDoubt = answer.Verdict, answer.Wait, answer.InDoubt
		decision.Node, decision.Limit = answer.Node, answer.Limit
		decision.Lease.End = answer.Lease.End
		if c.forward && (answer.Verdict == Denied || answer.Verdict == ExceedsCapacity) {
			decision.Lease.End, decision.Lease.slotless = at+c.lease.Microseconds(), true
		}
		if decision.Lease.End != 0 {
			decision.Lease.Request, decision.Lease.tree, decision.Lease.shadow = request, c.rules.tree, c.rules.shadow
			decision.Lease.inDoubt = answer.InDoubt
		}
	}
	for i, value := range reply[replyHead+events:] {
		number, isNumber := value.(int64)
		if !isNumber || number < 0 || number > int64(len(answers)) {
			return BatchResult{}, fmt.Errorf("%w: answer %v of %d of the shadow", script.ErrReply, value, len(answers))
		}
		if number > 0 {
			d := answers[number-1]
			result.Decisions[i].Shadow = ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
		}
	}
	return result, nil
}

// decodeAnswers reads the distinct answers. Their leases lack the request.
func (c *decideCall) decodeAnswers(reply any, at int64) ([]Decision, error) {
	list, isList := reply.([]any)
	if !isList || len(list)%answerParts != 0 {
		return nil, fmt.Errorf("%w: answers are %T", script.ErrReply, reply)
	}
	numbers, err := script.Numbers(list, len(list))
	if err != nil {
		return nil, err
	}
	answers := make([]Decision, 0, len(numbers)/answerParts)
	for ; len(numbers) > 0; numbers = numbers[answerParts:] {
		limit, wait := numbers[1], numbers[2]
		decision := Decision{Verdict: Verdict(numbers[0])}
		switch decision.Verdict {
		case Denied, ExceedsCapacity:
			if limit < 1 || limit > int64(len(c.limits)) {
				return nil, fmt.Errorf("%w: denied by limit %d of %d", script.ErrReply, limit, len(c.limits))
			}
			decision.Node, decision.Limit = c.limits[limit-1].node, c.limits[limit-1].limit
			decision.Wait = time.Duration(wait) * time.Microsecond
		case Admitted, Reclaimed:
			decision.Lease.End = at + wait
			decision.InDoubt = decision.Verdict == Reclaimed && limit == 1
		case Leased:
			decision.Wait = time.Duration(wait) * time.Microsecond
		case Done, Duplicate, Unknown:
		default:
			return nil, fmt.Errorf("%w: verdict %d", script.ErrReply, numbers[0])
		}
		answers = append(answers, decision)
	}
	return answers, nil
}

func decodePauses(reply any, at int64) (map[string]time.Duration, error) {
	list, isList := reply.([]any)
	if !isList || len(list)%2 != 0 {
		return nil, fmt.Errorf("%w: pauses are %T", script.ErrReply, reply)
	}
	if len(list) == 0 {
		return nil, nil
	}
	pauses := make(map[string]time.Duration, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		destination, isText := list[i].(string)
		text, alsoText := list[i+1].(string)
		if !isText || !alsoText {
			return nil, fmt.Errorf("%w: a pause is %T, %T", script.ErrReply, list[i], list[i+1])
		}
		until, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: a pause ends at %q", script.ErrReply, text)
		}
		pauses[destination] = time.Duration(until-float64(at)) * time.Microsecond
	}
	return pauses, nil
}
