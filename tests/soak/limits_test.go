//go:build soak

package soak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/oracle"
)

// checkLost wants a post of each admitted and of each certain event, and a dead letter of each bad one.
func (v *verdict) checkLost() {
	var lost []string
	posted, dropped, must := 0, 0, 0
	admitted := v.lastAdmissions()
	for id, e := range v.entries {
		sent, dead := len(v.posts[id]) > 0, v.dead[id] > 0
		a := admitted[id]
		switch {
		case sent:
			posted++
		case dead:
		case e.Fate == doomed:
			lost = append(lost, fmt.Sprintf("%s is no dead letter", id))
		case a != nil && !a.Returned:
			lost = append(lost, fmt.Sprintf("%s was admitted at %v and never posted", id, moment(a.At)))
		case e.Fate == certain:
			lost = append(lost, fmt.Sprintf("%s of %s had room and was never posted (published %v)", id, e.Category, clock(e.Stored)))
		default:
			dropped++
		}
		if e.Fate == certain {
			must++
		}
	}
	for id, a := range admitted {
		// The full room may refuse an event that another worker may have posted: it is dropped, and recorded as if delivered.
		inDoubt := !v.history.recorded[id].IsZero()
		if v.entries[id] == nil && !a.Returned && len(v.posts[id]) == 0 && v.hostileDead[id] == 0 && !inDoubt {
			lost = append(lost, fmt.Sprintf("%s was admitted at %v and never posted", id, moment(a.At)))
		}
	}
	v.add(lossPromise, posted, fmt.Sprintf("%d events: %d posted, %d dropped, %d dead; %d had to be posted, %d were admitted",
		len(v.entries), posted, dropped, len(v.dead), must, len(admitted)), lost)
}

func (v *verdict) lastAdmissions() map[string]*admission {
	last := make(map[string]*admission)
	for _, a := range v.history.admissions {
		last[a.ID] = a
	}
	return last
}

// checkOutcomes looks for dead letters of good events, and for posts of bad and unknown ones.
func (v *verdict) checkOutcomes() {
	var wrong []string
	for id, n := range v.dead {
		switch e := v.entries[id]; {
		case e == nil:
			wrong = append(wrong, fmt.Sprintf("%q is a dead letter, and was not published", id))
		case e.Fate != doomed:
			wrong = append(wrong, fmt.Sprintf("%s is a dead letter", id))
		case n > e.Copies:
			wrong = append(wrong, fmt.Sprintf("%s is %d dead letters of at most %d messages", id, n, e.Copies))
		}
	}
	for id, posts := range v.posts {
		switch e := v.entries[id]; {
		case e == nil && isHostile(v.categoryOf(id)):
		case e == nil:
			wrong = append(wrong, fmt.Sprintf("%q was posted, and was not published: %s", id, posts[0].Text))
		case e.Fate == doomed:
			wrong = append(wrong, fmt.Sprintf("%s was posted", id))
		}
	}
	v.add("one outcome", len(v.dead), fmt.Sprintf("%d dead letters", len(v.dead)), wrong)
}

// checkLimits checks the admissions against the limits in pieces, which overlap by longestMemory, and wants an admission of each post.
// A killed Redis may have lost admissions: see lostAdmissions.
func (v *verdict) checkLimits() {
	events := v.history.events(v.categoryOf)
	var broken []string
	const piece = int64(60e6)
	for from := 0; from < len(events); {
		start := events[from].At
		upto := from
		for upto < len(events) && events[upto].At < start+piece {
			upto++
		}
		before := from
		for before > 0 && events[before-1].At > start-longestMemory.Microseconds() {
			before--
		}
		if err := oracle.Check(limits, events[before:upto]); err != nil {
			broken = append(broken, strings.Split(err.Error(), "\n")...)
		}
		from = upto
	}
	slices.Sort(broken)
	broken = append(slices.Compact(broken), v.history.overInUse...)
	lost, ofLost := v.lostAdmissions()
	v.add("never above a limit", len(events), fmt.Sprintf("%d admissions under %d limits; %d were lost in kills of Redis (appendfsync everysec)",
		len(events), len(limits.Limits)+1, lost), append(broken, ofLost...))
	v.add("all or nothing", len(v.history.seen), fmt.Sprintf("%d logs", len(v.history.seen)), v.history.faults)
}

// lostSlots are the slots of posts without an admission that one limit counts, and the kills of Redis that may have lost them.
type lostSlots struct {
	slots  int64
	losses map[*incident]bool
}

// lostAdmissions counts the posts without an admission, and returns those that no kill of Redis explains. An event is admitted between its
// publish and its post, however long it waits meanwhile. A kill loses the newest admissions, no more than the limits let pass in that time.
func (v *verdict) lostAdmissions() (sum int, broken []string) {
	admitted, lost := v.lastAdmissions(), make([]lostSlots, len(limits.Limits))
	for id, posts := range v.posts {
		e, path := v.entries[id], v.categoryOf(id)
		if e == nil && !isHostile(path) || e != nil && (e.Fate == resolves || e.Fate == ends) || admitted[id] != nil {
			continue
		}
		sum++
		published, cost := time.Time{}, int64(1) // of a hostile event, which no ledger has
		if e != nil {
			published, cost = e.Began, e.Cost
		}
		losses := v.losses(published, posts[0].Received)
		if len(losses) == 0 {
			broken = append(broken, fmt.Sprintf("%s was posted at %v, and Redis has never admitted it", id, clock(posts[0].Received)))
			continue
		}
		for i, limit := range limits.Limits {
			if limit.Path == "" || strings.HasPrefix(path+".", limit.Path+".") {
				lost[i].add(cost, losses)
			}
		}
	}
	for i, of := range lost {
		if most := mostLost(limits.Limits[i]) * int64(len(of.losses)); of.slots > most {
			broken = append(broken, fmt.Sprintf("%d slots of %v are missing after %d losses, want %d at most", of.slots, limits.Limits[i], len(of.losses), most))
		}
	}
	return sum, broken
}

