package throttle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// MaxBatch is how many events one script call should carry at most: Redis does nothing else meanwhile, and more gains
// little.
const MaxBatch = 256

// Redis is the limiter that all instances of a deployment share. Its time is the server's.
type Redis struct {
	client   redis.UniversalClient
	keys     keys
	settings Settings
	timeout  time.Duration
	inUse    *atomic.Pointer[inUse]
	source   func(script lua.Script, algorithms []string) string // [lua.Source], but for tests
	library  *library                                            // nil: the scripts run as such
}

// inUse is what the limiter works with until other limits are adopted.
type inUse struct {
	rules   *Ruleset
	scripts *scripts
}

// RedisOptions say where the limits are kept.
type RedisOptions struct {
	Client  redis.UniversalClient
	Prefix  string        // of every key, and their hash tag
	Timeout time.Duration // of one call, all its tries together

	Scripting Scripting // how the scripts run; "" is Eval
}

// NewRedis makes a limiter. It does not talk to the server.
func NewRedis(o RedisOptions, s Settings) *Redis {
	r := &Redis{
		client: o.Client, keys: newKeys(o.Prefix), settings: s, timeout: o.Timeout,
		inUse: new(atomic.Pointer[inUse]), source: lua.Source,
	}
	if o.Scripting == Functions {
		r.library = newLibrary()
	}
	r.Adopt(*s.rules())
	return r
}

// Adopt puts other limits in force for the calls that follow. What was counted before goes on to count where limits have
// the same place, algorithm and, but for logs, window.
func (r *Redis) Adopt(rules Ruleset) {
	use := &inUse{rules: &rules}
	var before *scripts
	if last := r.inUse.Load(); last != nil {
		before = last.scripts
	}
	names := rules.algorithms()
	if before != nil && slices.Equal(before.algorithms, names) {
		use.scripts = before
	} else {
		use.scripts = newScripts(r.source, names, before, r.library)
	}
	r.inUse.Store(use)
}

// Settings are those that the limiter was made with.
func (r *Redis) Settings() Settings { return r.settings }

// rules are the limits in force.
func (r *Redis) rules() *Ruleset { return r.inUse.Load().rules }

// keys builds every key of one deployment.
type keys struct {
	calls, leased, done, message, pauses, limits, taken, paces string

	// absent is never there. A Cluster node that is giving its slot away serves a call whose keys it has all, but takes one
	// that the script empties on its way for moved, and ends the script halfway. With a key that nobody has, no call is
	// begun while the slot is on its way: the answer is TRYAGAIN.
	absent string

	prefix, suffix string // of a meter's key
}

func newKeys(prefix string) keys { return keysWithin("{"+prefix+"}:", "") }

func keysWithin(prefix, suffix string) keys {
	key := func(name string) string { return prefix + name + suffix }
	return keys{
		calls: key("calls"), leased: key("leased"), done: key("done"), message: key("message"), pauses: key("pauses"),
		limits: key("limits"), taken: key("taken"), paces: key("paces"),
		absent: key("absent"),
		prefix: prefix, suffix: suffix,
	}
}

// scratch gives keys under the same hash tag that no deployment uses.
func (k keys) scratch(name string) keys { return keysWithin(k.prefix, ":scratch:"+name) }

// shadowTaken is a key of its own for each state of the shadow: what one admitted, the next has not.
func (k keys) shadowTaken(rules *Ruleset) string {
	if rules.Shadow == nil {
		return k.absent
	}
	return k.meter(fmt.Sprintf("%staken:%d:%d", inShadow, rules.Generation, rules.Revision))
}

// room is what waits of a first-level category, of "" what has no category.
func (k keys) room(first string) string { return k.meter("room:" + first) }

// line is where events of a first-level category stand that wait for slots of a place.
func (k keys) line(first, place string) string { return k.meter("line:" + first + ":" + place) }

// pairs and pairsUntil are the book of pairs of a first-level category.
func (k keys) pairs(first string) string      { return k.meter("pairs:" + first) }
func (k keys) pairsUntil(first string) string { return k.meter("pairs:until:" + first) }

func (k keys) meter(name string) string { return k.prefix + name + k.suffix }

func (r *Redis) run(ctx context.Context, script lua.Script, keys []string, arguments []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return r.inUse.Load().scripts.run(ctx, r.client, script, append(keys, r.keys.absent), arguments).Slice()
}

func (r *Redis) runInt(ctx context.Context, script lua.Script, keys []string, arguments []any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return r.inUse.Load().scripts.run(ctx, r.client, script, append(keys, r.keys.absent), arguments).Int64()
}

