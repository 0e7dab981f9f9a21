package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Sources are what is asked. None changes anything. What a source returns beside an error is part of what it knows.
type Sources struct {
	Entries func(ctx context.Context, q journal.Query, take func(journal.Entry)) (journal.Read, error)
	Explain func(ctx context.Context, request throttle.Request) (throttle.Explanation, error)
	Pending func(ctx context.Context, search Search) ([]Pending, error)
	Letters func(ctx context.Context) ([]Letter, error) // all dead letters
	Now     func() time.Time

	// Denied completes the sentence that an event of a category would be denied now, such as "it would wait for a slot"; "" if it
	// would be dropped.
	Denied func(category string) string
}

// Ask answers a question. What cannot be asked stands in the answer.
func Ask(ctx context.Context, sources Sources, q Question) Answer {
	a := asking{Sources: sources, question: q, now: sources.Now(), index: make(map[string][]*Event)}
	a.answer = Answer{Asked: q, Events: []Event{}}
	// First what waits: an event that gets its outcome meanwhile is in the journal then.
	a.readPending(ctx)
	a.readLetters(ctx)
	a.readJournal(ctx)
	a.askRecord(ctx)
	a.tellEvents(ctx)
	a.tellTotals()
	a.tellCounted()
	a.tellNow(ctx)
	return a.answer
}

// asking is one call of Ask.
type asking struct {
	Sources
	question Question
	now      time.Time
	answer   Answer

	read    journal.Read
	counted []journal.Entry
	totals  map[Total]int   // by results and levels, without counts
	digests []journal.Entry // read when the first of them is asked for
	told    bool            // digests were read
	looked  bool            // every place where events wait was looked at

	events []*Event
	index  map[string][]*Event // by category and ID
}

// unknown notes what could not be asked.
func (a *asking) unknown(what string, err error) {
	if text := what + ": " + err.Error(); !slices.Contains(a.answer.Unknown, text) {
		a.answer.Unknown = append(a.answer.Unknown, text)
	}
}

// placeOf reads the ID of an event whose producer gave none: the place of its message. Of any other ID the sequence is 0.
func placeOf(id string) (stream string, sequence uint64) {
	id, _, _ = strings.Cut(id, "/")
	stream, number, _ := strings.Cut(id, ":")
	sequence, _ = strconv.ParseUint(number, 10, 64)
	return stream, sequence
}

// readPending adds what has no outcome yet.
func (a *asking) readPending(ctx context.Context) {
	reasons, matching := make(map[string]int), 0
	pending, err := a.Pending(ctx, Search{Sequence: a.question.Sequence, Matches: func(p Pending) bool {
		if p.Stored.Before(a.question.Since) || !a.question.asksFor(p.ID, p.Category, p.Title, p.Sequence) {
			return false
		}
		reasons[p.Reason]++
		matching++
		return matching <= keptEvents
	}})
	if !a.question.single() {
		a.answer.Waiting = sayWaiting(reasons)
	}
	if err != nil {
		a.unknown("not every event that waits was looked at", err)
	}
	a.looked = err == nil
	for _, p := range pending {
		e := a.eventOf(p.ID, p.Category, p.Sequence)
		e.Title, e.Stored, e.pending = cmp.Or(e.Title, p.Title), p.Stored, &p
	}
}

// readLetters adds the dead letters.
func (a *asking) readLetters(ctx context.Context) {
	letters, err := a.Letters(ctx)
	if err != nil {
		a.unknown("the dead letters cannot be read", err)
	}
	for _, l := range letters {
		if l.Stored.Before(a.question.Since) || !a.question.asksFor(l.ID, l.Category, l.Title, l.Sequence) {
			continue
		}
		e := a.eventOf(l.ID, l.Category, l.Sequence)
		e.Title, e.letters = cmp.Or(e.Title, l.Title), append(e.letters, l)
	}
}

// asksFor tells whether the question asks for an event.
func (q Question) asksFor(id, category, title string, sequence uint64) bool {
	switch {
	case q.ID != "" && id != q.ID && !strings.HasPrefix(id, q.ID+"/"):
		return false
	case q.Sequence != 0 && sequence != q.Sequence:
		return false
	case q.Category != "" && category != q.Category && !strings.HasPrefix(category, q.Category+"."):
		return false
	}
	return strings.Contains(strings.ToLower(title), strings.ToLower(q.Title))
}

// keptEvents is how many events are kept while the journal is read, the newest ones.
const keptEvents = 1000

// readJournal adds what the journal knows.
func (a *asking) readJournal(ctx context.Context) {
	a.totals = make(map[Total]int)
	q := journal.Query{
		ID: a.question.ID, Sequence: a.question.Sequence, Category: a.question.Category, Title: a.question.Title, Since: a.question.Since,
	}
	read, err := a.Entries(ctx, q, a.take)
	a.read = read
	a.journalFailed("the journal cannot be read", read, err)
	if stream, place := placeOf(a.question.ID); place != 0 && len(a.events) == 0 && err == nil {
		q.ID, q.Sequence = "", place
		_, err = a.Entries(ctx, q, func(entry journal.Entry) {
			if entry.Stream == stream {
				a.takeCounted(entry)
			}
		})
		a.journalFailed("the journal cannot be read", journal.Read{}, err)
	}
}