// add counts the slots of a post whose admission one of the losses explains.
func (l *lostSlots) add(slots int64, losses []*incident) {
	if l.losses == nil {
		l.losses = make(map[*incident]bool)
	}
	l.slots += slots
	for _, loss := range losses {
		l.losses[loss] = true
	}
}

// mostLost bounds the slots that one kill loses of a limit.
func mostLost(limit oracle.Limit) int64 {
	const killed = time.Second // from the time of an incident to the end of the process
	windows := (unwritten+killed).Microseconds()/limit.Window + 1
	if limit.Kind != oracle.Log { // a span as long as a window touches two of them
		windows++
	}
	return windows * (limit.Count + limit.Burst)
}

func (v *verdict) categoryOf(id string) string {
	if e := v.entries[id]; e != nil {
		return e.path()
	}
	category, _, _ := strings.Cut(id, " ") // the ID is an identity
	category, _, _ = strings.Cut(category, "#")
	return category
}

// checkCountedOnce looks for a second admission of an event whose first one was not returned, and for wrong costs.
func (v *verdict) checkCountedOnce() {
	var twice []string
	before := make(map[string]*admission)
	for _, a := range v.history.admissions {
		if b := before[a.ID]; b != nil && !b.Returned {
			twice = append(twice, fmt.Sprintf("%s took slots at %v and again at %v", a.ID, moment(b.At), moment(a.At)))
		}
		before[a.ID] = a
		if e := v.entries[a.ID]; e == nil && isHostile(v.categoryOf(a.ID)) {
			if a.Slots != 1 {
				twice = append(twice, fmt.Sprintf("%s took %d slots", a.ID, a.Slots))
			}
		} else if e == nil {
			twice = append(twice, fmt.Sprintf("%q took slots, and was not published", a.ID))
		} else if e.Cost != a.Slots {
			twice = append(twice, fmt.Sprintf("%s of cost %d took %d slots", a.ID, e.Cost, a.Slots))
		}
	}
	v.add("counted once", len(before), fmt.Sprintf("%d admissions of %d events", len(v.history.admissions), len(before)), twice)
}

// mostEvaluated bounds the evaluated drops, since each takes a while.
const mostEvaluated = 3000

// checkNeedlessDrops evaluates the drops of watched events. A worker decided about such an event between its publish and the end of its
// message, by a state that the deny cache may have kept for its time to live. With room for the event in all of that time the drop was
// needless, unless admissions of that time are missing because Redis lost them.
func (v *verdict) checkNeedlessDrops() {
	history := v.history.events(v.categoryOf)
	for i := range history {
		history[i].Returned = oracle.Span{} // the exact time is unknown, so a return makes no room
	}
	var needless []string
	evaluated := 0
	for id, e := range v.entries {
		watched := e.Fate == limited && e.Copies == 1 && !e.Settled.IsZero() && e.Category != "soon" && e.Category != "busy" &&
			e.Category != mutedCategory // a mute drops events while there is room
		from := e.Began.Add(-denyCacheTTL)
		if !watched || len(v.posts[id]) > 0 || evaluated == mostEvaluated || v.history.root[id] != nil || v.mayLose(from, e.Settled) {
			continue
		}
		evaluated++
		if hadRoom(history, e, from, e.Settled) {
			needless = append(needless, fmt.Sprintf("%s of %s, cost %d, was dropped between %v and %v", id, e.Category, e.Cost, clock(e.Began), clock(e.Settled)))
		}
	}
	v.add("no needless drop", evaluated, fmt.Sprintf("%d drops evaluated", evaluated), needless)
}

// hadRoom reports whether all limits had room for an event throughout a time: at its beginning, and after each admission in it.
func hadRoom(history []oracle.Event, e *entry, from, upto time.Time) bool {
	first, last := from.UnixMicro(), upto.UnixMicro()
	begin, _ := slices.BinarySearchFunc(history, first-longestMemory.Microseconds(), byTime)
	end, _ := slices.BinarySearchFunc(history, last, byTime)
	moments := []int64{first}
	for _, other := range history[begin:end] {
		if other.At >= first {
			moments = append(moments, other.At+1)
		}
	}
	slices.Reverse(moments) // a late moment is the most likely one without room
	for _, at := range moments {
		here, _ := slices.BinarySearchFunc(history, at, byTime)
		asked := oracle.Event{ID: "asked", Category: e.path(), Cost: e.Cost, At: at, Call: len(history), Admitted: true}
		tried := append(slices.Clone(history[begin:here]), asked)
		if oracle.Check(limits, tried) != nil { // no room, or an earlier violation
			return false
		}
	}
	return true
}

func byTime(e oracle.Event, at int64) int { return cmp.Compare(e.At, at) }
