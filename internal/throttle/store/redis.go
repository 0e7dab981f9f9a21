package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// MaxBatch is how many events one script call should carry at most. Redis does nothing else meanwhile, and more gains little.
const MaxBatch = 256

// Redis is the store that all instances of a deployment share. Its time is the server's. Its own calls are about decisions and leases.
type Redis struct {
	Pairs     *Pairs
	Queues    *Queues
	Positions *Positions
	Readings  *Readings

	d *deployment
}

// Pairs are the calls about firing and resolved events.
type Pairs struct{ d *deployment }

// Queues are the calls about events that wait, in the queues for slots and in the room.
type Queues struct {
	d           *deployment
	passedNonce atomic.Int64 // nonce of the last call of Passed, if it failed; otherwise 0
}

// Positions are the calls about the position of the limits in force, and the layout of what is stored.
type Positions struct{ d *deployment }

// Readings are the calls that only read.
type Readings struct{ d *deployment }

// deployment is what all calls have in common.
type deployment struct {
	runner   *script.Runner
	keys     keys
	settings Settings
	inForce  atomic.Pointer[Rules]
}

// NewRedis makes a store whose scripts the runner runs. It does not talk to the server. No other store may use the runner.
func NewRedis(runner *script.Runner, s Settings) *Redis {
	d := &deployment{runner: runner, keys: newKeys(runner), settings: s}
	r := &Redis{Pairs: &Pairs{d}, Queues: &Queues{d: d}, Positions: &Positions{d}, Readings: &Readings{d}, d: d}
	r.Adopt(s.rules())
	return r
}

// Adopt puts other limits in force for the calls that follow. Limits with the same path, algorithm and window keep their counts; the window
// of a log may change.
func (r *Redis) Adopt(rules limits.Ruleset) { r.AdoptRules(Compile(rules)) }

// AdoptRules is Adopt with rules that are compiled already.
func (r *Redis) AdoptRules(rules *Rules) {
	r.d.runner.Adopt(rules.algorithms())
	r.d.inForce.Store(rules)
}

// Rules are the limits in force.
func (r *Redis) Rules() *Rules { return r.d.rules() }

func (d *deployment) rules() *Rules { return d.inForce.Load() }

// keys builds every key that the store uses.
type keys struct {
	calls, leased, done, message, limits, layout, taken string

	pauses string // of destinations, which internal/pacing writes
	absent string // never exists

	runner *script.Runner
}

func newKeys(runner *script.Runner) keys {
	return keys{
		calls: runner.Key("calls"), leased: runner.Key("leased"), done: runner.Key("done"), message: runner.Key("message"),
		limits: runner.Key("limits"), layout: runner.Key("layout"), taken: runner.Key("taken"), pauses: runner.Key("pauses"), absent: runner.Absent(),
		runner: runner,
	}
}

// The first parts of the names of the keys that each first-level category has.
var (
	roomPrefixes = []string{"room:"}
	bookPrefixes = []string{"pairs:", "pairs:until:"}
)

// shadowTaken returns the key of the admissions by the shadow limits. Each state of the limits has a key of its own.
func (k keys) shadowTaken(rules *Rules) string {
	if rules.InShadow == nil {
		return k.absent
	}
	return k.key(inShadow + "taken:" + rules.Position.ID())
}

// room returns the key of the room where events of a first-level category wait; "": events without a category.
func (k keys) room(first string) string { return k.key(roomPrefixes[0] + first) }

// queue returns the key of the queue where events of a first-level category wait for slots of a path.
func (k keys) queue(first, path string) string { return k.key("line:" + first + ":" + path) }

// pairs and pairsUntil return the keys of the book of pairs of a first-level category.
func (k keys) pairs(first string) string      { return k.key(bookPrefixes[0] + first) }
func (k keys) pairsUntil(first string) string { return k.key(bookPrefixes[1] + first) }

func (k keys) key(name string) string { return k.runner.Key(name) }

// NewNonce returns a unique name for one call of a script.
func NewNonce() string { return rand.Text() }

// Decide evaluates the requests in their order, as one step: no other call comes between. It returns one decision for each request. After an
// error anything or nothing may be decided; asking again takes no second slot.
func (r *Redis) Decide(ctx context.Context, requests []Request) (BatchResult, error) {
	return r.DecideOnce(ctx, NewNonce(), requests)
}

