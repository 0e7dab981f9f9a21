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

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Sources provide the facts for an answer. A source only reads. With an error, it may return partial results.
type Sources struct {
	Entries func(ctx context.Context, queries []journal.Query, take func(query int, e journal.Entry)) ([]journal.Read, error)
	Explain func(ctx context.Context, request store.Request) (store.Explanation, error)
	Pending func(ctx context.Context, sequence uint64, take func(Pending)) error // see Streams.Pending
	Letters func(ctx context.Context) ([]Letter, error)                          // all dead letters
	Now     func() time.Time

	Workers Workers
	Policy  Policy
}

// Workers is what the running workers report.
type Workers struct {
	Failing []Writer             // the workers that cannot write the journal now
	Paused  map[string]time.Time // by channel: until when it is paused; zero: it is not
}

// Policy describes the settings for events of a category.
type Policy struct {
	// Categories lists the existing categories, as in Finder.
	Categories func(ctx context.Context) []string

	// Denied describes what would happen to a denied event of a category, such as "it would wait for a slot". "" means dropped.
	Denied func(category string) string

	// Expiry names the age at which events of a category expire, such as "NOTIFIER_EVENT_MAX_AGE".
	Expiry func(category string) string
}

// Writer is a worker with the health of its journal.
type Writer struct {
	Name string
	journal.Health
}

// Ask answers questions. It reads each source once for all questions. Every answer lists the sources that failed.
func Ask(ctx context.Context, sources Sources, questions ...Question) []Answer {
	s := &session{Sources: sources, now: sources.Now()}
	for _, q := range questions {
		query := journal.Query{Sequence: q.Sequence, Category: q.Category, Title: q.Title, Since: q.Since}
		if q.ID != "" {
			query.IDs = event.ShownAs(q.ID)
		}
		s.asked = append(s.asked, &asking{
			session: s, words: words{s.now, s.Policy.Expiry}, question: q, answer: Answer{Asked: q, Events: []Event{}}, query: query,
			totals: make(map[Total]int), waiting: make(map[string]int), events: events{index: make(map[string][]*Event), mixed: q.Single()},
		})
	}
	// Read the waiting events first: if one gets its outcome in the meantime, the journal has it.
	s.readPending(ctx)
	s.readLetters(ctx)
	s.readJournal(ctx)
	answers := make([]Answer, len(questions))
	for i, a := range s.asked {
		a.askRecord(ctx)
		a.addEvents(ctx)
		a.addTotals()
		a.addCounted()
		a.addGaps()
		a.addNow(ctx)
		answers[i] = a.answer
	}
	return answers
}

type session struct {
	Sources
	now        time.Time
	asked      []*asking
	digests    []journal.Entry // loaded by readDigests
	hasDigests bool            // readDigests has run
	looked     bool            // all waiting events were read
}

type asking struct {
	session  *session
	words    words
	question Question
	query    journal.Query // of the question
	answer   Answer

	read    journal.Read
	counted aggregated
	totals  map[Total]int // the keys have no Count
	ended   int           // number of events with an outcome that were not counted as waiting

	waiting map[string]int // number of events without an outcome, by Pending.Reason
	pending []Pending      // the newest events without an outcome

	events events
}

// unknown adds a failed source to all answers.
func (s *session) unknown(what string, err error) {
	for _, a := range s.asked {
		a.unknown(what, err)
	}
}

func (a *asking) unknown(what string, err error) {
	if text := what + ": " + err.Error(); !slices.Contains(a.answer.Unknown, text) {
		a.answer.Unknown = append(a.answer.Unknown, text)
	}
}

// placeOf parses a derived ID, which is the place of the message. For any other ID, the sequence is 0.
func placeOf(id string) (stream string, sequence uint64) {
	id, _, _ = strings.Cut(id, "/")
	stream, number, _ := strings.Cut(id, ":")
	sequence, _ = strconv.ParseUint(number, 10, 64)
	return stream, sequence
}

