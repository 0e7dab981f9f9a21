package tests

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// proofSeed returns the seed of NOTIFIER_TEST_SEED, or 0.
func proofSeed(t testing.TB) uint64 {
	given := os.Getenv("NOTIFIER_TEST_SEED")
	if given == "" {
		return 0
	}
	return testkit.Must(strconv.ParseUint(given, 10, 64))(t)
}

// outcome returns the outcome of an event as seen from outside. Several messages with one ID are one event.
func (p *proof) outcome(e *published) string {
	switch {
	case p.posts[e.id] > 0:
		return "sent"
	case p.letters[e.id] != "":
		return "dead"
	case p.waiting[e.id]:
		return "waiting"
	case e.kind == oldEvent:
		return "expired"
	}
	return "dropped"
}

// mayBe reports whether one message of an event can have a state.
func (p *proof) mayBe(state string, e *published) bool {
	outcome := p.outcome(e)
	switch {
	case state == outcome:
		return true
	case e.kind == brokenEvent && state == "dropped": // a worker was killed after the dead letter, and another dropped the redelivery undecoded
		return p.mayBeLost(e)
	}
	return outcome == "sent" && p.ofID[e.id] > 1 && (state == "duplicate" || state == "dropped")
}

func (p *proof) sample(n int) (events []*published) {
	for _, i := range p.random.Perm(len(p.events))[:n] {
		events = append(events, p.events[i])
	}
	return events
}

func idsOf(events []*published) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.id)
	}
	return ids
}

// askEarly asks about some events during the work, and returns the reported outcomes, by ID.
func (p *proof) askEarly() map[string][]string {
	p.t.Helper()
	reported := make(map[string][]string)
	events := p.sample(30)
	for i, answer := range p.whyAll(idsOf(events)...) {
		reported[events[i].id] = answer.outcomes()
	}
	return reported
}

// outcomes returns the states of an answer that are outcomes, sorted.
func (a whyAnswer) outcomes() (states []string) {
	for _, e := range a.Events {
		if journal.Result(e.State).Ends() {
			states = append(states, e.State)
		}
	}
	slices.Sort(states)
	return states
}

// wantNoOtherEnd asks again about events, and wants the outcomes that were reported before. One case is excused: a killed worker has lost the journal's
// entry, and only the delivery record had the outcome, until the message was settled.
func (p *proof) wantNoOtherEnd(early map[string][]string) {
	p.t.Helper()
	ids := slices.Sorted(maps.Keys(early))
	for i, answer := range p.whyAll(ids...) {
		now := answer.outcomes()
		for _, before := range early[ids[i]] {
			at := slices.Index(now, before)
			if at < 0 && before == "sent" && slices.ContainsFunc(p.events, func(e *published) bool { return e.id == ids[i] && p.mayBeLost(e) }) {
				continue
			}
			if at < 0 {
				p.t.Errorf("%s was reported as %v while workers were at work, and is reported as %v now", ids[i], early[ids[i]], answer.outcomes())
				break
			}
			now = slices.Delete(now, at, at+1)
		}
	}
}

// wantAnswers asks about random events by ID, and compares the answers with the outcomes seen from outside. An event unknown by its ID is in
// a count of its message, or was lost with a killed worker.
func (p *proof) wantAnswers(n int) {
	p.t.Helper()
	events := p.sample(n)
	answers := p.whyAll(idsOf(events)...)
	testkit.Equal(p.t, len(answers), n, "answers")
	notKnown := make(map[string][]*published) // by category
	for i, e := range events {
		if known := p.wantStates(e, answers[i]); !known {
			notKnown[e.category] = append(notKnown[e.category], e)
		}
	}
	singly, counted, lost := n, 0, 0
	for category, events := range notKnown {
		c, l := p.wantCounted(category, events)
		singly, counted, lost = singly-len(events), counted+c, lost+l
	}
	p.t.Logf("of %d events %d are reported singly, %d are counted or reported with their category, %d were lost with a worker", n, singly, counted, lost)
	if counted == 0 && hostile.Forced() { // fewer events on a busy machine may all be reported singly
		p.t.Error("every event is reported singly: the test shows less than it should")
	}
}

// wantStates compares the answer about an event with its outcome, and reports whether the answer has one.
func (p *proof) wantStates(e *published, answer whyAnswer) (known bool) {
	p.t.Helper()
	if len(answer.Events) > p.ofID[e.id] {
		p.t.Errorf("%s was stored %d times, and why reports %d: %+v", e.id, p.ofID[e.id], len(answer.Events), answer.Events)
	}
	sent := 0
	for _, reported := range answer.Events {
		if reported.State == "unknown" {
			continue
		}
		known = true
		if reported.State == "sent" {
			sent++
		}
		if !p.mayBe(reported.State, e) || reported.Category != e.category {
			p.t.Errorf("%s of %s is %s and not %s: %q", e.id, e.category, p.outcome(e), reported.State, reported.Sentences)
		}
		if reported.State == "dropped" {
			p.wantLevel(e, reported.Entries[len(reported.Entries)-1])
		}
	}
	testkit.AtMost(p.t, sent, 1, "messages of %s that were sent", e.id)
	return known
}

