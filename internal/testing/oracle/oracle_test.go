package oracle

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Limits of the cases, by letters. Times are microseconds.
var (
	logLimit   = Limit{Kind: Log, Count: 3, Window: 10}
	counter    = Limit{Kind: Counter, Count: 4, Window: 10}
	fixed      = Limit{Kind: Fixed, Count: 3, Window: 10}
	token      = Limit{Kind: Token, Count: 5, Window: 10, Burst: 3}
	leaky      = Limit{Kind: Leaky, Count: 3, Window: 10}
	inFlight   = Limit{Kind: InFlight, Count: 2, Window: 10}
	below      = Limit{Path: "a.b", Kind: Log, Count: 1, Window: 5}
	keyed      = Limit{Path: "a", Keyed: true, Kind: Log, Count: 1, Window: 10}
	guaranteed = Limit{Kind: Log, Count: 5, Window: 10}
)

// history builds events, each in a call of its own.
type history []Event

func (h history) admit(at int64, category string, cost int64) history {
	n := len(h) + 1
	return append(h, Event{ID: fmt.Sprint("e", n), Category: category, Cost: cost, At: at, Call: n, Admitted: true})
}

func (h history) deny(at int64, category string, cost int64, by Limit, next int64) history {
	n := len(h) + 1
	return append(h, Event{ID: fmt.Sprint("e", n), Category: category, Cost: cost, At: at, Call: n, By: by, Next: next})
}

// returned marks the latest event's slots as returned.
func (h history) returned(from, upto int64) history {
	h[len(h)-1].Returned = Span{from, upto}
	return h
}

func (h history) ended(from, upto int64) history {
	h[len(h)-1].Ended = Span{from, upto}
	return h
}

// inCallOf has the latest event decided in the call of the one before.
func (h history) inCallOf() history {
	h[len(h)-1].Call = h[len(h)-2].Call
	return h
}

// of gives the latest event a key.
func (h history) of(key string) history {
	h[len(h)-1].Key = key
	return h
}

// named gives the latest event another ID.
func (h history) named(id string) history {
	h[len(h)-1].ID = id
	return h
}

// h is where histories begin.
var h history

// wantFault expects Check to report a fault that contains a text; "" expects no fault.
func wantFault(t *testing.T, name string, d Deployment, events []Event, fault string) {
	t.Helper()
	err := Check(d, events)
	switch {
	case fault == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case fault != "" && (err == nil || !strings.Contains(err.Error(), fault)):
		t.Errorf("%s: %v, want a fault with %q", name, err, fault)
	}
}