// newNonce names one call of the decide script.
func newNonce() string { return rand.Text() }

// Decide implements [Limiter].
func (r *Redis) Decide(ctx context.Context, requests []Request) (Ruling, error) {
	return r.decideBatch(ctx, newNonce(), requests)
}

// decideBatch makes one script call. Calling it again with the same nonce and requests gives the same answer.
func (r *Redis) decideBatch(ctx context.Context, nonce string, requests []Request) (Ruling, error) {
	call := newDecideCall(r.keys, r.settings, r.rules(), nonce, requests)
	reply, err := r.run(ctx, lua.Decide, call.keys, call.arguments)
	if err != nil {
		return Ruling{}, classify("asking the limits", err)
	}
	ruling, err := call.decode(reply)
	if err != nil {
		return Ruling{}, fmt.Errorf("asking the limits: %w: %w", ErrRefused, err)
	}
	return ruling, nil
}

// Finish implements [Limiter].
func (r *Redis) Finish(ctx context.Context, leases []Lease) ([]bool, error) {
	return r.finishBatch(ctx, newNonce(), leases)
}

// finishBatch makes one script call. Calling it again with the same nonce and leases gives the same answer for nonceKept; later
// no delivery is new any more.
func (r *Redis) finishBatch(ctx context.Context, nonce string, leases []Lease) ([]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	books := newPairBooks(r.keys)
	for i := range leases {
		books.of(leases[i].Request)
	}
	meters := r.newDeliveryIndex(books)
	events := make([]any, 0, 9*len(leases))
	for _, lease := range leases {
		record, stamp := lease.identity()
		events = append(events, record, stamp, lease.Cost, flag(lease.inDoubt), books.of(lease.Request), lease.pairField(), lease.pairDelivery())
		events = r.appendFollowing(events, meters, lease, false)
	}
	arguments := append([]any{nonce}, r.deliveryTimes(books)...)
	reply, err := r.run(ctx, lua.Finish, meters.keys, append(meters.appendMeters(arguments), events...))
	if err != nil {
		return nil, classify("recording deliveries", err)
	}
	return decodeFlags("recording deliveries", reply, len(leases))
}

// decodeFlags reads 1 or 0 for each event.
func decodeFlags(tried string, reply []any, count int) ([]bool, error) {
	numbers, err := decodeNumbers(reply, count)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", tried, ErrRefused, err)
	}
	flags := make([]bool, count)
	for i, number := range numbers {
		flags[i] = number == 1
	}
	return flags, nil
}

// newDeliveryIndex has the keys with which deliveries are recorded, deliveryTimes how long that is kept.
func (r *Redis) newDeliveryIndex(books *pairBooks) *meterIndex {
	k := r.keys
	return newMeterIndex(k, append([]string{k.calls, k.leased, k.done, k.message, k.taken}, books.keys...)...)
}

func (r *Redis) deliveryTimes(books *pairBooks) []any {
	return []any{
		r.settings.Lease.Microseconds(), r.settings.Retention.Microseconds(), r.settings.PairTTL.Microseconds(), len(books.index),
	}
}

// Extend implements [Limiter].
func (r *Redis) Extend(ctx context.Context, leases []Lease, d time.Duration) ([]Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	meters := newMeterIndex(r.keys, r.keys.calls, r.keys.leased)
	events := make([]any, 0, 5*len(leases))
	for _, lease := range leases {
		record, stamp := lease.identity()
		events = append(events, record, stamp, lease.End, flag(lease.inDoubt), lease.Cost)
		events = r.appendFollowing(events, meters, lease, d > 0)
	}
	lease := max(d, r.settings.Lease)
	arguments := []any{d.Microseconds(), lease.Microseconds(), r.settings.Retention.Microseconds()}
	reply, err := r.run(ctx, lua.Extend, meters.keys, append(meters.appendMeters(arguments), events...))
	if err != nil {
		return nil, classify("extending leases", err)
	}
	numbers, err := decodeNumbers(reply, 1+len(leases))
	if err != nil {
		return nil, fmt.Errorf("extending leases: %w: %w", ErrRefused, err)
	}
	extended := make([]Lease, len(leases))
	for i, lease := range leases {
		lease.End = numbers[0] * numbers[1+i]
		extended[i] = lease
	}
	return extended, nil
}