func (s *session) readPending(ctx context.Context) {
	var sequence uint64
	if len(s.asked) == 1 {
		sequence = s.asked[0].question.Sequence
	}
	err := s.Pending(ctx, sequence, func(p Pending) {
		for _, a := range s.asked {
			a.takePending(p)
		}
	})
	if err != nil {
		s.unknown("not every event that waits was looked at", err)
	}
	s.looked = err == nil
	for _, a := range s.asked {
		a.answer.timedOut = errors.Is(err, errTooMany)
		if !a.question.Single() {
			a.answer.Waiting = sayWaiting(a.waiting)
			for reason, n := range a.waiting {
				if reason != string(room.Update) && reason != string(room.Steady) {
					a.answer.Found += n
				}
			}
		}
		a.forgetOldestPending()
		for _, p := range a.pending {
			e := a.events.of(p.ID, p.Category, p.Sequence, p.Stored)
			e.Title = cmp.Or(e.Title, p.Title)
			if p.Reason == string(room.Update) || p.Reason == string(room.Steady) { // the event itself may have ended
				e.waits.updates = append(e.waits.updates, p)
			} else {
				e.waits.event = &p
			}
		}
	}
}

// takePending counts a selected event without an outcome, and keeps the newest events. Question.Since does not apply to waiting events.
func (a *asking) takePending(p Pending) {
	if !a.query.Matches(&journal.Entry{ID: p.ID, Category: p.Category, Title: p.Title, Sequence: p.Sequence}) {
		return
	}
	a.waiting[p.Reason]++
	if a.pending = append(a.pending, p); len(a.pending) >= 2*keptEvents {
		a.forgetOldestPending()
	}
}

// forgetOldestPending keeps the newest keptEvents events without an outcome: any kept event may turn out to wait.
func (a *asking) forgetOldestPending() {
	slices.SortStableFunc(a.pending, func(x, y Pending) int { return x.Stored.Compare(y.Stored) })
	a.pending = slices.Delete(a.pending, 0, max(0, len(a.pending)-keptEvents))
}

func (s *session) readLetters(ctx context.Context) {
	letters, err := s.Letters(ctx)
	if err != nil {
		s.unknown("the dead letters cannot be read", err)
	}
	for _, a := range s.asked {
		for _, l := range letters {
			isRecent := a.question.Single() || !l.Stored.Before(a.question.Since) // Since does not apply to a single event
			if isRecent && a.query.Matches(&journal.Entry{ID: l.ID, Category: l.Category, Title: l.Title, Sequence: l.Sequence}) {
				e := a.events.of(l.ID, l.Category, l.Sequence, l.Published)
				e.Title, e.letters = cmp.Or(e.Title, l.Title), append(e.letters, l)
			}
		}
	}
}

// keptEvents is the number of events in memory while Ask reads the journal, the newest ones.
const keptEvents = 1000

func (s *session) readJournal(ctx context.Context) {
	queries := make([]journal.Query, len(s.asked))
	for i, a := range s.asked {
		queries[i] = a.query
	}
	reads, err := s.Entries(ctx, queries, func(i int, entry journal.Entry) { s.asked[i].take(entry) })
	for i, a := range s.asked {
		if i < len(reads) { // a failed search returns none
			a.read = reads[i]
		}
		a.journalFailed(a.read, err)
	}
	if err == nil {
		s.readCounts(ctx, queries)
	}
}

// readCounts looks for aggregated entries that may include an event whose message is known, and whose outcome no other entry has.
func (s *session) readCounts(ctx context.Context, queries []journal.Query) {
	var missing []*asking
	var places []journal.Query
	var streams []string
	for i, a := range s.asked {
		stream, place := messageWithoutOutcome(a)
		if place == 0 {
			continue
		}
		query := queries[i]
		query.IDs, query.Sequence = nil, place
		if len(a.events.all) > 0 {
			query.Category = a.events.all[0].Category
		}
		missing, places, streams = append(missing, a), append(places, query), append(streams, stream)
	}
	if len(missing) == 0 {
		return
	}
	_, err := s.Entries(ctx, places, func(i int, entry journal.Entry) {
		if entry.Stream == streams[i] {
			missing[i].takeCounted(entry)
		}
	})
	for _, a := range missing {
		a.journalFailed(journal.Read{}, err)
	}
}

