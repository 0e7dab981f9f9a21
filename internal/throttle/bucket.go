package throttle

import (
	"slices"
	"strconv"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

// bucket is what an algorithm counts with at a node: the one log for all its log limits, or one other limit.
type bucket struct {
	name      string // unique in its tree; in Redis the key, behind the prefix
	algorithm limits.Algorithm
	node      limits.Node
	limits    []limits.Limit

	definition []any // as read_buckets in lib/buckets.lua reads it, but for guarantees
	fastpath   []any // of a log, as fastpath.lua reads it
}

func newBucket(kind string, algorithm limits.Algorithm, node limits.Node, own ...limits.Limit) bucket {
	b := bucket{
		name: bucketName(kind, node.Path), algorithm: algorithm, node: node, limits: own,
		definition: []any{algorithm.String(), len(own)}, fastpath: []any{len(own)},
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
		if algorithms[limit.Algorithm].perNode {
			logs = append(logs, limit)
			continue
		}
		kind := limit.Algorithm.String() + ":" + strconv.FormatInt(limit.Window.Milliseconds(), 10)
		others = append(others, newBucket(kind, limit.Algorithm, node, limit))
	}
	if len(logs) == 0 {
		return others
	}
	return slices.Insert(others, 0, newBucket(limits.SlidingLog.String(), limits.SlidingLog, node, logs...))
}

func bucketName(kind, path string) string {
	if path == "" {
		return kind
	}
	return kind + ":" + path
}

// guaranteed tells whether the tree's guarantees hold at this bucket: at the global log.
func (b bucket) guaranteed() bool { return b.algorithm == limits.SlidingLog && b.node.Path == "" }

// sees is an event as this bucket counts it: only the global log regards guarantees.
func (b bucket) sees(e memoryEvent) memoryEvent {
	if !b.guaranteed() {
		e.guarantee, e.guarantees = "", nil
	}
	return e
}

func (b bucket) followsDelivery() bool { return algorithms[b.algorithm].followsDelivery }
func (b bucket) timesAdmissions() bool { return algorithms[b.algorithm].timesAdmissions }

// route is what counts for the events of a category.
type route struct {
	nodes     []limits.Node
	buckets   []bucket // in the order of the nodes
	guarantee string   // the path whose guarantee the events belong to, "" for none
	follows   bool     // some bucket's slots return when the delivery ends
	timed     bool     // some bucket needs the time of admission
	fastpath  bool     // fastpath.lua may evaluate events of cost 1
}

// named is the index of the bucket of a name, -1 if there is none.
func (r *route) named(name string) int {
	return slices.IndexFunc(r.buckets, func(b bucket) bool { return b.name == name })
}

// following lists the buckets whose slots return when a delivery ends.
func (r *route) following() []bucket {
	if !r.follows {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.buckets), func(b bucket) bool { return !b.followsDelivery() })
}
