// Package oracle checks the observed decisions of a limiter. It knows what limits promise and nothing of their implementation: it takes the
// limits as plain values, and each admission and denial as a client received it.
//
// [Check] is a pure function. It is for tests; its cost grows with the square of the number of events.
package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind is the name of the algorithm that counts a limit.
type Kind string

// The kinds.
const (
	Log      Kind = "log"      // at most Count slots in any window (t − Window, t]
	Counter  Kind = "counter"  // like Log; it assumes that slots of the previous aligned window are spread evenly
	Fixed    Kind = "fixed"    // at most Count slots in each window between multiples of its length
	Token    Kind = "token"    // in any span no more than Burst + Count × span / Window
	Leaky    Kind = "leaky"    // after each slot Window / Count without any
	InFlight Kind = "inflight" // at most Count slots of deliveries under way
)

// promise is what the limits of a kind promise.
type promise struct {
	fits            func(c *checker, limit Limit, there []Event, event Event, at int64) bool
	followsDelivery bool  // slots come back when the delivery ends
	vagueReturns    bool  // what a returned slot frees depends on what came after it
	rollingBelow    int64 // a rolling window has fewer slots than this times the count; 0: nothing is promised besides fits
}

// promises has each kind.
var promises = map[Kind]promise{
	Log:      {fits: (*checker).fitsLog},
	Counter:  {fits: fitsCounter, rollingBelow: 2},
	Fixed:    {fits: fitsFixed},
	Token:    {fits: fitsToken, vagueReturns: true},
	Leaky:    {fits: fitsLeaky, vagueReturns: true},
	InFlight: {fits: fitsInFlight, followsDelivery: true},
}

// Knows reports whether the oracle can check limits of a kind.
func Knows(kind Kind) bool { return promises[kind].fits != nil }

// Limit holds for the events of a path and below it; of "" for all. Times are microseconds.
type Limit struct {
	Path   string
	Keyed  bool // it counts the events of each key by themselves, and no event without a key
	Kind   Kind
	Count  int64
	Window int64
	Burst  int64 // Token
}

// Guarantee is slots that belong to a path in each window of the log limits of path "".
type Guarantee struct {
	Path  string
	Slots int64
}

// Deployment is the limits that were in force all the time, in the order of evaluation: a denial names the first full limit.
type Deployment struct {
	Limits     []Limit
	Guarantees []Guarantee
}

// Span is when something happened that a client cannot time: not before From and not after Upto. The zero Span is never.
type Span struct{ From, Upto int64 }

func (s Span) never() bool { return s == Span{} }

// Event is one decision.
type Event struct {
	ID       string
	Category string
	Key      string // "" for none
	Cost     int64
	At       int64
	Call     int // events of one call are decided together, in the order of the slice

	Admitted bool
	Returned Span // when its slots were returned, since it was not delivered
	Ended    Span // its slots of InFlight limits came back

	By   Limit // that denied it
	Next int64 // the denial's time of the next slots
}

// maxFaults bounds the reported faults: most later faults follow from the first fault.
const maxFaults = 10

// Check returns an error if the decisions break a promise:
//   - an ID was admitted twice, and its slots were not returned in between;
//   - a limit had no room for an admission, or the limiter broke a guarantee;
//   - a denial was needless: the named limit had room, or an earlier limit was full;
//   - the time in a denial is not when the slots open, given the state at the denial.
//
// If slots may have been returned before a decision, Check accepts both possibilities. How much of a slot a Token or Leaky limit returns
// depends on later events, so Check is less strict about denials after a return. For InFlight limits the time of the denial's next slots
// only has to be later than the denial.
func Check(d Deployment, events []Event) error {
	c := checker{Deployment: d, admitted: make(map[string]Event)}
	for _, event := range inOrder(events) {
		if event.Admitted {
			c.checkAdmission(event)
			c.history = append(c.history, event)
		} else {
			c.checkDenial(event)
		}
		if len(c.faults) >= maxFaults {
			break
		}
	}
	return errors.Join(c.faults...)
}