// messageWithoutOutcome returns the message of an event that was asked for by its ID: the place in a derived ID that no source has or the message
// of the only event, if it waits nowhere and the journal lists no outcome of it. Otherwise the sequence is 0.
func messageWithoutOutcome(a *asking) (stream string, sequence uint64) {
	switch {
	case a.question.ID == "" || len(a.events.all) > 1:
		return "", 0
	case len(a.events.all) == 0:
		return placeOf(a.question.ID)
	}
	e := a.events.all[0]
	isListed := e.has(func(entry journal.Entry) bool { return entry.Result.Ends() || entry.Result == journal.Split })
	if len(e.Entries) == 0 || isListed || e.waits.event != nil || len(e.letters) > 0 {
		return "", 0
	}
	return e.Entries[0].Stream, e.Sequence
}

func (a *asking) journalFailed(read journal.Read, err error) {
	if errors.Is(err, journal.ErrNoJournal) {
		err = fmt.Errorf("%w; NOTIFIER_JOURNAL_AGE=0 turns it off", err)
	}
	if err != nil {
		a.unknown("the journal cannot be read", err)
	}
	if read.Unreadable > 0 {
		a.unknown("the journal cannot be read as a whole", fmt.Errorf("%d of its messages are not readable", read.Unreadable))
	}
	if read.Forged > 0 {
		a.unknown("the journal holds messages that no worker wrote", fmt.Errorf("%d of them are ignored; see docs/security.md", read.Forged))
	}
}

func (a *asking) take(entry journal.Entry) {
	if entry.Count > 0 && a.question.Single() {
		if entry, isAsked := a.asSingle(entry); isAsked {
			a.add(entry)
			return
		}
	}
	if entry.Count == 0 {
		a.add(entry)
		return
	}
	if entry.Below && !event.IsBelow(entry.Category, a.question.Category) { // most of its events may have other categories
		a.counted.add(entry)
		return
	}
	a.takeCounted(entry)
	if a.question.Title == "" {
		a.totals[totalOf(entry)] += entry.Count
		if entry.Result.Ends() {
			a.ended += entry.Count
		}
	}
}

// totalOf returns the total that an entry belongs to, without a count.
func totalOf(entry journal.Entry) Total {
	return Total{Result: entry.Result, Level: entry.Level, Limit: entry.Limit}
}

func (a *asking) takeCounted(entry journal.Entry) {
	if entry.Count > 0 && (a.question.Single() || a.question.Title != "") {
		a.counted.add(entry)
	}
}

// asSingle returns the first or the last event of an aggregated entry, if the question selects that event. The entry has no details of
// the events in between. An entry with Below set does not have the category of an event.
func (a *asking) asSingle(entry journal.Entry) (single journal.Entry, isAsked bool) {
	if entry.Below {
		return journal.Entry{}, false
	}
	single = entry
	single.Count, single.LastID, single.LastSequence, single.LastStored, single.LastRound = 0, "", 0, time.Time{}, 0
	if a.query.Matches(&single) {
		return single, true
	}
	// The other fields of the entry describe the first event. The last event may have another reason, another mute and another operator.
	last := journal.Entry{
		ID: entry.LastID, Stream: entry.Stream, Sequence: entry.LastSequence, Stored: entry.LastStored, Category: entry.Category,
		Result: entry.Result, Level: entry.Level, Path: entry.Path, Limit: entry.Limit, Size: entry.Size,
		Decided: entry.Decided, Channel: entry.Channel, Round: entry.LastRound, Instance: entry.Instance,
	}
	if last.Level == limits.LevelMute {
		last.Path = ""
	}
	return last, last.ID != "" && a.question.Title == "" && a.query.Matches(&last)
}