// wantLevel checks the limit that an answer names for a drop. No slot opened during the proof, so the limit is full at the end.
func (p *proof) wantLevel(e *published, entry journal.Entry) {
	p.t.Helper()
	first, _, _ := strings.Cut(e.category, ".")
	full := false
	switch entry.Level {
	case "global":
		full = p.used("") >= p.global
	case "muted":
		full = first == "muted"
	case "patient":
		full = first == "patient" && p.used("patient") == proofPatient
	case "category":
		full = first != "muted" && first != "patient" && first != "free" && p.used(first) == proofCategory
	case "unpaired":
		full = e.kind == resolvedEvent
	}
	if !full || entry.Used != entry.Size && entry.Used > 0 {
		p.t.Errorf("%s of %s is said to be dropped by %s %s, with %d of %d used: that was not full", e.id, e.category, entry.Level, entry.Limit, entry.Used, entry.Size)
	}
}

// used bounds the used slots of a first-level category, or of all. Rejected events may have returned their slots.
func (p *proof) used(first string) (slots int) {
	ids := make(map[string]bool)
	for _, e := range p.events {
		of, _, _ := strings.Cut(e.category, ".")
		takes := e.kind != resolvedEvent && (p.posts[e.id] > 0 || p.letters[e.id] == "rejected")
		if takes && !ids[e.id] && (first == "" || first == of) {
			ids[e.id] = true
			slots++
		}
	}
	return slots
}

var (
	oneOfCount = regexp.MustCompile(`^at least (\d+) events of (\S+) that were (\w+)(?: by \S+ ?\S*)? in the second of .* may be meant, of ` +
		`messages (\d+) to (\d+):`)
	ofManyCounts = regexp.MustCompile(`^(\d+) events more that may be meant were counted`)
)

// wantCounted asks again about events that are unknown by ID: with the exact category, which finds delivered events, and by message, which
// finds counts.
func (p *proof) wantCounted(category string, events []*published) (counted, lost int) {
	p.t.Helper()
	byID := p.whyAll(append(idsOf(events), "--category", category)...)
	var sequences []string
	for _, e := range events {
		sequences = append(sequences, fmt.Sprint(e.sequence))
	}
	byMessage := p.whyAll("--category", category, "--seq", strings.Join(sequences, ","))
	for i, e := range events {
		known := p.wantStates(e, byID[i])
		switch {
		case p.outcome(e) != "dropped":
			switch derived := strings.HasPrefix(e.id, streamName+":"); {
			case known:
				counted++
			case derived && p.mayBeLost(e): // the record of a derived ID includes the time of the message
				lost++
			default:
				p.t.Errorf("%s of %s is %s, and why does not know it by its ID and category", e.id, category, p.outcome(e))
			}
		case p.wantCounts(e, byMessage[i]):
			counted++
		case p.mayBeLost(e):
			lost++
		default:
			p.t.Errorf("%s of %s, message %d, was dropped, and stands nowhere in the journal: %+v", e.id, category, e.sequence, byMessage[i])
		}
	}
	return counted, lost
}

// wantCounts checks the counts of an answer about a dropped event, and reports whether one can include the event.
func (p *proof) wantCounts(e *published, answer whyAnswer) (found bool) {
	p.t.Helper()
	for _, sentence := range answer.Counted {
		if ofManyCounts.MatchString(sentence) {
			return true
		}
		parts := oneOfCount.FindStringSubmatch(sentence)
		if parts == nil {
			p.t.Errorf("what is said of a count is not understood: %s", sentence)
			continue
		}
		if strings.HasPrefix(parts[2], e.category+".") {
			continue // a category stands for all below it, too
		}
		n, first, last := testkit.Must(strconv.Atoi(parts[1]))(p.t), testkit.Must(strconv.Atoi(parts[4]))(p.t), testkit.Must(strconv.Atoi(parts[5]))(p.t)
		if sequence := int(e.sequence); parts[2] != e.category || sequence < first || last < sequence || n > last-first+1 {
			p.t.Errorf("message %d of %s cannot be among these: %s", e.sequence, e.category, sentence)
		}
		found = found || parts[3] == "dropped"
	}
	return found
}

// lastToPublish bounds the age of journal entries that a killed worker had not published, on a busy machine.
const lastToPublish = 10 * time.Second

// mayBeLost reports whether a killed worker may have lost the journal entry of an event.
func (p *proof) mayBeLost(e *published) bool {
	settled := p.floors[len(p.floors)-1].at
	for _, floor := range slices.Backward(p.floors) {
		if floor.sequence < e.sequence {
			break
		}
		settled = floor.at
	}
	return slices.ContainsFunc(p.kills, func(kill time.Time) bool { return e.stored.Before(kill) && settled.After(kill.Add(-lastToPublish)) })
}

// wantTotals compares the totals of the journal with the outcomes seen from outside. No total is greater, and the difference is at most what
// killed workers may have lost.
func (p *proof) wantTotals() {
	p.t.Helper()
	want := make(map[string]int)
	lost, repeated := 0, 0
	counted := make(map[string]bool)
	for _, e := range p.events {
		if counted[e.id] {
			repeated++ // a duplicate or a drop
			continue
		}
		counted[e.id] = true
		want[p.outcome(e)]++
		if p.mayBeLost(e) {
			lost++
		}
	}
	reported := make(map[string]int)
	for _, total := range p.whyAll("--since", "1h")[0].Totals {
		if journal.Result(total.Result).Ends() {
			reported[total.Result] += total.Count
		}
	}
	sum := 0
	for _, result := range []string{"sent", "dead", "expired"} {
		testkit.Between(p.t, reported[result], want[result]-lost, want[result], "events that are %s in the journal, of which %d may be lost", result, lost)
		sum += reported[result]
	}
	sum += reported["dropped"] + reported["duplicate"]
	all := len(p.events) - len(p.waiting)
	testkit.Between(p.t, sum, all-lost-repeated, all, "outcomes in the journal, of which %d may be lost", lost)
	p.t.Logf("the journal has %v", reported)
}
