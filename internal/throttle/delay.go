package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/lua"
)

// Postponement asks when a denied event may come back.
type Postponement struct {
	Request
	Wait    time.Duration // until its next slot opens
	Longest time.Duration // that it may still wait
	Place   string        // the node that denied it
	Limit   Limit         // of that node
	Weight  int           // how much room it takes; 0 is 1
	Firing  bool          // it opens its pair
}

// DelayVerdict says what becomes of a denied event.
type DelayVerdict int

// The verdicts about delays, numbered as in delay.lua.
const (
	ComesBack      DelayVerdict = iota + 1 // after a time
	TooMany                                // it does not, since too many others wait
	TooLate                                // it does not, since no slot opens in time
	AlreadyWaiting                         // another message with its ID does
)

// lines are the places at which events of a category may wait, the root first, by their keys.
type lines struct {
	nodes []Node
	keys  []string
}

func (r *Redis) linesOf(category string) lines {
	var found lines
	for _, node := range r.rules().Tree.route(category).nodes {
		if len(node.Limits) > 0 {
			found.nodes = append(found.nodes, node)
			found.keys = append(found.keys, r.keys.line(event.FirstLevel(category), node.Path))
		}
	}
	return found
}

// lineMember names the event in a line, which it sorts by its place in the stream; see parts/line.lua.
func (r Request) lineMember() string {
	return fmt.Sprintf("%020d %d %s", r.Message.Sequence, r.Cost, r.record())
}

// delayKind is how a limit frees slots, as delay.lua calls it.
func (a Algorithm) delayKind() string {
	switch a {
	case SlidingLog, FixedWindow, LeakyBucket, InFlight:
		return a.String()
	case SlidingCounter, TokenBucket:
	}
	return "rate"
}

// Delay plans when a denied event comes back, in the order of those that wait for the same place. Events of one first-level
// category take at most so much room at once. Repeating it changes nothing.
func (r *Redis) Delay(ctx context.Context, p Postponement, most int) (DelayVerdict, time.Duration, error) {
	pair := ""
	if p.Firing {
		pair = p.Pair
	}
	k, first, lines := r.keys, event.FirstLevel(p.Category), r.linesOf(p.Category)
	own := slices.IndexFunc(lines.nodes, func(n Node) bool { return n.Path == p.Place })
	if own < 0 { // the limits have changed since
		own = len(lines.keys)
		lines.keys = append(lines.keys, k.line(first, p.Place))
	}
	log := k.absent
	if p.Limit.Algorithm == SlidingLog {
		log = k.meter(inForce + meterName(SlidingLog.String(), p.Place))
	}
	keys := append([]string{k.calls, k.room(first), k.pairs(first), k.pairsUntil(first), k.leased, log}, lines.keys...)
	arguments := []any{
		p.record(), flag(p.Derived), p.Message.Stored.UnixMicro(), p.lineMember(), max(p.Weight, 1),
		p.Wait.Microseconds(), p.Longest.Microseconds(),
		p.Limit.Algorithm.delayKind(), p.Limit.Window.Microseconds(), max(p.Limit.Count, 1), p.Cost,
		most, flag(p.HasWaited), pair, len(lines.keys), own + 1,
	}
	reply, err := r.run(ctx, lua.Delay, keys, arguments)
	if err != nil {
		return 0, 0, classify("planning a delay", err)
	}
	numbers, err := decodeNumbers(reply, 2)
	if err != nil {
		return 0, 0, fmt.Errorf("planning a delay: %w: %w", ErrRefused, err)
	}
	return DelayVerdict(numbers[1]), time.Duration(numbers[0]) * time.Microsecond, nil
}

