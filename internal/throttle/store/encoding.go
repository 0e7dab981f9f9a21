package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// numbering assigns numbers from 1 to the names of a script call, in the order of their first use.
type numbering[K comparable] map[K]int

func (n numbering[K]) of(key K) (number int, isNew bool) {
	number, known := n[key]
	if !known {
		number = len(n) + 1
		n[key] = number
	}
	return number, !known
}

// levelIndex numbers the first-level categories of a script call, of which there are few. It collects the keys of each behind the keys of
// every call.
type levelIndex struct {
	names    *keys
	prefixes []string // of the names of the keys
	firsts   []string
	keys     []string
}

func (k *keys) newLevelIndex(prefixes []string, fixed ...string) levelIndex {
	return levelIndex{names: k, prefixes: prefixes, keys: fixed}
}

// of returns the number of a first-level category, from 1.
func (x *levelIndex) of(first string) int {
	if i := slices.Index(x.firsts, first); i >= 0 {
		return i + 1
	}
	for _, prefix := range x.prefixes {
		x.keys = append(x.keys, x.names.key(prefix+first))
	}
	x.firsts = append(x.firsts, first)
	return len(x.firsts)
}

// bucketIndex numbers the buckets of a script call, and builds what read_buckets in lib/buckets.lua reads.
type bucketIndex struct {
	names     keys
	keys      []string // the script's KEYS
	arguments []any
	numbers   numbering[string] // by key
	limits    []limitAt         // by the number of the limit, from 1, as the scripts count them
}

// limitAt is a limit and its node.
type limitAt struct {
	node  limits.Node
	limit limits.Limit
}

func newBucketIndex(names keys, fixed ...string) *bucketIndex {
	return &bucketIndex{names: names, keys: fixed, numbers: make(numbering[string])}
}

// of returns the number of a bucket.
func (x *bucketIndex) of(b *bucket, set string) int {
	key := x.names.key(set + b.name)
	number, isNew := x.numbers.of(key)
	if !isNew {
		return number
	}
	x.keys = append(x.keys, key)
	x.arguments = append(x.arguments, b.definition...)
	for _, limit := range b.limits {
		x.limits = append(x.limits, limitAt{b.node, limit})
	}
	x.arguments = append(x.arguments, len(b.guarantees))
	for _, guarantee := range b.guarantees {
		x.keys = append(x.keys, x.names.key(set+"guarantee:"+guarantee.Path))
		x.arguments = append(x.arguments, guarantee.Slots)
	}
	return number
}

// appendPath appends how many buckets there are, and the number of each, as read_path reads them.
func (x *bucketIndex) appendPath(arguments []any, buckets []bucket, set string) []any {
	arguments = append(arguments, len(buckets))
	for i := range buckets {
		arguments = append(arguments, x.of(&buckets[i], set))
	}
	return arguments
}

// appendRoute appends the number of a category's guarantee, from 1 (0: none), and the path.
func (x *bucketIndex) appendRoute(arguments []any, r *Route, set string) []any {
	number := 1 + slices.IndexFunc(r.guarantees, func(g limits.Guarantee) bool { return g.Path == r.guarantee })
	return x.appendPath(append(arguments, number), r.buckets, set)
}

// appendBuckets appends the definitions of all numbered buckets.
func (x *bucketIndex) appendBuckets(arguments []any) []any {
	return append(append(arguments, len(x.numbers)), x.arguments...)
}

// The two sets of limits. Their keys begin with these texts.
const (
	inForce  = ""
	inShadow = "shadow:"
)

// decideCall is one call of decide.lua: its arguments, and what is needed to read the reply.
type decideCall struct {
	keys      []string
	arguments []any
	requests  []Request
	rules     *Rules
	settings  Settings
	limits    []limitAt
	muted     []*Denial // by request; nil: no mute covers it
}

// ask is what requests of one place and cost have in common.
type ask struct {
	place    string // see Rules.place
	cost     int    // negative: the event is muted
	slotless bool
}

// askIndex numbers the distinct asks of a call.
type askIndex struct {
	rules     *Rules
	buckets   *bucketIndex
	numbers   numbering[ask]
	arguments []any // as decide.lua reads them
	inForce   fastpath
	shadow    fastpath
}

// of returns the number of a request's ask.
func (x *askIndex) of(request Request, muted *Denial) int {
	if muted != nil {
		request.Cost = -request.Cost
	}
	number, isNew := x.numbers.of(ask{x.rules.place(request), request.Cost, request.Slotless})
	if isNew {
		x.arguments = append(x.arguments, request.Cost)
		x.ask(request, x.rules.InForce, inForce, &x.inForce)
		if x.rules.InShadow != nil {
			x.ask(request, x.rules.InShadow, inShadow, &x.shadow)
		}
	}
	return number
}

