package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	Wait    time.Duration // time until the next slot opens
	Longest time.Duration // longest time that it may still wait
	Node    limits.Node   // the node that denied it
	Limit   limits.Limit  // the limit that denied it
	Weight  int           // number of events that it counts for in the room; 0 means 1
}

// DelayVerdict says what becomes of a denied event.
type DelayVerdict int

// The verdicts about delays, numbered as in delay.lua.
const (
	ComesBack      DelayVerdict = iota + 1 // after a time
	TooMany                                // refused: too many events wait already
	TooLate                                // refused: no slot opens in time
	AlreadyWaiting                         // another message with its ID waits already
)

// queueKeys returns the keys of the queues where events of a category may wait, one for each node of its path.
func (r *Queues) queueKeys(category string, nodes []limits.Node) []string {
	keys := make([]string, len(nodes))
	for i, node := range nodes {
		keys[i] = r.d.keys.queue(event.FirstLevel(category), node.Place())
	}
	return keys
}

// queueMember returns the name of the event in a queue; see lib/queue.lua. Names sort by the place in the stream.
func (r Request) queueMember() string {
	return fmt.Sprintf("%020d %d %s", r.Message.Sequence, r.Cost, r.eventKey())
}

// Delay plans when a denied event comes back, behind the events that wait for the same path already. At most `most` events of one
// first-level category wait at once. Repeating it changes nothing.
func (r *Queues) Delay(ctx context.Context, p Postponement, most int) (DelayVerdict, time.Duration, error) {
	pair := "" // the pair that the delivery of the event opens
	if !p.Resolves {
		pair = p.Pair
	}
	k, first, nodes, place := r.d.keys, event.FirstLevel(p.Category), r.d.rules().InForce.Route(p.Category, p.Key).nodes, p.Node.Place()
	queues := r.queueKeys(p.Category, nodes)
	own := slices.IndexFunc(nodes, func(n limits.Node) bool { return n.Place() == place })
	if own < 0 { // the limits have changed since
		own = len(queues)
		queues = append(queues, k.queue(first, place))
	}
	bucket := k.key(inForce + bucketName(bucketKind(p.Limit), place))
	keys := append([]string{k.calls, k.room(first), k.pairs(first), k.pairsUntil(first), k.leased, k.done, bucket}, queues...)
	arguments := []any{
		p.eventKey(), p.Derived, p.Message.Stored.UnixMicro(), p.queueMember(), max(p.Weight, 1),
		p.Wait.Microseconds(), p.Longest.Microseconds(),
		string(p.Limit.Description().Frees), p.Limit.Algorithm.String(), p.Limit.Window.Microseconds(), max(p.Limit.Count, 1), p.Limit.Capacity(), p.Cost,
		most, p.HasWaited, pair, p.Message.version(), len(queues), own + 1,
	}
	numbers, err := r.d.runner.RunNumbers(ctx, "planning a delay", lua.Delay, keys, arguments, 2)
	if err != nil {
		return 0, 0, err
	}
	return DelayVerdict(numbers[1]), micros(numbers[0]), nil
}

// Messages whose schedules are due within the same quarter of a second arrive together. If slots open more often, waiting for a turn would
// waste slots.
const (
	orderedApart = 250 * time.Millisecond // if slots open at least this far apart, events wait for earlier events that are due
	orderedWait  = 2 * time.Second        // how long they wait for each of these events
)

// slowestOf returns the limit of a node with the longest time between two slots, and that time.
func slowestOf(n limits.Node) (limit limits.Limit, apart time.Duration) {
	for _, l := range n.Limits {
		if between := l.Window / time.Duration(max(l.Count, 1)); limit.Window == 0 || between > apart {
			limit, apart = l, between
		}
	}
	return limit, apart
}

// queueIndex numbers the rooms and queues of a script call.
type queueIndex struct {
	store       *Queues
	tree        *Routes
	rooms       levelIndex
	queues      numbering[string] // by key
	queueKeys   []string
	definitions []any // of the queues, for turn.lua
}

func (r *Queues) newQueueIndex(fixed ...string) *queueIndex {
	rooms := r.d.keys.newLevelIndex(roomPrefixes, fixed...)
	return &queueIndex{store: r, tree: r.d.rules().InForce, rooms: rooms, queues: make(numbering[string])}
}

// of appends the numbers of the queues of an event to the arguments, and returns the number of its room.
func (x *queueIndex) of(arguments []any, request Request) ([]any, int) {
	room, nodes := x.rooms.of(event.FirstLevel(request.Category)), x.tree.Route(request.Category, request.Key).nodes
	arguments = append(arguments, len(nodes))
	for i, key := range x.store.queueKeys(request.Category, nodes) {
		number, isNew := x.queues.of(key)
		if isNew {
			x.queueKeys = append(x.queueKeys, key)
			patience := time.Duration(0)
			if _, apart := slowestOf(nodes[i]); apart >= orderedApart {
				patience = orderedWait
			}
			x.definitions = append(x.definitions, room, patience.Microseconds())
		}
		arguments = append(arguments, number)
	}
	return arguments, room
}