// DecideOnce makes one script call. A repeated call with the same nonce and requests gives the same answer.
func (r *Redis) DecideOnce(ctx context.Context, nonce string, requests []Request) (BatchResult, error) {
	rules := r.Rules()
	ctx, recording := r.d.record(ctx, recorded{Kind: "decide", rules: rules, Nonce: nonce, Requests: requests})
	call := newDecideCall(r.d.keys, r.d.settings, rules, nonce, requests)
	asked := script.Call{Tried: "asking the limits", Script: lua.Decide, Keys: call.keys, Arguments: call.arguments}
	result, err := script.RunDecoded(ctx, r.d.runner, asked, call.decode)
	recording.end(recorded{At: result.At, Decisions: result.Decisions}, err)
	return result, err
}

// Finish records that the events were delivered, and returns for each whether that is new. If several holders finish one event, only one of
// them gets true. Repeating Finish is harmless.
func (r *Redis) Finish(ctx context.Context, leases []Lease) (newly []bool, err error) {
	return r.finishBatch(ctx, NewNonce(), leases)
}

// finishBatch makes one script call. A repeated call with the same nonce and leases gives the same answer for nonceKept. After that, no
// delivery is new any more.
func (r *Redis) finishBatch(ctx context.Context, nonce string, leases []Lease) ([]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, recording := r.d.record(ctx, recorded{Kind: "finish", Nonce: nonce, Leases: leases})
	books, buckets := r.d.keys.newPairBooks(), newBucketIndex(r.d.keys)
	events := make([]any, 0, 8*len(leases))
	for _, lease := range leases {
		eventKey, version := lease.Request.keyAndVersion()
		events = append(events, eventKey, version, lease.Request.Cost, books.ofDelivered(lease), lease.pairField(), lease.pairDelivery())
		for _, set := range lease.evaluatedBy(r.Rules()) {
			events = buckets.appendPath(events, set.following(lease.Request, 0), set.name)
		}
	}
	keys, arguments := r.delivery([]any{nonce}, books, buckets)
	newly, err := flags(r.d.runner.RunNumbers(ctx, "recording deliveries", lua.Finish, keys, append(arguments, events...), len(leases)))
	recording.end(recorded{Flags: newly}, err)
	return newly, err
}

// flags reads 1 or 0 for each event.
func flags(numbers []int64, err error) ([]bool, error) {
	if err != nil {
		return nil, err
	}
	flags := make([]bool, len(numbers))
	for i, number := range numbers {
		flags[i] = number == 1
	}
	return flags, nil
}

// delivery returns the keys for recording deliveries. To the arguments it appends how long each part of a record lives, and the buckets.
func (r *Redis) delivery(arguments []any, books *pairBooks, buckets *bucketIndex) ([]string, []any) {
	k, s := r.d.keys, r.d.settings
	arguments = append(arguments, s.Lease.Microseconds(), s.Retention.Microseconds(), s.PairTTL.Microseconds(), len(books.levels.firsts))
	return slices.Concat([]string{k.calls, k.leased, k.done, k.message, k.taken}, books.levels.keys, buckets.keys), buckets.appendBuckets(arguments)
}

// Extend renews the leases for d from now, or ends them if d is 0, and returns them with their new ends. A lease that is no longer the
// caller's gets the End 0. If a lease was ended in doubt or lapsed, the next holder of the event gets InDoubt, unless the lease that lapsed
// was last renewed with Waits.
func (r *Redis) Extend(ctx context.Context, leases []Lease, d time.Duration) ([]Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, recording := r.d.record(ctx, recorded{Kind: "extend", Leases: leases, Lasts: d})
	buckets := newBucketIndex(r.d.keys, r.d.keys.calls, r.d.keys.leased)
	events := make([]any, 0, 5*len(leases))
	for _, lease := range leases {
		eventKey, version := lease.Request.keyAndVersion()
		events = append(events, eventKey, version, lease.End, lease.InDoubt, lease.Waits, lease.Request.Cost)
		for _, set := range lease.evaluatedBy(r.Rules()) {
			events = buckets.appendPath(events, set.following(lease.Request, d), set.name)
		}
	}
	arguments := []any{d.Microseconds(), max(d, r.d.settings.Lease).Microseconds(), r.d.settings.Retention.Microseconds(), r.d.settings.Forward}
	arguments = append(buckets.appendBuckets(arguments), events...)
	numbers, err := r.d.runner.RunNumbers(ctx, "extending leases", lua.Extend, buckets.keys, arguments, 1+len(leases))
	if err != nil {
		recording.end(recorded{}, err)
		return nil, err
	}
	extended := slices.Clone(leases)
	for i := range extended {
		extended[i].End = numbers[0] * numbers[1+i]
	}
	recording.end(recorded{At: numbers[0] - d.Microseconds(), Leases: extended}, nil)
	return extended, nil
}

