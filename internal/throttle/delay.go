package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/lua"
)

// Postponement asks when a denied event may come back.
type Postponement struct {
	Request
	Wait    time.Duration // until its next slot opens
	Longest time.Duration // that it may still wait
	Path    string        // the node that denied it
	Limit   limits.Limit  // of that node
	Weight  int           // how much room it takes; 0 is 1
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

// queues are those in which events of a category may wait, by their keys: one for each path with a limit, the root first.
type queues struct {
	nodes []limits.Node
	keys  []string
}

func (r *Redis) queuesOf(category string) queues {
	var found queues
	for _, node := range r.rules().tree.route(category).nodes {
		if len(node.Limits) > 0 {
			found.nodes = append(found.nodes, node)
			found.keys = append(found.keys, r.keys.queue(event.FirstLevel(category), node.Path))
		}
	}
	return found
}

// queueMember names the event in a queue, which it sorts by its place in the stream; see lib/queue.lua.
func (r Request) queueMember() string {
	return fmt.Sprintf("%020d %d %s", r.Message.Sequence, r.Cost, r.eventKey())
}

// delayKind is how a limit frees slots, as delay.lua calls it.
func delayKind(a limits.Algorithm) string {
	switch a {
	case limits.SlidingLog, limits.FixedWindow, limits.LeakyBucket, limits.InFlight:
		return a.String()
	case limits.SlidingCounter, limits.TokenBucket:
	}
	return "rate"
}

// Delay plans when a denied event comes back, in the order of those that wait for the same path. Events of one first-level
// category take at most so much room at once. Repeating it changes nothing.
func (r *Redis) Delay(ctx context.Context, p Postponement, most int) (DelayVerdict, time.Duration, error) {
	pair := ""
	if p.opensPair() {
		pair = p.Pair
	}
	k, first, queues := r.keys, event.FirstLevel(p.Category), r.queuesOf(p.Category)
	own := slices.IndexFunc(queues.nodes, func(n limits.Node) bool { return n.Path == p.Path })
	if own < 0 { // the limits have changed since
		own = len(queues.keys)
		queues.keys = append(queues.keys, k.queue(first, p.Path))
	}
	log := k.absent
	if p.Limit.Algorithm == limits.SlidingLog {
		log = k.key(inForce + bucketName(limits.SlidingLog.String(), p.Path))
	}
	keys := append([]string{k.calls, k.room(first), k.pairs(first), k.pairsUntil(first), k.leased, log}, queues.keys...)
	arguments := []any{
		p.eventKey(), flag(p.Derived), p.Message.Stored.UnixMicro(), p.queueMember(), max(p.Weight, 1),
		p.Wait.Microseconds(), p.Longest.Microseconds(),
		delayKind(p.Limit.Algorithm), p.Limit.Window.Microseconds(), max(p.Limit.Count, 1), p.Cost,
		most, flag(p.HasWaited), pair, len(queues.keys), own + 1,
	}
	numbers, err := r.runner.RunNumbers(ctx, "planning a delay", lua.Delay, keys, arguments, 2)
	if err != nil {
		return 0, 0, err
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

// slowestOf is the limit of a node whose slots open the furthest apart, and how far.
func slowestOf(n limits.Node) (limit limits.Limit, apart time.Duration) {
	for _, l := range n.Limits {
		if between := l.Window / time.Duration(max(l.Count, 1)); limit.Window == 0 || between > apart {
			limit, apart = l, between
		}
	}
	return limit, apart
}

// turn is where an event has to wait for others before it may be evaluated, if it has.
type turn struct {
	node limits.Node
	wait time.Duration // 0: nowhere
}

// queueIndex numbers the rooms and queues of a script call.
type queueIndex struct {
	names       keys
	rooms       map[string]int
	queues      map[string]int
	roomKeys    []string
	queueKeys   []string
	definitions []any // of the queues, for turn.lua
}

func newQueueIndex(names keys) *queueIndex {
	return &queueIndex{names: names, rooms: make(map[string]int), queues: make(map[string]int)}
}

// of appends the numbers of the queues of a category to the arguments, and returns that of its room.
func (x *queueIndex) of(arguments []any, category string, queues queues) ([]any, int) {
	first := event.FirstLevel(category)
	room, known := x.rooms[first]
	if !known {
		room = len(x.rooms) + 1
		x.rooms[first] = room
		x.roomKeys = append(x.roomKeys, x.names.room(first))
	}
	arguments = append(arguments, len(queues.keys))
	for i, key := range queues.keys {
		number, known := x.queues[key]
		if !known {
			number = len(x.queues) + 1
			x.queues[key] = number
			x.queueKeys = append(x.queueKeys, key)
			patience := time.Duration(0)
			if _, apart := slowestOf(queues.nodes[i]); apart >= orderedApart {
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
	index, paths := newQueueIndex(r.keys), make([]queues, len(requests))
	var events []any
	for i := range requests {
		paths[i] = r.queuesOf(requests[i].Category)
		events = append(events, requests[i].eventKey(), requests[i].Message.Stored.UnixMicro(), requests[i].queueMember())
		events, _ = index.of(events, requests[i].Category, paths[i])
	}
	keys := slices.Concat([]string{r.keys.calls, r.keys.leased, r.keys.done}, index.roomKeys, index.queueKeys)
	arguments := append([]any{len(index.roomKeys), len(index.queueKeys)}, index.definitions...)
	numbers, err := r.runner.RunNumbers(ctx, "asking whose turn it is", lua.Turn, keys, append(arguments, events...), 2*len(requests))
	if err != nil {
		return nil, err
	}
	turns := make([]turn, len(requests))
	for i := range turns {
		if queue := numbers[2*i]; queue > 0 && queue <= int64(len(paths[i].nodes)) {
			turns[i] = turn{paths[i].nodes[queue-1], time.Duration(numbers[2*i+1]) * time.Microsecond}
		}
	}
	return turns, nil
}

// leave takes events out of their queues that need not wait any more.
func (r *Redis) leave(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	index := newQueueIndex(r.keys)
	var events []any
	for i := range requests {
		numbers, room := index.of(nil, requests[i].Category, r.queuesOf(requests[i].Category))
		events = append(append(events, requests[i].eventKey(), room, requests[i].queueMember()), numbers...)
	}
	keys := slices.Concat([]string{r.keys.calls}, index.roomKeys, index.queueKeys)
	_, err := r.runner.RunInt(ctx, "leaving the queue", lua.Leave, keys, append([]any{len(index.roomKeys)}, events...))
	return err
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (r *Redis) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	var (
		at  float64
		now time.Time
	)
	err = r.runner.Read(ctx, "looking for a plan", func(ctx context.Context, client redis.Cmdable) (err error) {
		at, err = client.ZScore(ctx, r.keys.room(event.FirstLevel(request.Category)), request.eventKey()).Result()
		if err == nil {
			now, err = client.Time(ctx).Result()
		}
		return err
	})
	if errors.Is(err, redis.Nil) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return max(0, time.UnixMicro(int64(at)).Sub(now)), true, nil
}

// Delay plans when a denied event comes back, if it does. While Redis is unavailable nothing is planned: the event has to be asked
// for again.
func (l *Limiter) Delay(ctx context.Context, p Postponement) (DelayVerdict, time.Duration, error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, 0, err
	}
	return l.o.Redis.Delay(ctx, p, l.o.RoomMax)
}

// Planned tells whether it was planned in the last hour that an event comes back, and in what time; 0 if that is over.
func (l *Limiter) Planned(ctx context.Context, request Request) (in time.Duration, planned bool, err error) {
	if err := l.outage.mustAnswer(); err != nil {
		return 0, false, err
	}
	return l.o.Redis.Planned(ctx, request)
}

// denyEarly denies the events of the part that have to wait for others, and returns how many.
func (p *part) denyEarly(turns []turn, answers []Decision) (denied int) {
	for i, position := range p.positions {
		if turn := turns[i]; turn.wait > 0 {
			limit, _ := slowestOf(turn.node)
			answers[position] = Decision{Verdict: Denied, Node: turn.node, Limit: limit, Wait: turn.wait}
			denied++
		}
	}
	return denied
}

func (r Request) standsInQueue() bool { return r.Cost > 0 && (r.MayWait || r.HasWaited) }