// tightest returns for each node, by its place, the limit with the fewest free slots, and the slowest limit of several such limits.
func (r *Queues) tightest(ctx context.Context, nodes map[string]limits.Node) (map[string]limits.Limit, error) {
	places := slices.Sorted(maps.Keys(nodes))
	asked := make([]limits.Node, len(places))
	for i, place := range places {
		asked[i] = nodes[place]
	}
	uses, err := (&Readings{r.d}).Uses(ctx, asked)
	if err != nil {
		return nil, err
	}
	tightest := make(map[string]limits.Limit)
	for i, ofNode := range uses {
		free := func(u limits.Use) int64 { return u.Size - u.Used }
		least := free(slices.MinFunc(ofNode, func(a, b limits.Use) int { return cmp.Compare(free(a), free(b)) }))
		fullest := limits.Node{}
		for l, use := range ofNode {
			if free(use) == least {
				fullest.Limits = append(fullest.Limits, asked[i].Limits[l])
			}
		}
		tightest[places[i]], _ = slowestOf(fullest)
	}
	return tightest, nil
}

// Turns returns Denied for each event that must wait for older events before its evaluation, by the limit with the fewest free slots of the node
// where they wait. All other decisions are empty.
func (r *Queues) Turns(ctx context.Context, requests []Request) ([]Decision, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	index := r.newQueueIndex(r.d.keys.calls, r.d.keys.leased, r.d.keys.done)
	var events []any
	for _, request := range requests {
		events = append(events, request.eventKey(), request.Message.Stored.UnixMicro(), request.queueMember())
		events, _ = index.of(events, request)
	}
	keys := slices.Concat(index.rooms.keys, index.queueKeys)
	arguments := slices.Concat([]any{len(index.rooms.firsts), len(index.queueKeys)}, index.definitions, events)
	numbers, err := r.d.runner.RunNumbers(ctx, "asking whose turn it is", lua.Turn, keys, arguments, 2*len(requests))
	if err != nil {
		return nil, err
	}
	turns := make([]Decision, len(requests))
	mixed := make(map[string]limits.Node) // nodes with several limits where events wait, by their places
	for i, request := range requests {
		nodes := index.tree.Route(request.Category, request.Key).nodes
		if queue, wait := numbers[2*i], micros(numbers[2*i+1]); wait > 0 && queue > 0 && queue <= int64(len(nodes)) {
			limit, _ := slowestOf(nodes[queue-1])
			turns[i] = Decision{Verdict: Denied, Node: nodes[queue-1], Limit: limit, Wait: wait}
			if len(nodes[queue-1].Limits) > 1 {
				mixed[nodes[queue-1].Place()] = nodes[queue-1]
			}
		}
	}
	tightest, err := r.tightest(ctx, mixed)
	if err != nil {
		return nil, err
	}
	for i := range turns {
		if limit, isMixed := tightest[turns[i].Node.Place()]; isMixed && turns[i].Verdict == Denied {
			turns[i].Limit = limit
		}
	}
	return turns, nil
}

// Leave removes events that need not wait any more from their queues.
func (r *Queues) Leave(ctx context.Context, requests []Request) error {
	if len(requests) == 0 {
		return nil
	}
	index := r.newQueueIndex(r.d.keys.calls)
	var events []any
	for _, request := range requests {
		queues, room := index.of(nil, request)
		events = append(append(events, request.eventKey(), room, request.queueMember()), queues...)
	}
	keys := slices.Concat(index.rooms.keys, index.queueKeys)
	_, err := r.d.runner.RunInt(ctx, "leaving the queue", lua.Leave, keys, append([]any{len(index.rooms.firsts)}, events...))
	return err
}

// Plans returns Planned for each request whose event was planned to come back in the last hour or later. All other decisions are empty.
func (r *Queues) Plans(ctx context.Context, requests []Request) ([]Decision, error) {
	rooms := make(numbering[string])
	type stays struct {
		room      string
		keys      []string
		positions []int // in requests
	}
	var waiting []stays
	for i, request := range requests {
		first := event.FirstLevel(request.Category)
		number, isNew := rooms.of(first)
		if isNew {
			waiting = append(waiting, stays{room: r.d.keys.room(first)})
		}
		in := &waiting[number-1]
		in.keys, in.positions = append(in.keys, request.eventKey()), append(in.positions, i)
	}
	scores := make([]*redis.FloatSliceCmd, len(waiting))
	var now time.Time
	err := r.d.runner.Read(ctx, "looking for plans", func(ctx context.Context, client redis.Cmdable) (err error) {
		if now, err = r.d.runner.Time(ctx); err != nil {
			return err
		}
		pipe := client.Pipeline()
		for i, in := range waiting {
			scores[i] = pipe.ZMScore(ctx, in.room, in.keys...)
		}
		_, err = pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	planned := make([]Decision, len(requests))
	for i, in := range waiting {
		for j, due := range scores[i].Val() {
			if due > 0 {
				planned[in.positions[j]] = Decision{Verdict: Planned, Wait: max(0, time.UnixMicro(int64(due)).Sub(now))}
			}
		}
	}
	return planned, nil
}

// MayBePlanned reports whether the event may have been planned to come back.
func (r Request) MayBePlanned() bool { return r.MayWait && r.Again && r.Cost > 0 }

// StandsInQueue reports whether the event waits for older events of its first-level category or has done so.
func (r Request) StandsInQueue() bool { return r.Cost > 0 && !r.Slotless && (r.MayWait || r.HasWaited) }

// Stay returns the stay in the room of an event that waits for a slot, for d from now. It has the weight of the event's [Postponement].
func (r Request) Stay(weight int, d time.Duration) Stay {
	return Stay{First: event.FirstLevel(r.Category), Member: r.eventKey(), Weight: weight, For: d}
}