// Refund returns the slots of events that were definitely not delivered, and forgets the events. It returns false for an event whose lease
// was no longer the caller's: nothing was changed. Repeating Refund is harmless. With a lease whose End is [Unheld] it
// returns the slots of an event that no holder has delivered or delivers.
func (r *Redis) Refund(ctx context.Context, leases []Lease) ([]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, recording := r.d.record(ctx, recorded{Kind: "refund", Leases: leases})
	k := r.d.keys
	buckets := newBucketIndex(k, k.calls, k.leased, k.done, k.message, k.taken, k.shadowTaken(r.Rules()))
	var events []any
	for _, lease := range leases {
		eventKey, version := lease.Request.keyAndVersion()
		events = append(events, eventKey, version, lease.End, lease.Request.Cost)
		for _, set := range lease.evaluatedBy(r.Rules()) {
			events = buckets.appendRoute(events, set.route(lease.Request), set.name)
		}
	}
	arguments := buckets.appendBuckets([]any{r.d.settings.Lease.Microseconds(), r.d.settings.Retention.Microseconds()})
	returned, err := flags(r.d.runner.RunNumbers(ctx, "returning slots", lua.Refund, buckets.keys, append(arguments, events...), len(leases)))
	recording.end(recorded{Flags: returned}, err)
	return returned, err
}

// Admission is an admitted event in the form that Restore sends to Redis.
type Admission struct {
	Lease  Lease
	At     time.Time
	Became Became
}

// Became is what became of an admission, numbered as in restore.lua.
type Became int

// What became of an admission.
const (
	GoesOn Became = iota
	WasDelivered
	WasReleased
)

// Restore records admissions without Redis, with their own times; now is by the same clock. It returns when the leases of undelivered events
// end. Repeating it is harmless.
func (r *Redis) Restore(ctx context.Context, admissions []Admission, now time.Time) (leaseEnd int64, err error) {
	ctx, recording := r.d.record(ctx, recorded{Kind: "restore", Admissions: admissions, Clock: now})
	books, buckets := r.d.keys.newPairBooks(), newBucketIndex(r.d.keys)
	var events []any
	for _, a := range admissions {
		eventKey, version := a.Lease.Request.keyAndVersion()
		events = append(events, eventKey, version, now.Sub(a.At).Microseconds(), a.Lease.Request.Cost, int(a.Became), a.Lease.InDoubt)
		events = append(events, books.ofDelivered(a.Lease), a.Lease.pairField(), a.Lease.pairDelivery())
		sets := a.Lease.evaluatedBy(r.Rules())
		events = buckets.appendRoute(events, sets[0].route(a.Lease.Request), inForce)
		for _, set := range sets {
			events = buckets.appendPath(events, set.following(a.Lease.Request, 0), set.name)
		}
	}
	keys, arguments := r.delivery(nil, books, buckets)
	restored, err := r.d.runner.RunInt(ctx, "restoring admissions", lua.Restore, keys, append(arguments, events...))
	recording.end(recorded{At: restored}, err)
	if err != nil {
		return 0, err
	}
	return restored + r.d.settings.Lease.Microseconds(), nil
}

// Uses returns the use of each limit of each node. It has no next slot if the limit has a slot now, if another limit of the node's log opens
// later, or if no slot ever becomes free.
func (r *Readings) Uses(ctx context.Context, nodes []limits.Node) (uses [][]limits.Use, err error) {
	for batch := range slices.Chunk(nodes, MaxBatch) {
		buckets := newBucketIndex(r.d.keys, r.d.keys.calls)
		for _, node := range batch {
			for _, b := range r.d.rules().InForce.bucketsOf(node) {
				buckets.of(&b, inForce)
			}
		}
		arguments := buckets.appendBuckets([]any{r.d.settings.Lease.Microseconds()})
		numbers, err := r.d.runner.RunNumbers(ctx, "reading the usage", lua.Usage, buckets.keys, arguments, 2*len(buckets.limits))
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for _, node := range batch {
			ofNode := make([]limits.Use, len(node.Limits))
			for l, limit := range node.Limits {
				ofNode[l], numbers = useOf(node, limit, numbers, now), numbers[2:]
			}
			uses = append(uses, ofNode)
		}
	}
	return uses, nil
}

// useOf reads the used slots of a limit, and the microseconds until its next slot; 0: the time is unknown; below 0: it never has one.
func useOf(node limits.Node, limit limits.Limit, numbers []int64, now time.Time) limits.Use {
	use := limits.UseOf(node, limit, numbers[0])
	use.Never = numbers[1] < 0 && use.Size > 0
	if numbers[1] > 0 {
		next := now.Add(micros(numbers[1])).UTC()
		use.Next = &next
	}
	return use
}

