package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Rules is a [limits.Ruleset] as the stores count by it. It is safe for concurrent use.
type Rules struct {
	limits.Ruleset
	InForce  *Routes
	InShadow *Routes // nil: none

	limitsKeys bool // some rule, in force or in the shadow, limits each key
}

// Compile returns the ruleset with no route made yet.
func Compile(r limits.Ruleset) *Rules {
	rules := &Rules{
		Ruleset: r, InForce: newRoutes(r.Tree), InShadow: newRoutes(r.Shadow),
		limitsKeys: slices.ContainsFunc(append(r.Tree.AllLevels(), r.Shadow.AllLevels()...), limits.Node.OfKeys),
	}
	for _, mute := range r.Mutes {
		denial := &Denial{Level: limits.LevelMute, Path: mute.Path, Opens: mute.Until, Mute: &Mute{mute, mute.Text()}}
		rules.InForce.mutes = append(rules.InForce.mutes, denial)
	}
	return rules
}

// place returns what requests of one path have in common: the category, and the key if a rule limits each key of the category.
func (r *Rules) place(request Request) string {
	if request.Key == "" || !r.LimitsKey(request.Category) {
		return request.Category
	}
	return request.Category + "@" + request.Key
}

// LimitsKey reports whether a rule limits each key of a category, in force or in the shadow.
func (r *Rules) LimitsKey(category string) bool {
	return r.limitsKeys && (r.InForce.ofCategory(category).ofKey != nil || r.InShadow != nil && r.InShadow.ofCategory(category).ofKey != nil)
}

// Plan returns a hash of the limits on a category's path and of the limits of each key there.
func (r *Rules) Plan(category string) string {
	route, sum := r.InForce.ofCategory(category), sha256.New()
	if route.ofKey != nil {
		route = route.ofKey
	}
	_, _ = fmt.Fprintf(sum, "%s %v", route.guarantee, r.InForce.guarantees)
	for _, node := range route.nodes {
		_, _ = fmt.Fprintf(sum, "\n%s=%s", node.Place(), node.Limits)
	}
	return hex.EncodeToString(sum.Sum(nil)[:planBytes])
}

// PositionText returns the position of the limits as a text that Reaches reads.
func (r *Rules) PositionText() string {
	return fmt.Sprintf("%d %d", r.Position.Generation, r.Position.Revision)
}

// RevisionText returns the position of the limits as the journal has it; "" without live limits.
func (r *Rules) RevisionText() string {
	if r.Position == (limits.Position{}) {
		return ""
	}
	return r.Position.ID()
}

// Reaches reports whether these limits are at least as new as a position. For a text that is no position it returns true.
func (r *Rules) Reaches(text string) bool {
	var position limits.Position
	_, err := fmt.Sscan(text, &position.Generation, &position.Revision)
	return err != nil || !r.Position.Before(position)
}

// planBytes is the length of a plan's hash.
const planBytes = 8

// algorithms lists the algorithms that the limits use. The script of decisions is composed of them.
func (r *Rules) algorithms() []string {
	used := make(map[algorithm.Algorithm]bool)
	for _, level := range append(r.Tree.Levels(), r.Shadow.Levels()...) {
		for _, limit := range level.Limits {
			used[limit.Algorithm] = true
		}
	}
	var names []string
	for _, a := range slices.Sorted(maps.Keys(used)) {
		names = append(names, a.String())
	}
	return names
}

// shadowKept returns for how many microseconds an event counts as admitted by the shadow limits: as long as it can hold slots there, which
// for an inflight limit is at least the lease. Without shadow limits it returns 0.
func (r *Rules) shadowKept(lease time.Duration) int64 {
	if r.Shadow == nil {
		return 0
	}
	return max(1, lease.Microseconds(), r.Shadow.LongestWindow().Microseconds())
}

// Muted returns the denial of an event by a mute; nil: none covers it. A request that only looks up a record is never muted.
func (r *Rules) Muted(request Request) *Denial {
	if request.Cost == 0 {
		return nil
	}
	return r.MutesOf(request.Category).Of(request.Severity)
}

// MutesOf returns the mutes that cover a category. Without any mute in force, it costs nothing.
func (r *Rules) MutesOf(category string) Mutes {
	if len(r.InForce.mutes) == 0 {
		return nil
	}
	return r.InForce.ofCategory(category).Mutes
}

// folding returns a function that reports whether a decision may fold an event. In shadow mode every event is sent, and a muted event is in
// no message.
func (r *Rules) folding(s Settings) func(Request) bool {
	return func(request Request) bool { return !s.Forward && request.MayFold() && r.Muted(request) == nil }
}