// add adds an entry to its event, and counts it. An event may have several outcomes, such as a dead letter that was replayed, and may wait more
// than once: each total counts the event once, and so does the number of events.
func (a *asking) add(entry journal.Entry) {
	e := a.events.of(entry.ID, entry.Category, entry.Sequence, entry.Stored)
	e.Title = cmp.Or(e.Title, entry.Title)
	total, ends := totalOf(entry), entry.Result.Ends()
	if ends && e.waits.event == nil && !e.has(func(earlier journal.Entry) bool { return earlier.Result.Ends() }) {
		a.ended++
	}
	if !e.has(func(earlier journal.Entry) bool { return totalOf(earlier) == total }) {
		a.totals[total]++
	}
	e.Entries = append(e.Entries, entry)
	if len(a.events.all) >= 2*keptEvents {
		a.events.keep(keptEvents)
	}
}

// addTotals adds the totals of a question about many events, the largest first. Steps without an outcome have totals of their own.
func (a *asking) addTotals() {
	if a.question.Single() {
		return
	}
	a.answer.Found += a.ended
	for total, n := range a.totals {
		total.Count = n
		a.answer.Totals = append(a.answer.Totals, total)
	}
	slices.SortStableFunc(a.answer.Totals, func(x, y Total) int {
		return cmp.Or(y.Count-x.Count, strings.Compare(x.What(), y.What()))
	})
}

// addCounted adds the aggregated entries that may include the selected events, unless the question is about one event with an outcome.
func (a *asking) addCounted() {
	isUnknown := func(e Event) bool { return e.State == StateUnknown }
	if !a.question.Single() || len(a.events.all) == 0 || slices.ContainsFunc(a.answer.Events, isUnknown) {
		a.answer.Counted = a.sayCounts()
	}
	if !a.answer.Known() && (!a.read.Begins.IsZero() || len(a.session.Workers.Failing) > 0) {
		a.answer.Missing = a.sayMissing()
	}
}

// addGaps adds the gaps of the journal that may hide the selected events.
func (a *asking) addGaps() {
	if a.question.Single() && a.answer.Final() {
		return
	}
	for _, w := range a.session.Workers.Failing {
		a.unknown("the journal is complete until "+a.words.stamp(w.Complete), fmt.Errorf("worker %s cannot write it: %s; %d entries are kept until it can, %d are lost",
			w.Name, w.Error, w.Kept, w.Lost))
	}
	for _, e := range a.read.Lost {
		a.unknown("the journal is incomplete", fmt.Errorf("worker %s could not write %d entries of results between %s and %s",
			e.Instance, e.Count, a.words.stamp(e.Stored), a.words.stamp(e.LastStored)))
	}
}

// kind is a category of events, with a key if a limit of each key denied one.
type kind struct{ category, key string }

func (k kind) String() string {
	if k.key == "" {
		return k.category
	}
	return fmt.Sprintf("%s with the key %q", k.category, k.key)
}

// addNow adds what would happen now to an event of each category in the question or the answer.
func (a *asking) addNow(ctx context.Context) {
	var kinds []kind
	for _, e := range slices.Backward(a.answer.Events) {
		if one := e.kind(); one.category != "" && !slices.Contains(kinds, one) {
			kinds = append(kinds, one)
		}
	}
	if a.question.Category != "" && (!a.question.Single() || len(kinds) == 0) {
		kinds = []kind{{category: a.question.Category}}
	}
	const most = 3
	for _, one := range kinds[:min(most, len(kinds))] {
		explanation, err := a.session.Explain(ctx, store.Request{ID: one.category + " ", Category: one.category, Key: one.key, Cost: 1})
		if err != nil {
			a.unknown("the limits cannot be asked", err)
			return
		}
		now := a.words.sayNow(one, explanation)
		if instead := a.session.Policy.Denied(one.category); instead != "" && explanation.Denial != nil && explanation.Denial.Size > 0 && !explanation.Denial.Never {
			now += "; " + instead
		}
		a.answer.Now = append(a.answer.Now, now)
	}
}
