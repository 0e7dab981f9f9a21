package store

import (
	"slices"
	"strconv"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// bucket counts at a node. All log limits of the node share one bucket; every other limit has its own.
type bucket struct {
	name      string // unique in its tree; in Redis the key, behind the prefix
	algorithm algorithm.Algorithm
	node      limits.Node
	limits    []limits.Limit

	definition []any // as read_buckets in lib/buckets.lua reads it, but for guarantees
	fastpath   []any // of a log, as fastpath.lua reads it
}

func newBucket(kind string, node limits.Node, own ...limits.Limit) bucket {
	a := own[0].Algorithm
	b := bucket{
		name: bucketName(kind, node.Path), algorithm: a, node: node, limits: own,
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

func bucketName(kind, path string) string {
	if path == "" {
		return kind
	}
	return kind + ":" + path
}

// guaranteed reports whether the tree's guarantees apply to this bucket: they apply to the global log.
func (b bucket) guaranteed() bool { return b.algorithm.Description().PerNode && b.node.Path == "" }

// sees is an event as this bucket counts it: only the global log regards guarantees.
func (b bucket) sees(e algorithm.Event) algorithm.Event {
	if !b.guaranteed() {
		e.Guarantee, e.Guarantees = "", nil
	}
	return e
}

func (b bucket) followsDelivery() bool { return b.algorithm.Description().FollowsDelivery() }
func (b bucket) timesAdmissions() bool { return b.algorithm.Description().TimesAdmissions }

// Route is what counts for the events of a category. It never changes.
type Route struct {
	nodes     []limits.Node
	buckets   []bucket   // in the order of the nodes
	Keys      []LimitKey // of the limits of the buckets, in their order
	guarantee string     // the path whose guarantee the events belong to, "" for none
	follows   bool       // some bucket's slots return when the delivery ends
	timed     bool       // some bucket needs the time of admission
	fastpath  bool       // fastpath.lua may evaluate events of cost 1
}

// LimitKey names a limit for the events of a route. The guarantee is part of the key, because a path with guaranteed slots may have room in
// a global limit that is full for most paths.
type LimitKey struct {
	Path      string
	Limit     limits.Limit
	Guarantee string // the path whose guarantee the events belong to, at the global log; otherwise ""
}

// Key is the key of a limit of one of the route's nodes.
func (r *Route) Key(node limits.Node, limit limits.Limit) LimitKey {
	key := LimitKey{Path: node.Path, Limit: limit}
	if (bucket{algorithm: limit.Algorithm, node: node}).guaranteed() {
		key.Guarantee = r.guarantee
	}
	return key
}

// named is the index of the bucket of a name, -1 if there is none.
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
