package store

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func drawCategory(rt *rapid.T) string {
	tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 8).Draw(rt, "tokens")
	return strings.Join(tokens, ".")
}

func drawLimits(rt *rapid.T) string {
	limit := rapid.Custom(func(rt *rapid.T) string {
		count := rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8, 13}).Draw(rt, "count")
		count = max(count, 1-rapid.IntRange(0, 4).Draw(rt, "blocked")/4)
		window := rapid.SampledFrom([]string{"1ms", "1s", "20s", "1m", "7m", "1h"}).Draw(rt, "window")
		// Half of the limits are logs, because several logs may have one window.
		all := algorithm.All()
		for range len(all) - 1 {
			all = append(all, algorithm.SlidingLog)
		}
		drawn := rapid.SampledFrom(all).Draw(rt, "algorithm")
		text := fmt.Sprintf("%s:%d/%s", drawn, count, window)
		if drawn.Description().Bursts && count > 1 {
			text += fmt.Sprintf(";burst=%d", rapid.IntRange(1, count).Draw(rt, "burst"))
		}
		return text
	})
	distinct := func(text string) string {
		kind, rest, _ := strings.Cut(text, ":")
		_, window, _ := strings.Cut(rest, "/")
		window, _, _ = strings.Cut(window, ";")
		return kind + window
	}
	limits := rapid.SliceOfNDistinct(limit, 0, 3, distinct).Draw(rt, "limits")
	if len(limits) == 0 {
		return "none"
	}
	return strings.Join(limits, "+")
}

// drawGuarantees draws guarantees that the global limits can keep.
func drawGuarantees(rt *rapid.T, global limits.Limits) []limits.Guarantee {
	left := int64(-1)
	for _, limit := range global {
		if limit.Description().PerNode && (left < 0 || limit.Count < left) {
			left = limit.Count
		}
	}
	var guarantees []limits.Guarantee
	for _, path := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "a.a", "a.b", "b.a.b"}), 0, 3, rapid.ID[string]).Draw(rt, "guarantees") {
		if left < 1 {
			break
		}
		slots := rapid.Int64Range(1, left).Draw(rt, "slots")
		left -= slots
		guarantees = append(guarantees, limits.Guarantee{Path: path, Slots: slots})
	}
	return guarantees
}

// drawTree draws limits that can keep the guarantees. Guarantees never change while workers run, so only nil guarantees are drawn.
func drawTree(rt *rapid.T, guarantees *[]limits.Guarantee) *limits.Tree {
	texts := rapid.Custom(drawLimits)
	pattern := rapid.Custom(func(rt *rapid.T) string {
		tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "*"}), 1, 8).Draw(rt, "pattern")
		return strings.Join(tokens, ".")
	}).Filter(func(pattern string) bool { return pattern != "*" })
	var rules []string
	for _, p := range rapid.SliceOfNDistinct(pattern, 0, 8, rapid.ID[string]).Draw(rt, "patterns") {
		rules = append(rules, p+"="+texts.Draw(rt, "rule"))
	}
	for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "*", "*.*", "b.*", "*.b.a"}), 0, 3, rapid.ID[string]).Draw(rt, "patterns of keys") {
		rules = append(rules, p+"@key="+texts.Draw(rt, "rule of each key"))
	}
	plan := newPlan(rt, texts.Draw(rt, "global"), texts.Draw(rt, "category"), strings.Join(rules, ","))
	if *guarantees == nil {
		*guarantees = append([]limits.Guarantee{}, drawGuarantees(rt, plan.Global)...)
	}
	plan.Guarantees = *guarantees
	if limits.CheckGuarantees(plan.Global, plan.Guarantees) != nil {
		plan.Global = parseLimits(rt, "13/1m+fixed:5/1s")
	}
	tree := testkit.Must(limits.NewTree(plan))(rt)
	rt.Logf("limits:\n%sguarantees: %v", tree, plan.Guarantees)
	return tree
}

// modelKeys are the keys of drawn events.
var modelKeys = []string{"", "x", "y"}

// generations is how many stored messages drawRequest draws for an event.
const generations = 3

// drawRequest draws an event in one of its messages. A redelivery has the category and cost of the first delivery.
func (m *model) drawRequest(rt *rapid.T) Request {
	number := rapid.IntRange(1, 12).Draw(rt, "event")
	generation := rapid.IntRange(0, generations-1).Draw(rt, "message")
	isDerived := number > 8
	name := fmt.Sprint(number, "/", generation)
	request, known := m.events[name]
	if !known {
		request.Category = m.categories[number%len(m.categories)] // an identity has its category
		request.Cost = rapid.SampledFrom([]int{1, 1, 1, 2, 3, 9}).Draw(rt, "cost")
		request = m.drawKey(rt, request)
		request.Message = Message{Stream: "EVENTS", Sequence: uint64(number), Stored: start.Add(time.Duration(generation) * time.Hour)}
		request.ID, request.Derived = fmt.Sprint("event-", number), isDerived
		if isDerived {
			request.ID = fmt.Sprint("EVENTS:", number)
		}
		m.events[name] = request
	}
	if rapid.IntRange(0, 9).Draw(rt, "look") == 0 {
		request.Cost = 0
	}
	return request
}