func (x *askIndex) ask(request Request, tree *Routes, set string, fast *fastpath) {
	r := tree.Route(request.Category, request.Key)
	if request.Slotless && set == inForce {
		r = nowhere
	}
	if fast.asks == 0 {
		fast.possible, fast.atRoot, fast.first = true, true, len(x.buckets.limits)+1
	}
	fast.possible = fast.possible && r.fastpath && request.Cost == 1
	fast.atRoot = fast.atRoot && len(r.buckets) > 0 && r.buckets[0].node.Path == ""
	fast.asks++
	before := len(x.buckets.numbers)
	x.arguments = x.buckets.appendRoute(x.arguments, r, set)
	numbers := x.arguments[len(x.arguments)-len(r.buckets):]
	fast.paths = append(append(fast.paths, len(numbers)), numbers...)
	for i := range numbers {
		if number, _ := numbers[i].(int); number > before {
			fast.count++
			fast.logs = append(append(fast.logs, number), r.buckets[i].fastpath...)
		}
	}
}

// definitions is the argument with buckets and asks.
func (x *askIndex) definitions() string {
	return words(append(append(x.buckets.appendBuckets(nil), len(x.numbers)), x.arguments...))
}

// fastpath is what fastpath.lua reads of one set of limits.
type fastpath struct {
	possible bool // fastpath.lua may evaluate the requests
	atRoot   bool // all paths begin with the root's log
	first    int  // number of the first log's first limit
	count    int  // of the logs
	logs     []any
	asks     int
	paths    []any
}

// argument returns "" if fastpath.lua must not evaluate the requests.
func (w *fastpath) argument() string {
	if !w.possible {
		return ""
	}
	return words(slices.Concat([]any{w.atRoot, w.first, w.count}, w.logs, []any{w.asks}, w.paths))
}

func newDecideCall(names keys, s Settings, rules *Rules, nonce string, requests []Request) *decideCall {
	buckets := newBucketIndex(names, names.calls, names.leased, names.done, names.message, names.pauses,
		names.limits, names.taken, names.shadowTaken(rules))
	asks := askIndex{rules: rules, buckets: buckets, numbers: make(numbering[ask])}
	var (
		askNumbers = make([]byte, 0, 2*len(requests))
		eventKeys  = make([]any, 0, 2*len(requests))
		versions   []any // nil if all are ""
		muted      = make([]*Denial, len(requests))
	)
	for i, request := range requests {
		muted[i] = rules.Muted(request)
		askNumbers = binary.BigEndian.AppendUint16(askNumbers, uint16(asks.of(request, muted[i]))) //nolint:gosec // MaxBatch is far below its end
		eventKey, version := request.keyAndVersion()
		eventKeys = append(eventKeys, eventKey)
		if version != "" {
			if versions == nil {
				versions = slices.Repeat([]any{""}, len(requests))
			}
			versions[i] = version
		}
	}
	fast, fastShadow, folding := asks.inForce.argument(), asks.shadow.argument(), rules.folding(s)
	if s.Forward || rules.InShadow != nil && fastShadow == "" || slices.ContainsFunc(requests, folding) {
		fast, fastShadow = "", ""
	}
	folds, foldValues := newFolds(buckets, s, requests, folding)
	arguments := make([]any, 0, 13+len(eventKeys)+len(versions)+len(foldValues))
	arguments = append(arguments, nonce, s.Lease.Microseconds(), s.Retention.Microseconds(), s.Forward,
		rules.Position.Generation, rules.Position.Revision,
		versions != nil, askNumbers, rules.shadowKept(s.Lease), fast, fastShadow, asks.definitions(), folds)
	arguments = append(append(arguments, eventKeys...), versions...)
	arguments = append(arguments, foldValues...)
	return &decideCall{
		keys: buckets.keys, arguments: arguments, requests: requests, rules: rules, settings: s, limits: buckets.limits, muted: muted,
	}
}