// flag is how the scripts take a yes or no.
func flag(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Where slots open at least this far apart, events wait for those ahead of them that should be back, and so long. Message
// schedules that are due within the same quarter of a second come at once: where more slots open than that, waiting for each
// other would cost slots.
const (
	orderedApart = 250 * time.Millisecond
	orderedWait  = 2 * time.Second
)

// slowest is the limit of a node whose slots open the furthest apart, and how far.
func (n Node) slowest() (limit Limit, apart time.Duration) {
	for _, l := range n.Limits {
		if between := l.Window / time.Duration(max(l.Count, 1)); limit.Window == 0 || between > apart {
			limit, apart = l, between
		}
	}
	return limit, apart
}

// turn is where an event has to wait for others before it may be judged, if it has.
type turn struct {
	node Node
	wait time.Duration // 0: nowhere
}

// lineIndex numbers the rooms and lines of a script call.
type lineIndex struct {
	names       keys
	rooms       map[string]int
	lines       map[string]int
	roomKeys    []string
	lineKeys    []string
	definitions []any // of the lines, for turn.lua
}

func newLineIndex(names keys) *lineIndex {
	return &lineIndex{names: names, rooms: make(map[string]int), lines: make(map[string]int)}
}

// of appends the numbers of the lines of a category to the arguments, and returns that of its room.
func (x *lineIndex) of(arguments []any, category string, lines lines) ([]any, int) {
	first := event.FirstLevel(category)
	room, known := x.rooms[first]
	if !known {
		room = len(x.rooms) + 1
		x.rooms[first] = room
		x.roomKeys = append(x.roomKeys, x.names.room(first))
	}
	arguments = append(arguments, len(lines.keys))
	for i, key := range lines.keys {
		number, known := x.lines[key]
		if !known {
			number = len(x.lines) + 1
			x.lines[key] = number
			x.lineKeys = append(x.lineKeys, key)
			patience := time.Duration(0)
			if _, apart := lines.nodes[i].slowest(); apart >= orderedApart {
				patience = orderedWait
			}
			x.definitions = append(x.definitions, room, patience.Microseconds())
		}
		arguments = append(arguments, number)
	}
	return arguments, room
}

// turns tells for each event whether others that were stored before it wait for slots on its path.
func (r *Redis) turns(ctx context.Context, requests []Request) ([]turn, error) {
	index, paths := newLineIndex(r.keys), make([]lines, len(requests))
	var events []any
	for i := range requests {
		paths[i] = r.linesOf(requests[i].Category)
		events = append(events, requests[i].record(), requests[i].Message.Stored.UnixMicro(), requests[i].lineMember())
		events, _ = index.of(events, requests[i].Category, paths[i])
	}
	keys := slices.Concat([]string{r.keys.calls, r.keys.leased, r.keys.done}, index.roomKeys, index.lineKeys)
	arguments := append([]any{len(index.roomKeys), len(index.lineKeys)}, index.definitions...)
	reply, err := r.run(ctx, lua.Turn, keys, append(arguments, events...))
	if err != nil {
		return nil, classify("asking whose turn it is", err)
	}
	numbers, err := decodeNumbers(reply, 2*len(requests))
	if err != nil {
		return nil, fmt.Errorf("asking whose turn it is: %w: %w", ErrRefused, err)
	}
	turns := make([]turn, len(requests))
	for i := range turns {
		if line := numbers[2*i]; line > 0 && line <= int64(len(paths[i].nodes)) {
			turns[i] = turn{paths[i].nodes[line-1], time.Duration(numbers[2*i+1]) * time.Microsecond}
		}
	}
	return turns, nil
}

// leave takes events out of their lines that need not wait any more.
func (r *Redis) leave(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	index := newLineIndex(r.keys)
	var events []any
	for i := range requests {
		numbers, room := index.of(nil, requests[i].Category, r.linesOf(requests[i].Category))
		events = append(append(events, requests[i].record(), room, requests[i].lineMember()), numbers...)
	}
	keys := slices.Concat([]string{r.keys.calls}, index.roomKeys, index.lineKeys)
	_, err := r.runInt(ctx, lua.Leave, keys, append([]any{len(index.roomKeys)}, events...))
	return classify("leaving the line", err)
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (r *Redis) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	at, err := r.client.ZScore(ctx, r.keys.room(event.FirstLevel(request.Category)), request.record()).Result()
	if errors.Is(err, redis.Nil) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, classify("looking for a plan", err)
	}
	now, err := r.client.Time(ctx).Result()
	if err != nil {
		return 0, false, classify("looking for a plan", err)
	}
	return max(0, time.UnixMicro(int64(at)).Sub(now)), true, nil
}

// Delay plans when a denied event comes back, if it does. While Redis is away nothing is planned: the event has to be asked
// for again.
func (g *Gate) Delay(ctx context.Context, p Postponement) (DelayVerdict, time.Duration, error) {
	if state, cause := g.currentState(); state != answering {
		return 0, 0, unavailable(cause)
	}
	return g.o.Redis.Delay(ctx, p, g.o.RoomMax)
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (g *Gate) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	if state, cause := g.currentState(); state != answering {
		return 0, false, unavailable(cause)
	}
	return g.o.Redis.Planned(ctx, request)
}

// askInTurn denies events that may wait, where others wait that were stored before them, and asks about the others. Those who
// need not wait any more leave their lines. That the lines cannot be read is no reason to hold events back.
func (g *Gate) askInTurn(ctx context.Context, requests []Request) ([]Answer, error) {
	if g.o.Forward || !slices.ContainsFunc(requests, Request.standsInLine) {
		return g.ask(ctx, requests)
	}
	var standing []Request
	places := make([]int, 0, len(requests))
	for i, request := range requests {
		if request.standsInLine() {
			standing, places = append(standing, request), append(places, i)
		}
	}
	turns, err := g.o.Redis.turns(ctx, standing)
	if err != nil {
		return g.ask(ctx, requests)
	}
	answers, denied := make([]Answer, len(requests)), 0
	for i, place := range places {
		if turn := turns[i]; turn.wait > 0 {
			limit, _ := turn.node.slowest()
			answers[place].Decision = Decision{Verdict: Denied, Node: turn.node, Limit: limit, Wait: turn.wait}
			denied++
		}
	}
	var judged []Request
	if places = places[:0]; denied > 0 {
		g.o.Metrics.Decision("denied", string(SourceRedis), denied)
	}
	for i, request := range requests {
		if answers[i].Verdict == 0 {
			judged, places = append(judged, request), append(places, i)
		}
	}
	if len(judged) == 0 {
		return answers, nil
	}
	asked, err := g.ask(ctx, judged)
	if err != nil {
		return nil, err
	}
	var leaving []Request
	for i, place := range places {
		answers[place] = asked[i]
		if judged[i].HasWaited && asked[i].Err == nil && asked[i].Verdict != Denied {
			leaving = append(leaving, judged[i])
		}
	}
	_ = g.o.Redis.leave(ctx, leaving) // else others wait for them for a while
	return answers, nil
}

func (r Request) standsInLine() bool { return r.Cost > 0 && (r.MayWait || r.HasWaited) }