// inOrder sorts events in decision order. A call that admits an event has a unique time or is the last call of its time.
func inOrder(events []Event) []Event {
	admits := make(map[int]int)
	for _, event := range events {
		if event.Admitted {
			admits[event.Call] = 1
		}
	}
	ordered := slices.Clone(events)
	slices.SortStableFunc(ordered, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(admits[a.Call], admits[b.Call]), cmp.Compare(a.Call, b.Call))
	})
	return ordered
}

type checker struct {
	Deployment
	history  []Event          // admitted so far
	admitted map[string]Event // by ID, the latest
	faults   []error
}

func (c *checker) fault(format string, arguments ...any) {
	c.faults = append(c.faults, fmt.Errorf(format, arguments...))
}

func (c *checker) checkAdmission(event Event) {
	if before, twice := c.admitted[event.ID]; twice && before.Returned.never() {
		c.fault("%s was admitted at %d and again at %d", event.ID, before.At, event.At)
	}
	c.admitted[event.ID] = event
	for _, limit := range c.Limits {
		if !limit.counts(event) {
			continue
		}
		there := c.surelyThere(limit, event, event.At)
		if !c.fits(limit, there, event, event.At) {
			c.fault("%s of cost %d in %q was admitted at %d, where %s had no room", event.ID, event.Cost, event.Category, event.At, limit)
		}
		rolling := slotsBetween(there, event.At-limit.Window, event.At) + event.Cost
		if times := promises[limit.Kind].rollingBelow; times > 0 && rolling >= times*limit.Count {
			c.fault("%s at %d makes %d slots in one window of %s", event.ID, event.At, rolling, limit)
		}
	}
}

func (c *checker) checkDenial(event Event) {
	place := slices.Index(c.Limits, event.By)
	if place < 0 || !event.By.counts(event) {
		c.fault("%s in %q was denied by %s, which is no limit of it", event.ID, event.Category, event.By)
		return
	}
	there, perhaps := c.surelyThere(event.By, event, event.At), c.perhapsThere(event.By, event, event.At)
	if c.fits(event.By, perhaps, event, event.At) {
		c.fault("%s of cost %d in %q was denied needlessly at %d: %s had room", event.ID, event.Cost, event.Category, event.At, event.By)
		return
	}
	for _, limit := range c.Limits[:place] {
		if limit.counts(event) && !c.fits(limit, c.surelyThere(limit, event, event.At), event, event.At) {
			c.fault("%s in %q was denied by %s at %d, though %s was full before it", event.ID, event.Category, event.By, event.At, limit)
		}
	}
	switch {
	case event.Next <= event.At:
		c.fault("%s was denied at %d with the next slot at %d", event.ID, event.At, event.Next)
	case promises[event.By.Kind].followsDelivery || len(there) != len(perhaps):
	case c.fits(event.By, there, event, event.Next-1):
		c.fault("%s was denied at %d until %d, but there is room in %s sooner", event.ID, event.At, event.Next, event.By)
	case !c.fits(event.By, there, event, event.Next):
		c.fault("%s was denied at %d until %d, but there is no room in %s then", event.ID, event.At, event.Next, event.By)
	}
}

// surelyThere returns the admissions that certainly count, for a limit of an event, at a time.
func (c *checker) surelyThere(limit Limit, event Event, at int64) []Event {
	return c.there(limit, event, func(left Span) bool { return left.From > at })
}

// perhapsThere returns the admissions that may count, for a limit of an event, at a time.
func (c *checker) perhapsThere(limit Limit, event Event, at int64) []Event {
	return c.there(limit, event, func(left Span) bool { return promises[limit.Kind].vagueReturns || left.Upto > at })
}