// newFolds returns what fold.lua reads: the argument about all events, "" if none may be folded, and the values of each event. It appends the
// books of pairs to the keys.
func newFolds(buckets *bucketIndex, s Settings, requests []Request, folding func(Request) bool) (argument string, values []any) {
	if !slices.ContainsFunc(requests, folding) {
		return "", nil
	}
	books := buckets.names.newPairBooks()
	var events []any
	for _, request := range requests {
		if !folding(request) {
			events, values = append(events, 0, 0, 0, false), append(values, "", "")
			continue
		}
		events = append(events, books.of(request), request.Fold.Within.Microseconds(), request.Fold.ComesBack.Microseconds(), request.Fold.Counts)
		values = append(values, request.Pair, Lease{Request: request}.pairDelivery())
	}
	buckets.keys = append(buckets.keys, books.levels.keys...)
	return words(append([]any{s.PairTTL.Microseconds(), s.Flap.Changes, s.Flap.Window.Milliseconds(), len(books.levels.firsts)}, events...)), values
}

// words joins numbers, names and booleans to one argument, with a blank behind each. As in the client of Redis, a boolean is 1 or 0.
func words(arguments []any) string {
	text := make([]byte, 0, 8*len(arguments))
	for _, argument := range arguments {
		switch v := argument.(type) {
		case bool:
			digit := byte('0')
			if v {
				digit = '1'
			}
			text = append(text, digit)
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

// decode reads the script's reply strictly: a reply of another form comes from another script.
func (c *decideCall) decode(reply []any) (BatchResult, error) {
	events := len(c.requests)
	expected := events
	if c.rules.InShadow != nil {
		expected *= 2
	}
	if len(reply) < replyHead {
		return BatchResult{}, fmt.Errorf("%w: %d values", script.ErrReply, len(reply))
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
	numbers, err := script.Numbers(reply[replyHead:], expected)
	if err != nil {
		return BatchResult{}, err
	}
	result := BatchResult{At: at, Pauses: pauses, Decisions: make([]Decision, events)}
	for i, number := range numbers {
		ofShadow := i >= events
		if ofShadow && number == 0 {
			continue // the shadow was not asked
		}
		if number < 1 || number > int64(len(answers)) {
			return BatchResult{}, fmt.Errorf("%w: answer %d of %d", script.ErrReply, number, len(answers))
		}
		if ofShadow {
			result.Decisions[i-events].Shadow = answers[number-1].ofShadow()
			continue
		}
		if answers[number-1].Verdict == Unknown && c.muted[i] != nil {
			result.Decisions[i].MutedBy(c.muted[i])
			continue
		}
		c.answer(&result.Decisions[i], &answers[number-1], c.requests[i], at)
	}
	return result, nil
}

// answer decides about a request as the answer says. Decisions are large: only what answers have is copied.
func (c *decideCall) answer(decision, answer *Decision, request Request, at int64) {
	decision.Verdict, decision.Wait, decision.InDoubt = answer.Verdict, answer.Wait, answer.InDoubt
	decision.Node, decision.Limit = answer.Node, answer.Limit
	decision.Fold, decision.Awaits, decision.Flaps = answer.Fold, answer.Awaits, answer.Flaps
	lease := &decision.Lease
	lease.End, lease.slotless = answer.Lease.End, request.Slotless
	if c.settings.Forward && answer.Verdict.IsDenial() {
		lease.End, lease.slotless = at+c.settings.Lease.Microseconds(), true
	}
	if lease.End != 0 {
		lease.Request, lease.rules, lease.InDoubt = request, c.rules, answer.InDoubt
	}
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
			decision.Wait = micros(wait)
		case Admitted, Reclaimed:
			decision.Lease.End = at + wait
			decision.InDoubt, decision.Flaps = limit&1 != 0, limit&2 != 0
		case Leased:
			decision.Wait, decision.Awaits = micros(wait), limit == 1
		case Folded:
			decision.Fold = newFold(limit, wait)
		case Done:
			decision.Flaps = limit == 2
		case Duplicate, Unknown:
		default:
			return nil, fmt.Errorf("%w: verdict %d", script.ErrReply, numbers[0])
		}
		answers = append(answers, decision)
	}
	return answers, nil
}

func decodePauses(reply any, at int64) (map[string]time.Duration, error) {
	list, isList := reply.([]any)
	texts, err := script.Texts(list)
	switch {
	case !isList || err != nil || len(texts)%2 != 0:
		return nil, fmt.Errorf("%w: pauses are %v", script.ErrReply, reply)
	case len(texts) == 0:
		return nil, nil
	}
	pauses := make(map[string]time.Duration, len(texts)/2)
	for pause := range slices.Chunk(texts, 2) {
		until, err := strconv.ParseFloat(pause[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: a pause ends at %q", script.ErrReply, pause[1])
		}
		pauses[pause[0]] = time.Duration(until-float64(at)) * time.Microsecond
	}
	return pauses, nil
}