// Probe asks the scripts about nothing, with the root's log among the keys. It shows that Redis answers.
func (r *Redis) Probe(ctx context.Context) error {
	if err := r.Compare(ctx); err != nil && !errors.Is(err, script.ErrStale) {
		return err
	}
	_, err := r.Readings.Uses(ctx, r.Rules().InForce.Path(""))
	return err
}

// NewerThan reads from a [script.ErrStale] which position Redis knows.
func NewerThan(stale error) limits.Position {
	var newer limits.Position
	_, _ = fmt.Sscan(script.Newer(stale), &newer.Generation, &newer.Revision)
	return newer
}

// InForce returns the position of the limits in force, and since when. The zero Position means that no event was evaluated yet.
func (r *Positions) InForce(ctx context.Context) (in limits.Position, since time.Time, err error) {
	const tried = "asking which limits are in force"
	var text string
	err = r.d.runner.Read(ctx, tried, func(ctx context.Context, client redis.Cmdable) (err error) {
		text, err = client.Get(ctx, r.d.keys.limits).Result()
		return err
	})
	if err != nil || text == "" {
		return limits.Position{}, time.Time{}, err
	}
	var micros int64
	if _, err := fmt.Sscan(text, &in.Generation, &in.Revision, &micros); err != nil {
		return limits.Position{}, time.Time{}, fmt.Errorf("%s: %w", tried, script.ErrReply)
	}
	return in, time.UnixMicro(micros), nil
}

// PutInForce puts a position in force, even an older one. It does nothing and returns false if another position than `seen` is in force.
func (r *Positions) PutInForce(ctx context.Context, seen, next limits.Position) (bool, error) {
	ctx, recording := r.d.record(ctx, recorded{Kind: "put in force", Seen: seen, Rules: next})
	arguments := []any{seen.Generation, seen.Revision, next.Generation, next.Revision}
	put, err := r.d.runner.RunInt(ctx, "putting limits in force", lua.AdoptLimits, []string{r.d.keys.calls, r.d.keys.limits}, arguments)
	recording.end(recorded{Flags: []bool{put == 1}}, err)
	return put == 1, err
}

// Advance puts a position in force, unless that position or a newer one is in force already, and returns the position in force. Calls made
// with older limits are rejected from then on.
func (r *Positions) Advance(ctx context.Context, next limits.Position) (limits.Position, error) {
	for {
		seen, _, err := r.InForce(ctx)
		if err != nil || !seen.Before(next) {
			return seen, err
		}
		if put, err := r.PutInForce(ctx, seen, next); put || err != nil {
			return next, err
		}
	}
}

// Compare asks about no event, which changes nothing. The error is a [script.ErrStale] if newer limits than these are in force.
func (r *Redis) Compare(ctx context.Context) error {
	_, err := r.DecideOnce(ctx, NewNonce(), nil)
	return err
}

// layoutKept is how long Redis keeps the number of the layout after a worker has started.
const layoutKept = 366 * 24 * time.Hour

// Layout returns the layout that the workers of this deployment use to store state (see [lua.Layout]). It returns 0 if no worker has stored
// a layout.
func (r *Positions) Layout(ctx context.Context) (layout int, err error) {
	err = r.d.runner.Read(ctx, "asking for the layout", func(ctx context.Context, client redis.Cmdable) (err error) {
		layout, err = client.Get(ctx, r.d.keys.layout).Int()
		return err
	})
	return layout, err
}

// UseLayout replaces the layout `seen`. It returns false if another layout is stored by now.
func (r *Positions) UseLayout(ctx context.Context, seen, layout int) (used bool, err error) {
	how := redis.SetArgs{TTL: layoutKept}
	if seen == 0 {
		how.Mode = "NX" // if two workers start at once, the second finds the layout of the first
	}
	if used, err = r.d.put(ctx, "storing the layout", r.d.keys.layout, strconv.Itoa(layout), how); err != nil {
		return false, fmt.Errorf("using layout %d: %w", layout, err)
	}
	return used, nil
}

// put sets a key, and reports whether the key has the value then. The client repeats a command whose reply was lost, so the reply to SET does
// not show that.
func (d *deployment) put(ctx context.Context, tried, key, value string, how redis.SetArgs) (isThere bool, err error) {
	err = d.runner.Read(ctx, tried, func(ctx context.Context, client redis.Cmdable) error {
		if err := client.SetArgs(ctx, key, value, how).Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		stored, err := client.Get(ctx, key).Result()
		isThere = stored == value
		return err
	})
	return isThere, err
}