// ofOneLimit lists histories under one limit, each with a part of its expected fault, "" if there is no fault.
var ofOneLimit = []struct {
	name   string
	limit  Limit
	events history
	fault  string
}{
	{"log is full", logLimit, h.admit(100, "a", 2).admit(109, "b", 1).deny(109, "a", 1, logLimit, 110).inCallOf().admit(110, "a", 2), ""},
	{"key has a slot of its own", keyed, h.admit(100, "a", 1).of("x").admit(101, "a.b", 1).of("y").admit(102, "a", 1).admit(103, "a", 1), ""},
	{"key is over", keyed, h.admit(100, "a", 1).of("x").admit(101, "a.b", 1).of("x"), "the log limit 1/10µs of each key of \"a\" had no room"},
	{"key is full", keyed, h.admit(100, "a", 1).of("x").deny(101, "a", 1, keyed, 110).of("x").admit(110, "a", 1).of("x"), ""},
	{"key of another is full", keyed, h.admit(100, "a", 1).of("x").deny(101, "a", 1, keyed, 110).of("y"), "needlessly"},
	{"no key is full", keyed, h.admit(100, "a", 1).of("x").deny(101, "a", 1, keyed, 110), "no limit of it"},
	{"log is over", logLimit, h.admit(100, "a", 2).admit(109, "b", 2), "e2 of cost 2 in \"b\" was admitted at 109"},
	{"log is over by one call", logLimit, h.admit(100, "a", 2).admit(100, "a", 2).inCallOf(), "e2"},

	{"a needless denial", logLimit, h.admit(100, "a", 2).deny(109, "b", 1, logLimit, 110), "denied needlessly"},
	{"a slot that just left", logLimit, h.admit(100, "a", 3).deny(110, "b", 1, logLimit, 111), "denied needlessly"},
	{"a denial before an admission of its time", logLimit, h.admit(100, "a", 3).deny(100, "b", 1, logLimit, 110), "denied needlessly"},
	{"a denial in the call of an admission", logLimit, h.admit(100, "a", 3).deny(100, "b", 1, logLimit, 110).inCallOf(), ""},
	{"an unknown limit", logLimit, h.admit(100, "a", 3).deny(105, "b", 1, fixed, 110), "which is no limit of it"},
	{"a limit of another path", below, h.admit(100, "a.b", 1).deny(101, "a", 1, below, 105), "which is no limit of it"},
	{"the slot opens sooner", logLimit, h.admit(100, "a", 3).deny(105, "a", 1, logLimit, 111), "room in the log limit 3/10µs of \"\" sooner"},
	{"the slot opens later", logLimit, h.admit(100, "a", 3).deny(105, "a", 1, logLimit, 109), "no room in the log"},
	{"next slot at once", logLimit, h.admit(100, "a", 3).deny(105, "a", 1, logLimit, 105), "next slot at 105"},
	{"a larger cost waits for more", logLimit, h.admit(100, "a", 1).admit(102, "a", 2).deny(105, "a", 2, logLimit, 112), ""},
	{"a larger cost waits for too few", logLimit, h.admit(100, "a", 1).admit(102, "a", 2).deny(105, "a", 2, logLimit, 110), "no room"},

	{"an ID twice", logLimit, h.admit(100, "a", 1).admit(120, "a", 1).named("e1"), "e1 was admitted at 100 and again at 120"},
	{"an ID again after it was given back", logLimit, h.admit(100, "a", 1).returned(105, 106).admit(120, "a", 1).named("e1"), ""},

	{"slots given back", logLimit, h.admit(100, "a", 3).returned(104, 106).admit(105, "b", 3), ""},
	{"slots given back later", logLimit, h.admit(100, "a", 3).returned(104, 106).admit(103, "b", 1), "had no room"},
	{"perhaps given back", logLimit, h.admit(100, "a", 3).returned(104, 106).deny(105, "b", 1, logLimit, 110), ""},
	{"surely given back", logLimit, h.admit(100, "a", 3).returned(104, 106).deny(106, "b", 1, logLimit, 110), "denied needlessly"},
	{"given back after the denial", logLimit, h.admit(100, "a", 3).returned(106, 107).deny(105, "b", 1, logLimit, 110), ""},
	{"given back, with a wrong next slot", logLimit, h.admit(100, "a", 3).returned(106, 107).deny(105, "b", 1, logLimit, 107), "no room"},

	{"fixed around an edge", fixed, h.admit(109, "a", 3).deny(109, "a", 1, fixed, 110).inCallOf().admit(110, "a", 3), ""},
	{"fixed is over", fixed, h.admit(110, "a", 3).admit(119, "a", 1), "e2"},
	{"fixed denies in the next window", fixed, h.admit(109, "a", 3).deny(110, "a", 1, fixed, 119), "denied needlessly"},
	{"fixed with the wrong edge", fixed, h.admit(105, "a", 3).deny(106, "a", 1, fixed, 115), "sooner"},

	{"token burst and rate", token, h.admit(100, "a", 3).deny(101, "a", 1, token, 102).admit(102, "a", 1).admit(104, "a", 1), ""},
	{"token over its burst", token, h.admit(100, "a", 2).admit(101, "a", 2), "e2"},
	{"token over its rate", token, h.admit(100, "a", 3).admit(102, "a", 1).admit(103, "a", 1), "e3"},
	{"token idle for long", token, h.admit(100, "a", 3).admit(200, "a", 3).admit(201, "a", 1), "e3"},
	{"token denies needlessly", token, h.admit(100, "a", 3).deny(102, "a", 1, token, 104), "denied needlessly"},
	{"token with a time too late", token, h.admit(100, "a", 3).deny(101, "a", 1, token, 103), "sooner"},
	{"token with a time too early", token, h.admit(100, "a", 3).deny(101, "a", 2, token, 103), "no room"},
	{"token given back", token, h.admit(100, "a", 3).returned(101, 101).admit(101, "a", 3), ""},
	{"token given back to a bucket that was full", token, h.admit(100, "a", 1).returned(111, 111).admit(110, "a", 3).admit(111, "a", 1), "e3"},

	{"leaky spacing", leaky, h.admit(100, "a", 1).deny(103, "a", 1, leaky, 104).admit(104, "a", 2).deny(110, "a", 1, leaky, 111).admit(111, "a", 1), ""},
	{"leaky too close", leaky, h.admit(100, "a", 1).admit(103, "a", 1), "e2"},
	{"leaky too close to a cost", leaky, h.admit(100, "a", 2).admit(106, "a", 1), "e2"},
	{"leaky burst after a pause", leaky, h.admit(100, "a", 1).admit(200, "a", 1).admit(200, "a", 1).inCallOf(), "e3"},
	{"leaky denies needlessly", leaky, h.admit(100, "a", 1).deny(104, "a", 1, leaky, 105), "denied needlessly"},
	{"leaky with the wrong time", leaky, h.admit(100, "a", 1).deny(101, "a", 1, leaky, 105), "sooner"},

	{"counter estimates", counter, h.admit(100, "a", 4).admit(115, "a", 2).deny(115, "a", 1, counter, 118).inCallOf(), ""},
	{"counter is above its estimate", counter, h.admit(100, "a", 4).admit(112, "a", 1), "e2"},
	{"counter denies needlessly", counter, h.admit(100, "a", 4).deny(113, "a", 1, counter, 114), "denied needlessly"},
	{"counter with the wrong time", counter, h.admit(100, "a", 4).deny(101, "a", 1, counter, 112), "no room"},
	{"counter of a full window opens after its end", counter, h.admit(100, "a", 4).deny(101, "a", 1, counter, 113), ""},
	{"counter twice around an edge", counter, h.admit(109, "a", 4).admit(110, "a", 4), "8 slots in one window"},

	{"deliveries under way", inFlight, h.admit(100, "a", 2).ended(105, 106).deny(104, "a", 1, inFlight, 130).admit(105, "a", 1), ""},
	{"too many deliveries under way", inFlight, h.admit(100, "a", 2).ended(105, 106).admit(104, "a", 1), "e2"},
	{"a delivery that never ended", inFlight, h.admit(100, "a", 2).admit(500, "a", 1), "e2"},
	{"a delivery was over", inFlight, h.admit(100, "a", 2).ended(105, 106).deny(106, "a", 1, inFlight, 130), "denied needlessly"},
	{"a delivery was given back", inFlight, h.admit(100, "a", 2).returned(105, 106).deny(106, "a", 1, inFlight, 130), "denied needlessly"},
}