// there returns the admissions that still count for a limit of an event. An admission whose slots left the limit still counts if counts
// returns true.
func (c *checker) there(limit Limit, event Event, counts func(left Span) bool) (there []Event) {
	for _, e := range c.history {
		left := e.Returned
		if promises[limit.Kind].followsDelivery && left.never() {
			left = e.Ended
		}
		if limit.counts(e) && (!limit.Keyed || e.Key == event.Key) && (left.never() || counts(left)) {
			there = append(there, e)
		}
	}
	return there
}

// fits reports whether a limit has room for an event at a time, if nothing else comes between.
func (c *checker) fits(limit Limit, there []Event, event Event, at int64) bool {
	return limit.Count > 0 && promises[limit.Kind].fits(c, limit, there, event, at)
}

func fitsCounter(_ *checker, limit Limit, there []Event, event Event, at int64) bool {
	begin := at - at%limit.Window
	current, before := slotsBetween(there, begin-1, at), slotsBetween(there, begin-limit.Window-1, begin-1)
	return before*(limit.Window-(at-begin))+(current+event.Cost)*limit.Window <= limit.Count*limit.Window
}

func fitsFixed(_ *checker, limit Limit, there []Event, event Event, at int64) bool {
	return slotsBetween(there, at-at%limit.Window-1, at)+event.Cost <= limit.Count
}

func fitsToken(_ *checker, limit Limit, there []Event, event Event, at int64) bool {
	slots := event.Cost
	enough := slots <= limit.Burst
	for _, e := range slices.Backward(there) {
		slots += e.Cost
		enough = enough && slots*limit.Window <= limit.Burst*limit.Window+limit.Count*(at-e.At)
	}
	return enough
}

func fitsLeaky(_ *checker, limit Limit, there []Event, _ Event, at int64) bool {
	return !slices.ContainsFunc(there, func(e Event) bool { return (at-e.At)*limit.Count < e.Cost*limit.Window })
}

func fitsInFlight(_ *checker, limit Limit, there []Event, event Event, at int64) bool {
	return slotsBetween(there, 0, at)+event.Cost <= limit.Count
}

// fitsLog also keeps what belongs to guarantees and is not used.
func (c *checker) fitsLog(limit Limit, there []Event, event Event, at int64) bool {
	from := at - limit.Window
	kept := int64(0)
	for _, guarantee := range c.Guarantees {
		if limit.Path != "" {
			break
		}
		used := int64(0)
		for _, e := range there {
			if e.At > from && e.At <= at && c.guaranteeOf(e.Category) == guarantee {
				used += e.Cost
			}
		}
		if c.guaranteeOf(event.Category) == guarantee {
			used += event.Cost
		}
		kept += max(0, guarantee.Slots-used)
	}
	return slotsBetween(there, from, at)+event.Cost+kept <= limit.Count
}

// guaranteeOf is the most specific one that a category belongs to.
func (c *checker) guaranteeOf(category string) Guarantee {
	var found Guarantee
	for _, guarantee := range c.Guarantees {
		if within(category, guarantee.Path) && len(guarantee.Path) > len(found.Path) {
			found = guarantee
		}
	}
	return found
}

// slotsBetween returns the number of slots that events took in (from, upto].
func slotsBetween(events []Event, from, upto int64) int64 {
	slots := int64(0)
	for _, e := range slices.Backward(events) {
		if e.At <= from {
			break
		}
		if e.At <= upto {
			slots += e.Cost
		}
	}
	return slots
}

// counts reports whether a limit applies to an event.
func (l Limit) counts(e Event) bool { return within(e.Category, l.Path) && (!l.Keyed || e.Key != "") }

// within reports whether a category is a path or lies below it.
func within(category, path string) bool {
	return path == "" || category == path || strings.HasPrefix(category, path+".")
}

// String names a limit in a fault.
func (l Limit) String() string {
	of := ""
	if l.Keyed {
		of = "each key of "
	}
	return fmt.Sprintf("the %s limit %d/%dµs of %s%q", l.Kind, l.Count, l.Window, of, l.Path)
}
