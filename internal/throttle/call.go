package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// logIndex numbers the logs of a script call in the order in which they are first named.
type logIndex struct {
	names keys
	keys  []string // the script's KEYS
	fixed int      // how many of them are not logs
	nodes []Node
	index map[string]int
}

func newLogIndex(names keys, fixed ...string) *logIndex {
	return &logIndex{names: names, keys: fixed, fixed: len(fixed), index: make(map[string]int)}
}

// of is the log's number, from 1.
func (l *logIndex) of(node Node) int {
	number, known := l.index[node.Path]
	if !known {
		l.keys = append(l.keys, l.names.log(node.Path))
		l.nodes = append(l.nodes, node)
		number = len(l.nodes)
		l.index[node.Path] = number
	}
	return number
}

// appendPath appends the number of logs and the number of each.
func (l *logIndex) appendPath(arguments []any, path []Node) []any {
	arguments = append(arguments, len(path))
	for _, node := range path {
		arguments = append(arguments, l.of(node))
	}
	return arguments
}

// decideCall is one call of decide.lua: its arguments, and what is needed to read the reply.
type decideCall struct {
	keys      []string
	arguments []any
	requests  []Request
	lease     time.Duration
	forward   bool
	nodes     []Node  // by the number of the limit, from 1, as the script counts them
	limits    []Limit // likewise
}

// ask is what requests of one category and cost have in common.
type ask struct {
	category string
	cost     int
}

func newDecideCall(names keys, s Settings, nonce string, requests []Request) *decideCall {
	logs := newLogIndex(names, names.calls, names.leased, names.done, names.message, names.pauses)
	var (
		askArguments []any
		asks         = make(map[ask]string) // its number
		events       = make([]any, 0, 3*len(requests))
	)
	for _, request := range requests {
		this := ask{request.Category, request.Cost}
		number, known := asks[this]
		if !known {
			askArguments = append(askArguments, request.Cost)
			askArguments = logs.appendPath(askArguments, s.Tree.Path(request.Category))
			number = strconv.Itoa(len(asks) + 1)
			asks[this] = number
		}
		record, stamp := request.identity()
		events = append(events, record, stamp, number)
	}
	forward := "0"
	if s.Forward {
		forward = "1"
	}
	call := &decideCall{keys: logs.keys, requests: requests, lease: s.Lease, forward: s.Forward}
	arguments := make([]any, 0, len(events)+len(askArguments)+4*len(logs.nodes)+8)
	arguments = append(arguments, nonce, microseconds(s.Lease), microseconds(s.Retention), forward, len(logs.nodes))
	for _, node := range logs.nodes {
		arguments = append(arguments, len(node.Limits))
		for _, limit := range node.Limits {
			arguments = append(arguments, limit.Count, microseconds(limit.Window))
			call.nodes = append(call.nodes, node)
			call.limits = append(call.limits, limit)
		}
	}
	arguments = append(arguments, len(asks))
	arguments = append(arguments, askArguments...)
	arguments = append(arguments, events...)
	call.arguments = arguments
	return call
}

// Shape of the reply of decide.lua.
const (
	replyHead   = 3 // time, pauses, answers
	answerParts = 3 // verdict, limit, time
)

var errReply = errors.New("the script's reply is not of the expected form")

// decode reads the script's reply strictly: a reply of another shape comes from another script.
func (c *decideCall) decode(reply []any) (Ruling, error) {
	if len(reply) != replyHead+len(c.requests) {
		return Ruling{}, fmt.Errorf("%w: %d values for %d events", errReply, len(reply), len(c.requests))
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
	ruling := Ruling{At: at, Pauses: pauses, Decisions: make([]Decision, len(c.requests))}
	for i, request := range c.requests {
		number, isNumber := reply[replyHead+i].(int64)
		if !isNumber || number < 1 || number > int64(len(answers)) {
			return Ruling{}, fmt.Errorf("%w: answer %v of %d", errReply, reply[replyHead+i], len(answers))
		}
		decision := answers[number-1]
		if decision.Lease.End != 0 {
			decision.Lease.Request = request
		}
		ruling.Decisions[i] = decision
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
			decision.Node, decision.Limit = c.nodes[limit-1], c.limits[limit-1]
			decision.Wait = time.Duration(wait) * time.Microsecond
			if c.forward {
				decision.Lease.End = at + c.lease.Microseconds()
			}
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