// drawKey draws what an event is about, how severe it is, and whether it may be folded into a message about that.
func (m *model) drawKey(rt *rapid.T, request Request) Request {
	request.Key = rapid.SampledFrom(modelKeys).Draw(rt, "key")
	request.Severity = rapid.SampledFrom([]event.Severity{event.SeverityInfo, event.SeverityCritical}).Draw(rt, "severity")
	if !m.keyed || request.Key == "" {
		return request
	}
	request.Fold = Folding{
		Within: rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(rt, "folded within"), Counts: rapid.Bool().Draw(rt, "counts"),
		Severity: request.Severity.Rank(), ComesBack: 2 * time.Second,
	}
	return request.ofPair(request.Key)
}

// drawResolved draws an event that resolves the key of a drawn event, stored after all events before. It may have the other event's ID.
func (m *model) drawResolved(rt *rapid.T) Request {
	if i := rapid.IntRange(0, max(2, len(m.resolved))).Draw(rt, "resolved"); i < len(m.resolved) {
		return m.resolved[i]
	}
	request := m.drawRequest(rt)
	request.Cost, request.Resolves = 1, true
	if rapid.Bool().Draw(rt, "own ID") {
		request.ID = fmt.Sprint("resolved-", len(m.resolved))
	}
	request.Message.Stored = m.nextStored()
	request = request.ofPair(request.Key)
	m.resolved = append(m.resolved, request)
	return request
}

// nextStored returns when the next new event is stored.
func (m *model) nextStored() time.Time {
	return start.Add(time.Duration(generations+len(m.events)+len(m.resolved)) * time.Hour)
}

func (m *model) drawRequests(rt *rapid.T) []Request {
	var requests []Request
	for range rapid.IntRange(1, 8).Draw(rt, "events") {
		request := m.drawRequest(rt)
		// The retention outlives redeliveries, so no forgotten message comes again.
		if !m.forgotten(request) {
			requests = append(requests, request)
		}
	}
	return requests
}

// forgotten reports that the store no longer knows a message that took slots.
func (m *model) forgotten(request Request) bool {
	if m.admitted[stampedRecord(request)] == 0 {
		return false
	}
	r := m.memory.records.byKey[request.eventKey()]
	return r == nil || r.version != request.Message.version() || !m.memory.records.remembered(r, m.memory.times.now()+1)
}

// drawLeases draws indexes of leases of different events. The leases may have ended.
func (m *model) drawLeases(rt *rapid.T) []int {
	if len(m.leases) == 0 {
		return nil
	}
	recent := max(0, len(m.leases)-12)
	indexes := rapid.SliceOfNDistinct(rapid.IntRange(recent, len(m.leases)-1), 1, 5, func(i int) string { return m.leases[i].Request.eventKey() })
	return indexes.Draw(rt, "leases")
}

// refundable leaves out refunds that the logs cannot distinguish, since a log knows only a slot's name. A slot of that name may belong
// to another message with the ID, or the event may have left the slot behind.
func (m *model) refundable(held heldLease) bool {
	if held.Resolving {
		return true
	}
	if leavesBehind(held) {
		return false
	}
	if !held.none && !held.left && held.rules == held.evaluated {
		return true
	}
	return !slices.ContainsFunc(m.leases, func(other heldLease) bool {
		return other.Request.ID == held.Request.ID && other.Request.Message != held.Request.Message
	})
}

// leavesBehind reports that an event has slots in a log unknown to its lease, because the limits changed.
func leavesBehind(held heldLease) bool {
	known := held.rules.InForce.Route(held.Request.Category, held.Request.Key).buckets
	return slices.ContainsFunc(held.evaluated.InForce.Route(held.Request.Category, held.Request.Key).buckets, func(log bucket) bool {
		return log.algorithm.Description().PerNode && !slices.ContainsFunc(known, func(m bucket) bool { return m.name == log.name })
	})
}

func (m *model) shortestWindow(category string) int64 {
	shortest := limits.MaxWindow
	for _, node := range m.settings.Tree.PathOfKey(category, "any") {
		for _, limit := range node.Limits {
			shortest = min(shortest, limit.Window)
		}
	}
	return shortest.Microseconds()
}
