package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/schedule"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Limiter is the Evaluator that decides as Redis does. It uses the limiter of a worker that is alone.
type Limiter struct {
	o        Options
	memory   *store.Memory
	muting   []bool // which of the mutes are in force
	reports  reports
	now      time.Time
	oneByOne bool
}

// Mute mutes a path, always or by a schedule.
type Mute struct {
	Path  string
	Every *schedule.Weekly // nil: always
}

// ParseMute reads PATH or PATH=SCHEDULE.
func ParseMute(text string) (m Mute, err error) {
	path, every, recurs := strings.Cut(text, "=")
	if m.Path = strings.TrimSpace(path); m.Path != event.Everything {
		_, err = event.ParsePattern(m.Path)
	}
	if recurs && err == nil {
		var weekly schedule.Weekly
		weekly, err = schedule.Parse(every)
		m.Every = &weekly
	}
	return m, err
}

// adoptMutes puts the mutes of the moment in force.
func (l *Limiter) adoptMutes() {
	rules, changed := limits.Ruleset{Tree: l.o.Tree}, false
	for i, mute := range l.o.Mutes {
		mutes := true
		if mute.Every != nil {
			begin, _ := mute.Every.Next(l.now)
			mutes = !begin.After(l.now)
		}
		changed = changed || mutes != l.muting[i]
		if l.muting[i] = mutes; mutes {
			rules.Mutes = append(rules.Mutes, &limits.Mute{Path: mute.Path})
		}
	}
	if changed {
		l.memory.AdoptRules(store.Compile(rules))
	}
}

// deliveryLease is longer than a simulated delivery, which takes no time.
const deliveryLease = time.Minute

// Options configure a Limiter.
type Options struct {
	Tree      *limits.Tree
	Retention time.Duration                       // how long an identity is remembered after its event was sent
	PairTTL   time.Duration                       // how long a pair is remembered
	Fold      func(category string) time.Duration // how old the message may be into which an event of its key is folded; 0, nil: none is
	Flap      store.Flap                          // which keys are flapping
	Mutes     []Mute                              // each is in force at its times
}

// NewLimiter returns a limiter without admissions.
func NewLimiter(o Options) *Limiter {
	if o.Fold == nil {
		o.Fold = func(string) time.Duration { return 0 }
	}
	l := &Limiter{
		o: o, muting: make([]bool, len(o.Mutes)), oneByOne: limitsUnderWay(o.Tree),
		reports: reports{window: o.Flap.Window, due: make(map[string]dueReport)},
	}
	settings := store.Settings{Tree: o.Tree, Lease: deliveryLease, Retention: o.Retention, PairTTL: o.PairTTL, Flap: o.Flap}
	l.memory = store.NewMemory(settings, func() time.Time { return l.now }, nil)
	l.memory.KeepPairs()
	return l
}

// limitsUnderWay reports whether a limit bounds the deliveries under way at once.
func limitsUnderWay(tree *limits.Tree) bool {
	return slices.ContainsFunc(tree.Levels(), func(node limits.Node) bool {
		return slices.ContainsFunc(node.Limits, func(limit limits.Limit) bool {
			return limit.Description().FollowsDelivery()
		})
	})
}

// Evaluate implements [Evaluator]. Events of one instant are evaluated together, so that all of them count at that instant. Resolved events
// follow, as in a worker. With an inflight limit, each delivery finishes before the next event is evaluated.
func (l *Limiter) Evaluate(events []Event) (verdicts []Verdict, err error) {
	l.report(events[0].At)
	l.now = events[0].At
	l.adoptMutes()
	var limited, resolving []int // places in events
	for i, e := range events {
		if e.Resolves {
			resolving = append(resolving, i)
		} else {
			limited = append(limited, i)
		}
	}
	together := max(1, len(limited))
	if l.oneByOne {
		together = 1
	}
	verdicts = make([]Verdict, len(events))
	for places := range slices.Chunk(limited, together) {
		for len(places) > 0 {
			requests := l.requests(events, places)
			decisions := l.memory.DecideOnce("", requests).Decisions
			l.noteFlaps(decisions, requests)
			if places, err = l.settle(decisions, verdicts, places); err != nil {
				return nil, err
			}
		}
	}
	requests := l.requests(events, resolving)
	resolutions := l.memory.Resolve(requests)
	l.noteFlaps(resolutions, requests)
	_, err = l.settle(resolutions, verdicts, resolving)
	return verdicts, err
}

// settle sets the verdicts on the events at these places, and finishes the deliveries of admitted events. It returns the places of events
// that waited for the message of their key, which is delivered now.
func (l *Limiter) settle(decisions []store.Decision, verdicts []Verdict, places []int) (waiting []int, err error) {
	var leases []store.Lease
	for i, decision := range decisions {
		verdict := &verdicts[places[i]]
		if decision.Awaits {
			waiting = append(waiting, places[i])
			continue
		}
		switch decision.Verdict {
		case store.Admitted:
			lease := decision.Lease
			lease.Receipt = "sent" // its message may count other events
			leases = append(leases, lease)
			verdict.Outcome = Sent
		case store.Denied, store.ExceedsCapacity:
			*verdict = Verdict{Outcome: Dropped, Level: decision.Node.Level}
		case store.Duplicate, store.Done, store.Leased, store.Reclaimed:
			// Each event comes once, so another event had its identity.
			verdict.Outcome = Duplicate
		case store.Folded:
			*verdict = Verdict{Outcome: Folded, Number: decision.Fold.Number}
		case store.Unpaired:
			*verdict = Verdict{Outcome: Dropped, Level: limits.LevelUnpaired}
		default:
			return nil, fmt.Errorf("deciding about events: unexpected verdict %s", decision.Verdict)
		}
	}
	if len(leases) > 0 {
		l.memory.Finish(leases)
	}
	return waiting, nil
}

// requests returns the requests that a worker makes about the events at these places.
func (l *Limiter) requests(events []Event, places []int) []store.Request {
	asked := make([]store.Request, len(places))
	for i, place := range places {
		e := events[place]
		asked[i] = store.Request{
			ID:       e.Identity,
			Derived:  e.Derived,
			Message:  store.Message{Stream: source, Sequence: e.Number, Stored: e.At},
			Category: e.Category,
			Key:      e.Key,
			Cost:     e.Cost,
			Resolves: e.Resolves,
			Fold:     store.Folding{Within: l.o.Fold(e.Category), Severity: e.Severity, Counts: l.o.Flap.Changes > 0 && e.Key != "" && (e.Fires || e.Resolves)},
		}
		if e.Key != "" && (e.Fires || e.Resolves || asked[i].Fold.Within > 0) {
			asked[i].Pair = event.Event{Category: e.Category, Key: e.Key}.Keyed()
		}
	}
	return asked
}
