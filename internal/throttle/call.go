package throttle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// meterIndex numbers the meters of a script call in the order in which they are first named, and builds what read_meters
// in prelude.lua reads.
type meterIndex struct {
	names     keys
	keys      []string // the script's KEYS
	arguments []any
	index     map[string]int
	limits    []limitAt // by the number of the limit, from 1, as the scripts count them
}

// limitAt is a limit and whose it is.
type limitAt struct {
	node  Node
	limit Limit
}

func newMeterIndex(names keys, fixed ...string) *meterIndex {
	return &meterIndex{names: names, keys: fixed, index: make(map[string]int)}
}

// of is a meter's number, from 1.
func (x *meterIndex) of(m *meter, tree *Tree, set string) int {
	key := x.names.meter(set + m.name)
	number, known := x.index[key]
	if known {
		return number
	}
	number = len(x.index) + 1
	x.index[key] = number
	x.keys = append(x.keys, key)
	x.arguments = append(x.arguments, m.definition...)
	for _, limit := range m.limits {
		x.limits = append(x.limits, limitAt{m.node, limit})
	}
	if !m.guaranteed() {
		x.arguments = append(x.arguments, 0)
		return number
	}
	x.arguments = append(x.arguments, len(tree.guarantees))
	for _, guarantee := range tree.guarantees {
		x.keys = append(x.keys, x.names.meter(set+"guarantee:"+guarantee.Path))
		x.arguments = append(x.arguments, guarantee.Slots)
	}
	return number
}

// appendRoute appends the number of a category's guarantee, and the path.
func (x *meterIndex) appendRoute(arguments []any, tree *Tree, r *route, set string) []any {
	return x.appendPath(append(arguments, tree.guaranteeNumber(r.guarantee)), tree, r, set)
}

// appendPath appends the number of a category's meters, and the number of each, as read_path reads them.
func (x *meterIndex) appendPath(arguments []any, tree *Tree, r *route, set string) []any {
	arguments = append(arguments, len(r.meters))
	for i := range r.meters {
		arguments = append(arguments, x.of(&r.meters[i], tree, set))
	}
	return arguments
}

// appendMeters appends the meters that have been named.
func (x *meterIndex) appendMeters(arguments []any) []any {
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
	rules     *Ruleset
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
	rules     *Ruleset
	meters    *meterIndex
	index     map[ask]int
	arguments []any // as decide.lua reads them
	inForce   wholesale
	shadow    wholesale
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
	x.ask(request, x.rules.Tree, inForce, &x.inForce)
	if x.rules.Shadow != nil {
		x.ask(request, x.rules.Shadow, inShadow, &x.shadow)
	}
	return number
}

func (x *askIndex) ask(request Request, tree *Tree, set string, w *wholesale) {
	r := tree.route(request.Category)
	w.add(x.meters, tree, set, r, request.Cost)
	x.arguments = x.meters.appendRoute(x.arguments, tree, r, set)
}

// definitions is the argument with meters and asks.
func (x *askIndex) definitions() string {
	return words(append(append(x.meters.appendMeters(nil), len(x.index)), x.arguments...))
}

// wholesale is what parts/wholesale.lua reads of one set of limits.
type wholesale struct {
	possible bool // that may judge the requests
	begun    bool
	atRoot   bool // all paths begin with the root's log
	first    int  // number of the first log's first limit
	count    int  // of the logs
	logs     []any
	asks     int
	paths    []any
}

// add takes note of an ask.
func (w *wholesale) add(meters *meterIndex, tree *Tree, set string, r *route, cost int) {
	if !w.begun {
		w.possible, w.begun, w.atRoot, w.first = true, true, true, len(meters.limits)+1
	}
	w.possible = w.possible && r.wholesale && cost == 1
	w.atRoot = w.atRoot && len(r.meters) > 0 && r.meters[0].node.Path == ""
	w.asks++
	w.paths = append(w.paths, len(r.meters))
	for i := range r.meters {
		before := len(meters.index)
		number := meters.of(&r.meters[i], tree, set)
		if number > before {
			w.count++
			w.logs = append(append(w.logs, number), r.meters[i].wholesale...)
		}
		w.paths = append(w.paths, number)
	}
}

