package store

import (
	"slices"
	"strconv"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// bucket counts at a node. All log limits of the node share one bucket; every other limit has its own.
type bucket struct {
	name      string // unique in its tree; in Redis the key, behind the prefix
	algorithm algorithm.Algorithm
	node      limits.Node
	limits    []limits.Limit

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
func bucketsOf(node limits.Node) []bucket {
	var (
		logs   []limits.Limit
		others []bucket
	)
	for _, limit := range node.Limits {
		if limit.Description().PerNode {
			logs = append(logs, limit)
			continue
		}
		kind := limit.Algorithm.String() + ":" + strconv.FormatInt(limit.Window.Milliseconds(), 10)
		others = append(others, newBucket(kind, node, limit))
	}
	if len(logs) == 0 {
		return others
	}
	return slices.Insert(others, 0, newBucket(logs[0].Algorithm.String(), node, logs...))
}

func bucketName(kind, place string) string {
	if place == "" {
		return kind
	}
	return kind + ":" + place
}

// guaranteed reports whether the tree's guarantees apply to this bucket: they apply to the global log.
func (b bucket) guaranteed() bool { return b.algorithm.Description().PerNode && b.node.Path == "" }

// sees returns an event as this bucket counts it. Only the global log takes guarantees into account.
func (b bucket) sees(e algorithm.Event) algorithm.Event {
	if !b.guaranteed() {
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
}

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
	if (bucket{algorithm: limit.Algorithm, node: node}).guaranteed() {
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