// Routes is a tree and the routes of its categories. It is safe for concurrent use.
type Routes struct {
	*limits.Tree
	guarantees []limits.Guarantee // of the tree
	mutes      Mutes              // all that are in force

	mu     sync.RWMutex
	cached map[string]*Route // by category; routes of keys are not cached
}

// maxCachedRoutes bounds what producers of ever new categories can make a worker remember: a few megabytes.
const maxCachedRoutes = 4096

// newRoutes returns nil for no tree.
func newRoutes(tree *limits.Tree) *Routes {
	if tree == nil {
		return nil
	}
	return &Routes{Tree: tree, guarantees: tree.Guarantees(), cached: make(map[string]*Route)}
}

// Path is [limits.Tree.Path] from the cache. The caller must not change it.
func (t *Routes) Path(category string) []limits.Node { return t.ofCategory(category).nodes }

// routeIn returns an event's route in the limits that evaluated it. Buckets that still exist have today's limits. The slots in other
// buckets expire.
func (t *Routes) routeIn(evaluated *Routes, request Request) *Route {
	now := t.Route(request.Category, request.Key)
	if evaluated.Tree == t.Tree {
		return now
	}
	r := *evaluated.Route(request.Category, request.Key)
	r.buckets = slices.Clone(r.buckets)
	for _, now := range now.buckets {
		if i := r.named(now.name); i >= 0 {
			r.buckets[i] = now
		}
	}
	return &r
}

// neverFits reports whether a cost is above the most that a limit ever has for the events of a guarantee; "": for events without a
// guarantee.
func (b bucket) neverFits(limit limits.Limit, guarantee string, cost int64) bool {
	own, others := int64(0), int64(0)
	for _, g := range b.guarantees {
		if g.Path == guarantee {
			own = g.Slots
		} else {
			others += g.Slots
		}
	}
	if cost <= own {
		others = 0
	}
	return cost > limit.Capacity()-others
}

// TakenBefore returns how many slots of a limit were certainly in use when Redis denied an event of that cost, and 0 if unknown. It knows
// this only for a log that denied a single slot. A global log with guarantees may deny some paths before it is full.
func (t *Routes) TakenBefore(d *Decision, cost int) int64 {
	guaranteed := d.Node.Path == "" && len(t.guarantees) > 0
	if d.Verdict != Denied || cost != 1 || !d.Limit.Description().Exact || guaranteed {
		return 0
	}
	return d.Limit.Capacity()
}

// Route returns the route of the events of a category and a key. The route of the category "" is the root alone. An event without a key has
// the key "".
func (t *Routes) Route(category, key string) *Route {
	r := t.ofCategory(category)
	if key == "" || r.ofKey == nil {
		return r
	}
	return r.ofKey.with(limits.HashOfKey(key))
}

// ofCategory returns the route of the events of a category that have no key.
func (t *Routes) ofCategory(category string) *Route {
	t.mu.RLock()
	cached := t.cached[category]
	t.mu.RUnlock()
	if cached != nil {
		return cached
	}
	r := newRoute(t, t.Tree.Path(category), category)
	if nodes := t.PathOfKey(category, anyKey); len(nodes) > len(r.nodes) {
		r.ofKey = newRoute(t, nodes, category)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.cached) >= maxCachedRoutes {
		clear(t.cached)
	}
	t.cached[strings.Clone(category)] = r
	return r
}

// newRoute returns the route of nodes on the path of a category.
func newRoute(t *Routes, nodes []limits.Node, category string) *Route {
	r := &Route{nodes: nodes, guarantee: t.GuaranteeOf(category), guarantees: t.guarantees}
	for _, node := range r.nodes {
		r.buckets = append(r.buckets, t.bucketsOf(node)...)
	}
	for _, denial := range t.mutes {
		if category != "" && denial.Mute.Covers(category) {
			r.Mutes = append(r.Mutes, denial)
		}
	}
	for _, b := range r.buckets {
		for _, limit := range b.limits {
			r.Keys = append(r.Keys, r.Key(b.node, limit))
		}
	}
	r.follows = slices.ContainsFunc(r.buckets, bucket.followsDelivery)
	r.fastpath = !slices.ContainsFunc(r.buckets, func(b bucket) bool {
		blocks := func(l limits.Limit) bool { return l.Count == 0 }
		return !b.algorithm.Description().PerNode || len(b.guarantees) > 0 || slices.ContainsFunc(b.limits, blocks)
	})
	return r
}

// bucket counts at a node. All log limits of the node share one bucket; every other limit has its own.
type bucket struct {
	name       string // unique in its tree; in Redis the key, behind the prefix
	algorithm  algorithm.Algorithm
	node       limits.Node
	limits     []limits.Limit
	guarantees []limits.Guarantee // that reserve slots of it: all guarantees of the tree for the global log, otherwise none

	definition []any // arguments for read_buckets of lib/buckets.lua, without guarantees
	fastpath   []any // arguments about a log for fastpath.lua
}