// argument is "" where the requests are not to be judged as one.
func (w *wholesale) argument() string {
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

func newDecideCall(names keys, s Settings, rules *Ruleset, nonce string, requests []Request) *decideCall {
	meters := newMeterIndex(names, names.calls, names.leased, names.done, names.message, names.pauses,
		names.limits, names.taken, names.shadowTaken(rules))
	asks := askIndex{rules: rules, meters: meters, index: make(map[ask]int)}
	var (
		askNumbers = make([]byte, 0, 2*len(requests))
		records    = make([]any, 0, 2*len(requests))
		stamps     []any // nil if all are ""
	)
	for i, request := range requests {
		askNumbers = binary.BigEndian.AppendUint16(askNumbers, uint16(asks.of(request))) //nolint:gosec // MaxBatch is far below its end
		record, stamp := request.identity()
		records = append(records, record)
		if stamp != "" {
			if stamps == nil {
				stamps = slices.Repeat([]any{""}, len(requests))
			}
			stamps[i] = stamp
		}
	}
	forward, stamped, shadowKept := 0, 0, int64(0)
	if s.Forward {
		forward = 1
	}
	if rules.Shadow != nil {
		shadowKept = rules.shadowKept()
	}
	whole, wholeShadow := asks.inForce.argument(), asks.shadow.argument()
	if s.Forward || rules.Shadow != nil && wholeShadow == "" {
		whole, wholeShadow = "", ""
	}
	if stamps != nil {
		stamped = 1
	}
	arguments := make([]any, 0, 12+len(records)+len(stamps))
	arguments = append(arguments, nonce, s.Lease.Microseconds(), s.Retention.Microseconds(), forward,
		rules.Generation, rules.Revision, stamped, askNumbers, shadowKept, whole, wholeShadow, asks.definitions())
	arguments = append(append(arguments, records...), stamps...)
	return &decideCall{
		keys: meters.keys, arguments: arguments, requests: requests, rules: rules, lease: s.Lease, forward: s.Forward,
		limits: meters.limits,
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

var errReply = errors.New("the script's reply is not of the expected form")

// decode reads the script's reply strictly: a reply of another shape comes from another script.
func (c *decideCall) decode(reply []any) (Ruling, error) {
	events := len(c.requests)
	expected := replyHead + events
	if c.rules.Shadow != nil {
		expected += events
	}
	if len(reply) != expected {
		return Ruling{}, fmt.Errorf("%w: %d values for %d events", errReply, len(reply), events)
	}
	at, isNumber := reply[0].(int64)
	if !isNumber {
		return Ruling{}, fmt.Errorf("%w: time is %T", errReply, reply[0])
	}
	pauses, err := decodePauses(reply[1], at)
	if err != nil {
		return Ruling{}, err
	}
	answers, err := c.decodeAnswers(reply[2], at)
	if err != nil {
		return Ruling{}, err
	}
	ruling := Ruling{At: at, Pauses: pauses, Decisions: make([]Decision, events)}
	for i, request := range c.requests {
		number, isNumber := reply[replyHead+i].(int64)
		if !isNumber || number < 1 || number > int64(len(answers)) {
			return Ruling{}, fmt.Errorf("%w: answer %v of %d", errReply, reply[replyHead+i], len(answers))
		}
		answer, decision := &answers[number-1], &ruling.Decisions[i] // large: not copied whole
		decision.Verdict, decision.Wait, decision.InDoubt = answer.Verdict, answer.Wait, answer.InDoubt
		decision.Node, decision.Limit = answer.Node, answer.Limit
		decision.Lease.End = answer.Lease.End
		if c.forward && (answer.Verdict == Denied || answer.Verdict == NeverFits) {
			decision.Lease.End, decision.Lease.slotless = at+c.lease.Microseconds(), true
		}
		if decision.Lease.End != 0 {
			decision.Lease.Request, decision.Lease.tree, decision.Lease.shadow = request, c.rules.Tree, c.rules.Shadow
			decision.Lease.inDoubt = answer.InDoubt
		}
	}
	for i, value := range reply[replyHead+events:] {
		number, isNumber := value.(int64)
		if !isNumber || number < 0 || number > int64(len(answers)) {
			return Ruling{}, fmt.Errorf("%w: answer %v of %d of the shadow", errReply, value, len(answers))
		}
		if number > 0 {
			d := answers[number-1]
			ruling.Decisions[i].Shadow = ShadowDecision{Verdict: d.Verdict, Node: d.Node, Limit: d.Limit, Wait: d.Wait}
		}
	}
	return ruling, nil
}

// decodeAnswers reads the distinct answers. Their leases lack the request.
func (c *decideCall) decodeAnswers(reply any, at int64) ([]Decision, error) {
	list, isList := reply.([]any)
	if !isList || len(list)%answerParts != 0 {
		return nil, fmt.Errorf("%w: answers are %T", errReply, reply)
	}
	numbers, err := decodeNumbers(list, len(list))
	if err != nil {
		return nil, err
	}
	answers := make([]Decision, 0, len(numbers)/answerParts)
	for ; len(numbers) > 0; numbers = numbers[answerParts:] {
		limit, wait := numbers[1], numbers[2]
		decision := Decision{Verdict: Verdict(numbers[0])}
		switch decision.Verdict {
		case Denied, NeverFits:
			if limit < 1 || limit > int64(len(c.limits)) {
				return nil, fmt.Errorf("%w: denied by limit %d of %d", errReply, limit, len(c.limits))
			}
			decision.Node, decision.Limit = c.limits[limit-1].node, c.limits[limit-1].limit
			decision.Wait = time.Duration(wait) * time.Microsecond
		case Admitted, Repeated:
			decision.Lease.End = at + wait
			decision.InDoubt = decision.Verdict == Repeated && limit == 1
		case Leased:
			decision.Wait = time.Duration(wait) * time.Microsecond
		case Done, Duplicate, Unknown:
		default:
			return nil, fmt.Errorf("%w: verdict %d", errReply, numbers[0])
		}
		answers = append(answers, decision)
	}
	return answers, nil
}
func decodeNumbers(reply []any, count int) ([]int64, error) {
	if len(reply) != count {
		return nil, fmt.Errorf("%w: %d values, expected %d", errReply, len(reply), count)
	}
	numbers := make([]int64, count)
	for i, value := range reply {
		number, isNumber := value.(int64)
		if !isNumber {
			return nil, fmt.Errorf("%w: value %d is %T", errReply, i, value)
		}
		numbers[i] = number
	}
	return numbers, nil
}

func decodePauses(reply any, at int64) (map[string]time.Duration, error) {
	list, isList := reply.([]any)
	if !isList || len(list)%2 != 0 {
		return nil, fmt.Errorf("%w: pauses are %T", errReply, reply)
	}
	if len(list) == 0 {
		return nil, nil
	}
	pauses := make(map[string]time.Duration, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		destination, isText := list[i].(string)
		text, alsoText := list[i+1].(string)
		if !isText || !alsoText {
			return nil, fmt.Errorf("%w: a pause is %T, %T", errReply, list[i], list[i+1])
		}
		until, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: a pause ends at %q", errReply, text)
		}
		pauses[destination] = time.Duration(until-float64(at)) * time.Microsecond
	}
	return pauses, nil
}
