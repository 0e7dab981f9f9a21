package throttle

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// appendRoute appends the number of a category's guarantee, the number of its meters, and the number of each, as
// read_path reads them.
func (x *meterIndex) appendRoute(arguments []any, tree *Tree, r *route, set string) []any {
	arguments = append(arguments, tree.guaranteeNumber(r.guarantee), len(r.meters))
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

func newDecideCall(names keys, s Settings, rules *Ruleset, nonce string, requests []Request) *decideCall {
	meters := newMeterIndex(names, names.calls, names.leased, names.done, names.message, names.pauses,
		names.limits, names.taken, names.shadowTaken(rules))
	var (
		askArguments []any
		asks         = make(map[ask]int) // its number
		askNumbers   = make([]byte, 0, 2*len(requests))
		records      = make([]any, 0, 2*len(requests)) // then stamps
		stamps       = make([]any, 0, len(requests))
		stamped      = false
	)
	for _, request := range requests {
		this := ask{request.Category, request.Cost}
		number, known := asks[this]
		if !known {
			askArguments = appendAsk(askArguments, meters, rules, request)
			number = len(asks) + 1
			asks[this] = number
		}
		askNumbers = binary.BigEndian.AppendUint16(askNumbers, uint16(number)) //nolint:gosec // MaxBatch is far below its end
		record, stamp := request.identity()
		records, stamps = append(records, record), append(stamps, stamp)
		stamped = stamped || stamp != ""
	}
	if stamped {
		records = append(records, stamps...)
	}
	forward, shadowKept := 0, int64(0)
	if s.Forward {
		forward = 1
	}
	if rules.Shadow != nil {
		shadowKept = rules.shadowKept()
	}
	arguments := make([]any, 0, len(records)+len(askArguments)+len(meters.arguments)+10)
	arguments = append(arguments, nonce, s.Lease.Microseconds(), s.Retention.Microseconds(), forward,
		rules.Generation, rules.Revision)
	arguments = meters.appendMeters(arguments)
	arguments = append(arguments, shadowKept, len(asks))
	arguments = append(arguments, askArguments...)
	arguments = append(arguments, askNumbers)
	arguments = append(arguments, records...)
	return &decideCall{
		keys: meters.keys, arguments: arguments, requests: requests, rules: rules, lease: s.Lease, forward: s.Forward,
		limits: meters.limits,
	}
}

func appendAsk(arguments []any, meters *meterIndex, rules *Ruleset, request Request) []any {
	arguments = append(arguments, request.Cost)
	arguments = meters.appendRoute(arguments, rules.Tree, rules.Tree.route(request.Category), inForce)
	if rules.Shadow == nil {
		return arguments
	}
	return meters.appendRoute(arguments, rules.Shadow, rules.Shadow.route(request.Category), inShadow)
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
		decision := answers[number-1]
		if c.forward && (decision.Verdict == Denied || decision.Verdict == NeverFits) {
			decision.Lease.End, decision.Lease.slotless = at+c.lease.Microseconds(), true
		}
		if decision.Lease.End != 0 {
			decision.Lease.Request, decision.Lease.tree, decision.Lease.shadow = request, c.rules.Tree, c.rules.Shadow
		}
		ruling.Decisions[i] = decision
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