func newBucket(kind string, node limits.Node, own ...limits.Limit) bucket {
	a := own[0].Algorithm
	b := bucket{
		name: bucketName(kind, node.Place()), algorithm: a, node: node, limits: own,
		definition: []any{a.String(), len(own)}, fastpath: []any{len(own)},
	}
	for _, limit := range own {
		b.fastpath = append(b.fastpath, limit.Count, limit.Window.Microseconds())
		b.definition = append(b.definition, limit.Count, limit.Window.Microseconds(), limit.Capacity())
	}
	return b
}

// bucketsOf lists the buckets of a node. The log comes first: its limits share it.
func (t *Routes) bucketsOf(node limits.Node) []bucket {
	var (
		logs   []limits.Limit
		others []bucket
	)
	for _, limit := range node.Limits {
		if limit.Description().PerNode {
			logs = append(logs, limit)
			continue
		}
		others = append(others, newBucket(bucketKind(limit), node, limit))
	}
	if len(logs) == 0 {
		return others
	}
	log := newBucket(bucketKind(logs[0]), node, logs...)
	if node.Path == "" {
		log.guarantees = t.guarantees
	}
	return slices.Insert(others, 0, log)
}

// bucketKind returns the part of a bucket's name that tells it from the other buckets of its node.
func bucketKind(l limits.Limit) string {
	if l.Description().PerNode {
		return l.Algorithm.String()
	}
	return l.Algorithm.String() + ":" + strconv.FormatInt(l.Window.Milliseconds(), 10)
}

func bucketName(kind, place string) string {
	if place == "" {
		return kind
	}
	return kind + ":" + place
}

// sees returns an event as this bucket counts it. Only the global log takes guarantees into account.
func (b bucket) sees(e algorithm.Event) algorithm.Event {
	if len(b.guarantees) == 0 {
		e.Guarantee, e.Guarantees = "", nil
	}
	return e
}

func (b bucket) followsDelivery() bool { return b.algorithm.Description().FollowsDelivery() }

// Route lists the nodes and buckets that count the events of a category, or of one key of a category. It never changes.
type Route struct {
	nodes     []limits.Node
	buckets   []bucket   // in the order of the nodes
	Keys      []LimitKey // of the limits of the buckets, in their order
	guarantee string     // path of the guarantee that the events belong to; "" for none
	follows   bool       // some bucket's slots return when the delivery ends
	fastpath  bool       // fastpath.lua may evaluate events of cost 1
	Mutes     Mutes      // the mutes that cover the category
	ofKey     *Route     // for a category: the route of anyKey; nil if no rule limits each key of the category

	guarantees []limits.Guarantee // of the tree
}

// nowhere is the route of events that take no slots.
var nowhere = new(Route)

// anyKey is the placeholder for the hash of a key, in the route that is copied for each key of a category.
const anyKey = "key"

// with returns the route of a key, given by its hash. The receiver is the route of anyKey.
func (r *Route) with(hash string) *Route {
	own := *r
	own.nodes, own.buckets, own.Keys = slices.Clone(r.nodes), slices.Clone(r.buckets), slices.Clone(r.Keys)
	for i := range own.nodes {
		if own.nodes[i].Key != "" {
			own.nodes[i].Key = hash
		}
	}
	for i := range own.buckets {
		if b := &own.buckets[i]; b.node.Key != "" {
			b.node.Key = hash
			b.name = strings.TrimSuffix(b.name, anyKey) + hash
		}
	}
	for i := range own.Keys {
		if own.Keys[i].Key != "" {
			own.Keys[i].Key = hash
		}
	}
	return &own
}

// LimitKey names a limit for the events of a route. The guarantee is part of the key, because a path with guaranteed slots may have room in
// a global limit that is full for most paths.
type LimitKey struct {
	Path      string
	Key       string // hash of the event's key, if the rule limits each key; otherwise ""
	Limit     limits.Limit
	Guarantee string // path of the guarantee that the events belong to, for the global log; otherwise ""
}

// Key returns the key of a limit of one of the route's nodes.
func (r *Route) Key(node limits.Node, limit limits.Limit) LimitKey {
	key := LimitKey{Path: node.Path, Key: node.Key, Limit: limit}
	if node.Path == "" && limit.Description().PerNode {
		key.Guarantee = r.guarantee
	}
	return key
}

// named returns the index of the bucket with a name, or -1.
func (r *Route) named(name string) int {
	return slices.IndexFunc(r.buckets, func(b bucket) bool { return b.name == name })
}

// following lists the buckets whose slots return when a delivery ends.
func (r *Route) following() []bucket {
	if !r.follows {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.buckets), func(b bucket) bool { return !b.followsDelivery() })
}