// journalFailed notes what of the journal cannot be read.
func (a *asking) journalFailed(what string, read journal.Read, err error) {
	if errors.Is(err, journal.ErrNoJournal) {
		err = fmt.Errorf("%w; NOTIFIER_JOURNAL_AGE=0 turns it off", err)
	}
	if err != nil {
		a.unknown(what, err)
	}
	if read.Unreadable > 0 {
		a.unknown("the journal cannot be read as a whole", fmt.Errorf("%d of its messages are not readable", read.Unreadable))
	}
}

// take takes an entry of the journal.
func (a *asking) take(entry journal.Entry) {
	if entry.Count > 0 && a.question.single() {
		if entry, isAsked := a.asSingle(entry); isAsked {
			a.add(entry)
			return
		}
	}
	if entry.Count > 0 {
		a.takeCounted(entry)
	}
	if entry.Count == 0 || a.question.Title == "" {
		a.totals[Total{Result: entry.Result, Level: entry.Level}] += entry.Counts()
	}
	if entry.Count == 0 {
		a.add(entry)
	}
}

func (a *asking) takeCounted(entry journal.Entry) {
	if entry.Count > 0 && (a.question.single() || a.question.Title != "") {
		a.counted = append(a.counted, entry)
	}
}

// asSingle is what an entry that counts events says of its first or its last one, if that is asked for. Of the others nothing is known
// singly, and of one in a category below that of the entry the category is not known.
func (a *asking) asSingle(entry journal.Entry) (single journal.Entry, isAsked bool) {
	if entry.Below {
		return journal.Entry{}, false
	}
	single = entry
	single.Count, single.LastID, single.LastSequence, single.LastStored = 0, "", 0, time.Time{}
	if a.question.asksFor(single.ID, single.Category, single.Title, single.Sequence) {
		return single, true
	}
	// What stands in the entry beside these is of the first one.
	last := journal.Entry{
		ID: entry.LastID, Stream: entry.Stream, Sequence: entry.LastSequence, Stored: entry.LastStored, Category: entry.Category,
		Result: entry.Result, Reason: entry.Reason, Level: entry.Level, Path: entry.Path, Limit: entry.Limit, Size: entry.Size,
		Decided: entry.Decided, Channel: entry.Channel, Instance: entry.Instance,
	}
	return last, last.ID != "" && a.question.Title == "" && a.question.asksFor(last.ID, last.Category, last.Title, last.Sequence)
}

// add adds an entry to its event.
func (a *asking) add(entry journal.Entry) {
	e := a.eventOf(entry.ID, entry.Category, entry.Sequence)
	e.Title = cmp.Or(e.Title, entry.Title)
	if e.Stored.IsZero() {
		e.Stored = entry.Stored
	}
	e.Entries = append(e.Entries, entry)
	if len(a.events) >= 2*keptEvents {
		a.forgetOldest(keptEvents)
	}
}

// eventOf returns the event of an identity and a message, or a new one. A sequence of 0 is not known.
func (a *asking) eventOf(id, category string, sequence uint64) *Event {
	name := nameOfEvent(id, category)
	for _, e := range a.index[name] {
		if e.Sequence == sequence || id != "" && (e.Sequence == 0 || sequence == 0) {
			e.Sequence = cmp.Or(e.Sequence, sequence)
			return e
		}
	}
	e := &Event{ID: id, Category: category, Sequence: sequence}
	a.events = append(a.events, e)
	a.index[name] = append(a.index[name], e)
	return e
}

func nameOfEvent(id, category string) string { return category + " " + id }

// forgetOldest keeps some events, the newest ones.
func (a *asking) forgetOldest(kept int) {
	slices.SortStableFunc(a.events, func(x, y *Event) int { return x.Stored.Compare(y.Stored) })
	a.events = slices.Clone(a.events[max(0, len(a.events)-kept):])
	clear(a.index)
	for _, e := range a.events {
		name := nameOfEvent(e.ID, e.Category)
		a.index[name] = append(a.index[name], e)
	}
}

// tellTotals counts what became of many events, the most first. Steps on the way of an event count by themselves.
func (a *asking) tellTotals() {
	if a.question.single() {
		return
	}
	for total, n := range a.totals {
		total.Count = n
		a.answer.Totals = append(a.answer.Totals, total)
	}
	slices.SortFunc(a.answer.Totals, func(x, y Total) int {
		return cmp.Or(y.Count-x.Count, strings.Compare(string(x.Result), string(y.Result)), strings.Compare(x.Level, y.Level))
	})
}

// tellCounted says which counts may hide the events that were asked for. A question about one event that was found needs none.
func (a *asking) tellCounted() {
	if !a.question.single() || len(a.events) == 0 {
		a.answer.Counted = a.sayCounts()
	}
	if !a.answer.Known() && !a.read.Begins.IsZero() {
		a.answer.Missing = a.sayMissing()
	}
}

// tellNow says what would happen now to an event of each category that is told of, or asked for.
func (a *asking) tellNow(ctx context.Context) {
	var categories []string
	for _, e := range slices.Backward(a.answer.Events) {
		if e.Category != "" && !slices.Contains(categories, e.Category) {
			categories = append(categories, e.Category)
		}
	}
	if a.question.Category != "" && (!a.question.single() || len(categories) == 0) {
		categories = []string{a.question.Category}
	}
	const most = 3
	for _, category := range categories[:min(most, len(categories))] {
		explanation, err := a.Explain(ctx, throttle.Request{ID: category + " ", Category: category, Cost: 1})
		if err != nil {
			a.unknown("the limits cannot be asked", err)
			return
		}
		a.answer.Now = append(a.answer.Now, a.sayNow(category, explanation))
	}
}
