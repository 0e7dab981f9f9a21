package throttle

import (
	"slices"
	"strconv"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// meter is what an algorithm counts with at a node: the one log for all its log limits, or one other limit.
type meter struct {
	name      string // unique in its tree; in Redis the key, behind the prefix
	algorithm Algorithm
	node      Node
	limits    []Limit

	definition []any // as read_meters in prelude.lua reads it, but for guarantees
	wholesale  []any // of a log, as parts/wholesale.lua reads it
}

// define returns the meter with its definition.
func (m meter) define() meter {
	m.definition, m.wholesale = []any{m.algorithm.String(), len(m.limits)}, []any{len(m.limits)}
	for _, limit := range m.limits {
		m.wholesale = append(m.wholesale, limit.Count, limit.Window.Microseconds())
		m.definition = append(m.definition, limit.Count, limit.Window.Microseconds(), limit.capacity())
	}
	return m
}

// route is what counts for the events of a category.
type route struct {
	nodes     []Node
	meters    []meter // in the order of the nodes
	guarantee string  // the path whose guarantee the events belong to, "" for none
	follows   bool    // some meter's slots come back when the delivery ends
	timed     bool    // some meter needs the time of admission

	wholesale bool // events of cost 1 may be judged by parts/wholesale.lua
}

// metersOf lists the meters of a node. The log comes first: its limits share it.
func metersOf(node Node) []meter {
	var (
		logs   = meter{name: meterName(SlidingLog.String(), node.Path), algorithm: SlidingLog, node: node}
		others []meter
	)
	for _, limit := range node.Limits {
		if algorithms[limit.Algorithm].perNode {
			logs.limits = append(logs.limits, limit)
			continue
		}
		kind := limit.Algorithm.String() + ":" + strconv.FormatInt(limit.Window.Milliseconds(), 10)
		other := meter{name: meterName(kind, node.Path), algorithm: limit.Algorithm, node: node, limits: []Limit{limit}}
		others = append(others, other.define())
	}
	if len(logs.limits) > 0 {
		return append([]meter{logs.define()}, others...)
	}
	return others
}

func meterName(kind, path string) string {
	if path == "" {
		return kind
	}
	return kind + ":" + path
}

// guaranteed tells that the tree's guarantees hold at this meter: at the global log.
func (m meter) guaranteed() bool { return m.algorithm == SlidingLog && m.node.Path == "" }

// sees is an event as this meter counts it: guarantees are no concern of others than the global log.
func (m meter) sees(e memoryEvent) memoryEvent {
	if !m.guaranteed() {
		e.guarantee, e.guarantees = "", nil
	}
	return e
}

func (m meter) followsDelivery() bool { return algorithms[m.algorithm].followsDelivery }
func (m meter) timesAdmissions() bool { return algorithms[m.algorithm].timesAdmissions }

func (r *route) all() []meter { return r.meters }

// still is those of the meters that other limits have too, as those have them.
func (r *route) still(meters []meter) []meter {
	return slices.DeleteFunc(slices.Clone(r.meters), func(m meter) bool {
		return !slices.ContainsFunc(meters, func(other meter) bool { return other.name == m.name })
	})
}

// following is those of a category's meters that follow deliveries and were in the limits by which an event was judged.
func (t *Tree) following(judged *Tree, category string) []meter {
	return (&route{meters: t.route(category).following()}).still(judged.route(category).meters)
}

// routeIn is a category's route in the limits by which an event was judged. A meter that these limits still have counts as
// they say: that is how the rest of its slots leave.
func (t *Tree) routeIn(judged *Tree, category string) *route {
	if judged == t {
		return t.route(category)
	}
	r := *judged.route(category)
	r.meters = slices.Clone(r.meters)
	for _, now := range t.route(category).meters {
		if i := slices.IndexFunc(r.meters, func(m meter) bool { return m.name == now.name }); i >= 0 {
			r.meters[i] = now
		}
	}
	return &r
}

// untimed is those of the meters that return slots without the time of admission.
func (r *route) untimed() []meter {
	return slices.DeleteFunc(slices.Clone(r.meters), meter.timesAdmissions)
}

// following is those of the meters whose slots come back when a delivery ends.
func (r *route) following() []meter {
	var following []meter
	for _, m := range r.meters {
		if m.followsDelivery() {
			following = append(following, m)
		}
	}
	return following
}

// neverFits tells that a cost is above what a limit ever has for the events of a guarantee, "" for those of none.
func (t *Tree) neverFits(m meter, limit Limit, guarantee string, cost int64) bool {
	others := int64(0)
	if m.guaranteed() {
		own := int64(0)
		for _, g := range t.guarantees {
			others += g.Slots
			if g.Path == guarantee {
				own = g.Slots
			}
		}
		others -= own
		if cost <= own {
			others = 0
		}
	}
	return cost > limit.capacity()-others
}

// route is what counts for a category, of "" the root alone.
func (t *Tree) route(category string) *route {
	t.mu.RLock()
	cached := t.routes[category]
	t.mu.RUnlock()
	if cached != nil {
		return cached
	}
	r := &route{nodes: t.path(category), guarantee: t.guaranteeOf(category)}
	for _, node := range r.nodes {
		r.meters = append(r.meters, metersOf(node)...)
	}
	r.follows = slices.ContainsFunc(r.meters, meter.followsDelivery)
	r.timed = slices.ContainsFunc(r.meters, meter.timesAdmissions)
	r.wholesale = !slices.ContainsFunc(r.meters, func(m meter) bool {
		blocks := func(l Limit) bool { return l.Count == 0 }
		return m.algorithm != SlidingLog || m.guaranteed() && len(t.guarantees) > 0 || slices.ContainsFunc(m.limits, blocks)
	})
	t.mu.Lock()
	if len(t.routes) >= maxCachedRoutes {
		clear(t.routes)
	}
	t.routes[strings.Clone(category)] = r
	t.mu.Unlock()
	return r
}

// guaranteeNumber is a guarantee's place among all of them, from 1; 0 for none.
func (t *Tree) guaranteeNumber(path string) int {
	return slices.IndexFunc(t.guarantees, func(g Guarantee) bool { return g.Path == path }) + 1
}

// guaranteeOf is the most specific path above or at a category that slots belong to.
func (t *Tree) guaranteeOf(category string) string {
	found := ""
	if category == "" {
		return found
	}
	for prefix := range event.Prefixes(category) {
		for _, guarantee := range t.guarantees {
			if guarantee.Path == prefix {
				found = guarantee.Path
			}
		}
	}
	return found
}