func TestCheckOneLimit(t *testing.T) {
	t.Parallel()
	for _, c := range ofOneLimit {
		wantFault(t, c.name, Deployment{Limits: []Limit{c.limit}}, c.events, c.fault)
	}
}

func TestCheckSeveralLimits(t *testing.T) {
	t.Parallel()
	guarantees := []Guarantee{{"a", 1}, {"a.b", 2}}
	for _, c := range []struct {
		name       string
		limits     []Limit
		guarantees []Guarantee
		events     history
		fault      string // "" for none
	}{
		{"nothing", nil, nil, nil, ""},
		{"log of a path is over", []Limit{logLimit, below}, nil, h.admit(100, "a.b", 1).admit(104, "a.b.c", 1), "5µs of \"a.b\" had no room"},
		{"log of a path is not of another", []Limit{logLimit, below}, nil, h.admit(100, "a.b", 1).admit(104, "a.bc", 1), ""},
		{"a block lets something through", []Limit{{Kind: Log, Window: 10}}, nil, h.admit(100, "a", 1), "had no room"},
		{"not the first full limit", []Limit{logLimit, below}, nil, h.admit(100, "a.b", 3).deny(101, "a.b", 1, below, 105), "was full before it"},
		{
			"guarantees are kept", []Limit{guaranteed}, guarantees,
			h.admit(100, "x", 2).deny(101, "x", 1, guaranteed, 110).admit(102, "a", 1).admit(103, "a.b", 2).deny(104, "a.b", 1, guaranteed, 110), "",
		},
		{"a guaranteed slot goes to others", []Limit{guaranteed}, guarantees, h.admit(100, "x", 3), "e1"},
		{"a guaranteed slot goes to another guarantee", []Limit{guaranteed}, guarantees, h.admit(100, "a", 3).admit(101, "x", 1), "e2"},
		{"an inner guarantee is no one's around it", []Limit{guaranteed}, guarantees, h.admit(100, "x", 2).admit(101, "a", 2), "e2"},
		{"an own slot is denied", []Limit{guaranteed}, guarantees, h.admit(100, "x", 2).deny(101, "a.b.c", 2, guaranteed, 110), "denied needlessly"},
		{"a cost in part of its own", []Limit{guaranteed}, guarantees, h.admit(100, "x", 1).admit(101, "a.b", 3).deny(102, "x", 1, guaranteed, 110), ""},
		{
			"a guarantee takes back what leaves", []Limit{guaranteed}, guarantees,
			h.admit(100, "a.b", 2).admit(101, "x", 2).deny(102, "x", 1, guaranteed, 110), "no room",
		},
		{"a guarantee in time", []Limit{guaranteed}, guarantees, h.admit(100, "a.b", 2).admit(101, "x", 2).deny(102, "x", 1, guaranteed, 111), ""},
	} {
		wantFault(t, c.name, Deployment{Limits: c.limits, Guarantees: c.guarantees}, c.events, c.fault)
	}
}

func TestCheckTakesEventsInAnyOrder(t *testing.T) {
	t.Parallel()
	events := h.admit(109, "b", 1).admit(100, "a", 2).deny(109, "a", 1, logLimit, 110).inCallOf()
	events[2].Call = events[0].Call
	if err := Check(Deployment{Limits: []Limit{logLimit}}, events); err != nil {
		t.Error(err)
	}
}

func TestCheckReportsSomeFaults(t *testing.T) {
	t.Parallel()
	var events history
	for range 100 {
		events = events.admit(100, "a", 1)
	}
	err := Check(Deployment{Limits: []Limit{logLimit}}, events)
	testkit.Check(t, err != nil && strings.Count(err.Error(), "\n") == maxFaults-1, "reported: %v", err)
}