// Refund implements [Limiter].
func (r *Redis) Refund(ctx context.Context, leases []Lease) ([]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	meters := newMeterIndex(r.keys, r.keys.calls, r.keys.leased, r.keys.done, r.keys.message, r.keys.taken, r.keys.shadowTaken(r.rules()))
	var events []any
	for _, lease := range leases {
		record, stamp := lease.identity()
		events = append(events, record, stamp, lease.End, lease.Cost)
		events = r.appendRoutes(events, meters, lease)
	}
	arguments := []any{r.settings.Lease.Microseconds(), r.settings.Retention.Microseconds()}
	reply, err := r.run(ctx, lua.Refund, meters.keys, append(meters.appendMeters(arguments), events...))
	if err != nil {
		return nil, classify("returning slots", err)
	}
	return decodeFlags("returning slots", reply, len(leases))
}

// appendRoutes appends an event's routes in the limits by which it was judged and in their shadow.
func (r *Redis) appendRoutes(arguments []any, meters *meterIndex, lease Lease) []any {
	if lease.resolving {
		return append(arguments, 0, 0, 0, 0)
	}
	if lease.slotless {
		arguments = append(arguments, 0, 0)
	} else {
		arguments = r.appendJudged(arguments, meters, lease)
	}
	shadow := lease.shadowOr(r.rules().Shadow)
	if shadow == nil {
		return append(arguments, 0, 0)
	}
	return meters.appendRoute(arguments, shadow, shadow.route(lease.Category), inShadow)
}

func (r *Redis) appendJudged(arguments []any, meters *meterIndex, lease Lease) []any {
	tree := r.rules().Tree
	judged := lease.treeOr(tree)
	return meters.appendRoute(arguments, judged, tree.routeIn(judged, lease.Category), inForce)
}

// appendFollowing appends the meters whose slots come back when the event's delivery ends: in force, and in the shadow.
// While it goes on, the limits of the moment count, where there still are any.
func (r *Redis) appendFollowing(arguments []any, meters *meterIndex, lease Lease, goesOn bool) []any {
	rules := r.rules()
	for _, set := range []struct {
		judged, current *Tree
		name            string
	}{{lease.treeOr(rules.Tree), rules.Tree, inForce}, {lease.shadowOr(rules.Shadow), rules.Shadow, inShadow}} {
		var following []meter
		switch {
		case set.judged == nil, goesOn && set.current == nil, lease.slotless && set.name == inForce, lease.resolving:
		case goesOn:
			following = set.current.following(set.judged, lease.Category)
		default:
			following = set.judged.route(lease.Category).following()
		}
		arguments = append(arguments, len(following))
		for i := range following {
			arguments = append(arguments, meters.of(&following[i], set.judged, set.name))
		}
	}
	return arguments
}

// admission is one that was made without Redis.
type admission struct {
	lease  Lease
	at     time.Time
	became became
}

// became is what became of an admission, numbered as in restore.lua.
type became int

const (
	goesOn became = iota
	wasDelivered
	wasReleased
)

// Restore records admissions that were made without Redis, with their own times, and returns when the leases of those
// that are not delivered yet end. Repeating it is harmless.
func (r *Redis) Restore(ctx context.Context, admissions []admission) (leaseEnd int64, err error) {
	books := newPairBooks(r.keys)
	for i := range admissions {
		books.of(admissions[i].lease.Request)
	}
	meters := r.newDeliveryIndex(books)
	var events []any
	now := time.Now()
	for _, a := range admissions {
		record, stamp := a.lease.identity()
		events = append(events, record, stamp, now.Sub(a.at).Microseconds(), a.lease.Cost, int(a.became), flag(a.lease.inDoubt))
		events = append(events, books.of(a.lease.Request), a.lease.pairField(), a.lease.pairDelivery())
		if a.lease.resolving {
			events = append(events, 0, 0)
			continue
		}
		events = r.appendJudged(events, meters, a.lease)
	}
	arguments := r.deliveryTimes(books)
	restored, err := r.runInt(ctx, lua.Restore, meters.keys, append(meters.appendMeters(arguments), events...))
	if err != nil {
		return 0, classify("restoring admissions", err)
	}
	return restored + r.settings.Lease.Microseconds(), nil
}

// Pause lets a destination of a pace rest for d, for all instances.
func (r *Redis) Pause(ctx context.Context, destination string, pace Pace, d time.Duration) error {
	keys := []string{r.keys.calls, r.keys.pauses, r.keys.paces}
	_, err := r.runInt(ctx, lua.Pause, keys, []any{destination, d.Microseconds(), pace.ahead().Microseconds()})
	return classify("pausing a destination", err)
}

