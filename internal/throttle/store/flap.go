package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Flap is the rule for flapping: a key that changes that often between firing and resolved within the window is flapping. If Changes is 0,
// no key is.
type Flap struct {
	Changes int
	Window  time.Duration
}

// versions is the window as a difference of versions.
func (f Flap) versions() int64 { return f.Window.Milliseconds() * versionSequences }

// Change is the version of an event that changed the state of its key. Later events have larger versions.
type Change int64

// At is when the event was stored, to the millisecond.
func (c Change) At() time.Time { return time.UnixMilli(int64(c) / versionSequences).UTC() }

// Change returns the version of the event. The key's newest change is this one or an earlier one.
func (r Request) Change() Change { return Change(r.Message.version()) }

// Report returns the request for the report that the flapping key of the event has not changed since. No event has its identity: no
// category contains '~'.
func (r Request) Report(since Change) Request {
	_, key, _ := strings.Cut(r.Pair, "\n")
	r.ID, r.Derived = fmt.Sprintf("%s~steady-%d %s", r.Category, since, key), false
	r.Resolves, r.Slotless, r.Steady = true, false, since
	return r
}

// resolvesUpto returns the version up to which a resolved event resolves the messages of its pair. For a report it is the change since
// which the key is steady.
func (r Request) resolvesUpto() int64 { return cmp.Or(int64(r.Steady), r.Message.version()) }

// kind returns how the rule for flapping counts the event, as resolve.lua reads it.
func (r Request) kind() int {
	switch {
	case r.Steady > 0:
		return 2
	case r.Fold.Counts:
		return 1
	}
	return 0
}

// memoryFlap is the state of a key, as lib/flaps.lua stores it.
type memoryFlap struct {
	flapping, fires bool
	version         int64
	changes         []int64
	expires         int64
}

// flap returns the state of a key; nil if it is not remembered.
func (p *memoryPairs) flap(pair string, now int64) *memoryFlap {
	if flap := p.flaps[pair]; flap != nil && flap.expires > now {
		return flap
	}
	return nil
}

func (p *memoryPairs) keepFlap(pair string, flap *memoryFlap, now int64) {
	flap.expires = now + (p.rule.Window + time.Hour).Microseconds() // CALM_KEPT of lib/flaps.lua is an hour
	if flap.flapping {
		flap.expires = now + p.ttl.Microseconds()
	}
	p.flaps[pair] = flap
}

// countChange counts an event of a key, and reports whether the key is flapping: count_change of lib/flaps.lua.
func (p *memoryPairs) countChange(request Request, now int64) bool {
	flap, fires, version := p.flap(request.Pair, now), !request.Resolves, request.Message.version()
	_, isOpen := p.of(request.Pair, now)
	if !request.Fold.Counts || !fires && !isOpen && (flap == nil || !flap.fires) {
		return false
	}
	if flap == nil {
		flap = &memoryFlap{fires: true}
	}
	if version <= flap.version {
		return flap.flapping
	}
	before, changed := int64(0), flap.fires != fires
	if len(flap.changes) > 0 {
		before = flap.changes[len(flap.changes)-1]
	}
	if changed {
		flap.changes = append(flap.changes, version)
		flap.changes = slices.Clone(flap.changes[max(0, len(flap.changes)-p.rule.Changes):])
	}
	if changed && len(flap.changes) == p.rule.Changes && version-flap.changes[0] < p.rule.versions() {
		flap.flapping = true
	} else if !isOpen && version-before >= p.rule.versions() {
		flap.flapping = false
	}
	flap.fires, flap.version = fires, version
	p.keepFlap(request.Pair, flap, now)
	return flap.flapping
}

// mark notes in the decision about an event that is or was delivered whether its key is flapping.
func (p *memoryPairs) mark(d *Decision, request Request, now int64) {
	if request.Fold.Counts && (d.Verdict == Admitted || d.Verdict == Reclaimed || d.Verdict == Done) {
		flap := p.flap(request.Pair, now)
		d.Flaps = flap != nil && flap.flapping
	}
}

// report decides about the report that a key is steady: report of resolve.lua.
func (p *memoryPairs) report(request Request, now int64) (resolution Decision, taken []pairMessage) {
	flap := p.flap(request.Pair, now)
	if flap == nil || !flap.flapping {
		return Decision{Verdict: Done}, nil
	}
	newest := Change(flap.changes[len(flap.changes)-1])
	pair, isOpen := p.of(request.Pair, now)
	if isOpen && newest != request.Steady {
		return Decision{Verdict: Leased, Wait: time.Second, Changed: newest}, nil
	}
	flap.flapping = false
	p.keepFlap(request.Pair, flap, now)
	switch {
	case !isOpen:
		return Decision{Verdict: Done}, nil
	case flap.fires:
		older, newest := pair.messages[:len(pair.messages)-1], pair.messages[len(pair.messages)-1]
		copies := append([]pairMessage{newest}, older...)
		for i := range copies {
			copies[i].staysOpen = true
		}
		p.byField["\n"+request.eventKey()] = memoryPair{messages: copies, expires: pair.expires}
		return Decision{Verdict: Admitted}, nil
	}
	return Decision{Verdict: Admitted}, p.take(pair, request)
}
