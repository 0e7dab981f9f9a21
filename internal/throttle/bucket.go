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

// define returns the bucket with its definition.
func (b bucket) define() bucket {
	b.definition, b.fastpath = []any{b.algorithm.String(), len(b.limits)}, []any{len(b.limits)}
	for _, limit := range b.limits {
		b.fastpath = append(b.fastpath, limit.Count, limit.Window.Microseconds())
		b.definition = append(b.definition, limit.Count, limit.Window.Microseconds(), limit.Capacity())
	}
	return b
}

// route is what counts for the events of a category.
type route struct {
	nodes     []limits.Node
	buckets   []bucket // in the order of the nodes
	guarantee string   // the path whose guarantee the events belong to, "" for none
	follows   bool     // some bucket's slots come back when the delivery ends
	timed     bool     // some bucket needs the time of admission

	fastpath bool // events of cost 1 may be evaluated by fastpath.lua
}

// bucketsOf lists the buckets of a node. The log comes first: its limits share it.
func bucketsOf(node limits.Node) []bucket {
	var (
		logs   = bucket{name: bucketName(limits.SlidingLog.String(), node.Path), algorithm: limits.SlidingLog, node: node}
		others []bucket
	)
	for _, limit := range node.Limits {
		if algorithms[limit.Algorithm].perNode {
			logs.limits = append(logs.limits, limit)
			continue
		}
		kind := limit.Algorithm.String() + ":" + strconv.FormatInt(limit.Window.Milliseconds(), 10)
		other := bucket{name: bucketName(kind, node.Path), algorithm: limit.Algorithm, node: node, limits: []limits.Limit{limit}}
		others = append(others, other.define())
	}
	if len(logs.limits) > 0 {
		return append([]bucket{logs.define()}, others...)
	}
	return others
}

func bucketName(kind, path string) string {
	if path == "" {
		return kind
	}
	return kind + ":" + path
}

// guaranteed tells that the tree's guarantees hold at this bucket: at the global log.
func (b bucket) guaranteed() bool { return b.algorithm == limits.SlidingLog && b.node.Path == "" }

// sees is an event as this bucket counts it: guarantees are no concern of others than the global log.
func (b bucket) sees(e memoryEvent) memoryEvent {
	if !b.guaranteed() {
		e.guarantee, e.guarantees = "", nil
	}
	return e
}

func (b bucket) followsDelivery() bool { return algorithms[b.algorithm].followsDelivery }
func (b bucket) timesAdmissions() bool { return algorithms[b.algorithm].timesAdmissions }

func (r *route) all() []bucket { return r.buckets }

// still is those of the buckets that other limits have too, as those have them.
func (r *route) still(buckets []bucket) []bucket {
	return slices.DeleteFunc(slices.Clone(r.buckets), func(b bucket) bool {
		return !slices.ContainsFunc(buckets, func(other bucket) bool { return other.name == b.name })
	})
}

// untimed is those of the buckets that return slots without the time of admission.
func (r *route) untimed() []bucket {
	return slices.DeleteFunc(slices.Clone(r.buckets), bucket.timesAdmissions)
}

// following is those of the buckets whose slots come back when a delivery ends.
func (r *route) following() []bucket {
	var following []bucket
	for _, b := range r.buckets {
		if b.followsDelivery() {
			following = append(following, b)
		}
	}
	return following
}