// Usage tells how many slots are taken now, for each limit of each node.
func (r *Redis) Usage(ctx context.Context, nodes []Node) ([][]int64, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	meters := newMeterIndex(r.keys, r.keys.calls)
	for _, node := range nodes {
		for _, m := range metersOf(node) {
			meters.of(&m, r.rules().Tree, inForce)
		}
	}
	reply, err := r.run(ctx, lua.Usage, meters.keys, meters.appendMeters([]any{r.settings.Lease.Microseconds()}))
	if err != nil {
		return nil, classify("reading the usage", err)
	}
	numbers, err := decodeNumbers(reply, len(meters.limits))
	if err != nil {
		return nil, fmt.Errorf("reading the usage: %w: %w", ErrRefused, err)
	}
	used := make([][]int64, len(nodes))
	for i, node := range nodes {
		used[i], numbers = numbers[:len(node.Limits)], numbers[len(node.Limits):]
	}
	return used, nil
}

// Probe asks the scripts about nothing, to see that they can be asked, with the root's log among the keys.
func (r *Redis) Probe(ctx context.Context) error {
	if _, err := r.decideBatch(ctx, newNonce(), nil); err != nil && !errors.Is(err, ErrStale) {
		return err
	}
	_, err := r.Usage(ctx, r.rules().Tree.Path(""))
	return err
}

// Rehearse runs every script that a worker needs, as this user, on keys that no deployment uses and that expire by
// themselves. It shows missing rights.
func (r *Redis) Rehearse(ctx context.Context) error {
	// One limit of each algorithm, and a guarantee.
	var limits Limits
	for i := range algorithms {
		limits = append(limits, Limit{Count: 2, Window: time.Second, Algorithm: Algorithm(i)})
	}
	tree, err := NewTree(Plan{Global: limits, Category: limits, Guarantees: []Guarantee{{Path: "rehearsal", Slots: 1}}})
	if err != nil {
		return err
	}
	scratch := *r
	scratch.keys = r.keys.scratch(newNonce())
	scratch.inUse = new(atomic.Pointer[inUse])
	scratch.settings = Settings{Tree: tree, Lease: time.Minute, Retention: time.Second, PairTTL: time.Second}
	scratch.Adopt(Ruleset{Tree: tree, Shadow: tree, Generation: 1, Revision: 1})
	if err := r.rehearseLoading(ctx); err != nil {
		return err
	}
	request := Request{ID: "rehearsal", Message: Message{Stored: time.Now()}, Category: "rehearsal", Cost: 1}
	ruling, err := scratch.Decide(ctx, []Request{request})
	if err != nil {
		return err
	}
	lease := []Lease{ruling.Decisions[0].Lease}
	if lease, err = scratch.Extend(ctx, lease, time.Minute); err != nil {
		return err
	}
	if _, err = scratch.Refund(ctx, lease); err != nil {
		return err
	}
	if _, err = scratch.Finish(ctx, lease); err != nil {
		return err
	}
	if _, err = scratch.Restore(ctx, []admission{{lease: lease[0], at: time.Now(), became: wasDelivered}}); err != nil {
		return err
	}
	if err = scratch.rehearsePairs(ctx); err != nil {
		return err
	}
	if err = scratch.Pause(ctx, "rehearsal", Pace{}, time.Second); err != nil {
		return err
	}
	if _, err = scratch.Reserve(ctx, "rehearsal", Pace{Interval: time.Second, Burst: 1}, 0, time.Minute); err != nil {
		return err
	}
	if _, err = scratch.Mention(ctx, "rehearsal", "rehearsal", time.Second); err != nil {
		return err
	}
	if _, err = scratch.PutInForce(ctx, Position{1, 1}, Position{1, 0}); err != nil {
		return err
	}
	postponement := Postponement{Request: request, Wait: time.Millisecond, Longest: time.Second, Limit: limits[0]}
	if _, _, err = scratch.Delay(ctx, postponement, 1); err != nil {
		return err
	}
	if _, err = scratch.turns(ctx, []Request{request}); err != nil {
		return err
	}
	if err = scratch.leave(ctx, []Request{request}); err != nil {
		return err
	}
	if _, err = scratch.EnterRoom(ctx, []Stay{{First: "rehearsal", Member: "rehearsal", Weight: 1, For: time.Second}}, 1); err != nil {
		return err
	}
	if _, err = scratch.Passed(ctx, "rehearsal", 1, 1); err != nil {
		return err
	}
	return scratch.rehearseDigests(ctx)
}

// rehearseLoading loads the functions, if they are used, though another worker may have done so: the server may change.
func (r *Redis) rehearseLoading(ctx context.Context) error {
	if r.library == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return classify("loading the functions", r.library.load(ctx, r.client, r.keys.calls))
}
