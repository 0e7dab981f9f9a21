package why

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

type events struct {
	all   []*Event
	index map[string][]*Event // by category and ID
	found int                 // with the events that are no longer kept
	mixed bool                // some events of each first level are kept
}

// of returns the event of an identity and a message. If there is none, it adds one. A sequence of 0 and a zero time mean unknown. The time
// distinguishes messages with the same sequence: a stream that was recreated, or that lost messages, gives their sequences to new messages.
func (e *events) of(id, category string, sequence uint64, stored time.Time) *Event {
	name := nameOfEvent(id, category)
	for _, found := range e.index[name] {
		same := found.Sequence == sequence && (found.Stored.Equal(stored) || found.Stored.IsZero() || stored.IsZero())
		if same || id != "" && (found.Sequence == 0 || sequence == 0) {
			found.Sequence = cmp.Or(found.Sequence, sequence)
			if found.Stored.IsZero() {
				found.Stored = stored
			}
			return found
		}
	}
	added := &Event{ID: id, Category: category, Sequence: sequence, Stored: stored}
	e.all = append(e.all, added)
	e.index[name] = append(e.index[name], added)
	e.found++
	return added
}

func nameOfEvent(id, category string) string { return category + " " + id }

// keep keeps the newest events, or some of each first level, in the order of their times.
func (e *events) keep(most int) {
	if e.mixed {
		e.all = e.ofEachLevel(most)
	}
	slices.SortStableFunc(e.all, func(x, y *Event) int { return x.Stored.Compare(y.Stored) })
	e.all = slices.Clone(e.all[max(0, len(e.all)-most):])
	clear(e.index)
	for _, one := range e.all {
		name := nameOfEvent(one.ID, one.Category)
		e.index[name] = append(e.index[name], one)
	}
}

// ofEachLevel chooses events of each first level in turns, because other producers may use an ID too. Of one first level, duplicates come last:
// each of them has the ID of an event that says more. Other events of one first level are chosen by their times, the newest first.
func (e *events) ofEachLevel(most int) (chosen []*Event) {
	levels := make(map[string][]*Event)
	for _, one := range e.all {
		first := event.FirstLevel(one.Category)
		levels[first] = append(levels[first], one)
	}
	for _, level := range levels {
		slices.SortStableFunc(level, func(x, y *Event) int {
			switch {
			case x.isDuplicate() == y.isDuplicate():
				return y.Stored.Compare(x.Stored)
			case x.isDuplicate():
				return 1
			default:
				return -1
			}
		})
	}
	for turn := 0; len(chosen) < min(most, len(e.all)); turn++ {
		for _, first := range slices.Sorted(maps.Keys(levels)) {
			if turn < len(levels[first]) {
				chosen = append(chosen, levels[first][turn])
			}
		}
	}
	return chosen[:min(most, len(chosen))]
}

// isDuplicate reports whether all that is known of an event is that its ID was admitted before.
func (e *Event) isDuplicate() bool {
	return len(e.Entries) > 0 && !e.has(func(entry journal.Entry) bool { return entry.Result != journal.Duplicate })
}

// mayBeCopy reports whether all that is known of an event may follow from an earlier message with its ID.
func (e *Event) mayBeCopy() bool {
	return len(e.Entries) > 0 && !e.has(func(entry journal.Entry) bool {
		return entry.Result != journal.Duplicate && entry.Result != journal.Dropped
	})
}

func (e *Event) has(property func(journal.Entry) bool) bool {
	return slices.ContainsFunc(e.Entries, property)
}

func (a *asking) addEvents(ctx context.Context) {
	a.events.keep(maxEvents)
	if a.question.Single() && a.events.found > len(a.events.all) {
		a.answer.Found = a.events.found
	}
	for _, e := range a.events.all {
		slices.SortStableFunc(e.Entries, func(x, y journal.Entry) int { return x.Decided.Compare(y.Decided) })
		for rest := e.Entries; len(rest) > 0; {
			equal := a.words.equal(rest)
			entry := rest[equal-1]
			e.say(a.words.sayAll(rest[:equal]), a.words.reasonFor(entry))
			if entry.Number > 0 {
				e.Note = fmt.Sprintf("number %d", entry.Number)
			}
			if rest = rest[equal:]; len(rest) == 0 && entry.Result == journal.Dropped {
				for _, sentence := range a.sayDigest(ctx, entry) {
					e.say(sentence, sentence)
				}
			}
		}
		if e.settle(); e.waits.event != nil {
			where, since, until := a.words.placeOfPending(*e.waits.event)
			e.say(where+since+until, where)
			e.Note = strings.TrimPrefix(until, ", ")
			e.Sentences = append(e.Sentences, a.sayPair(ctx, *e.waits.event)...)
			e.Sentences = append(e.Sentences, a.sayChannel(e.waits.event.Channel)...)
		}
		for _, update := range e.waits.updates {
			where, since, until := a.words.placeOfPending(update)
			e.say(where+since+until, where)
		}
		for _, l := range e.letters {
			reason := "is a dead letter: " + reasonOf(l.Reason, l.Error)
			if e.Reason != "" { // the reason of its entry includes it
				reason = ""
			}
			e.say(fmt.Sprintf("dead letter %d holds it since %s: %s; notifier dlq replay %[1]d sends it again",
				l.Number, a.words.stamp(l.Stored), reasonOf(l.Reason, l.Error)), reason)
			e.Note = fmt.Sprintf("dead letter %d", l.Number)
		}
		if a.question.Single() {
			e.Sentences = append(e.Sentences, a.sayRecord(ctx, e)...)
		}
		if e.State == StateUnknown && a.session.looked {
			const lost = "what became of it then is not known: it waits nowhere, and the journal lists no outcome of it"
			e.say(lost, lost)
		}
		a.answer.Events = append(a.answer.Events, *e)
	}
}

// kind returns the event's category, and the key of its newest denial if a limit of each key denied it.
func (e *Event) kind() kind {
	one := kind{category: e.Category}
	for _, entry := range e.Entries {
		if entry.Level != "" || entry.Key != "" {
			one.key = entry.Key
		}
	}
	return one
}

// say adds a sentence about the event. The reason is the part of the sentence that may equal the reason of other events. A reason that the
// event has again and again, such as a wait for the same thing, is given once.
func (e *Event) say(sentence, reason string) {
	e.Sentences = append(e.Sentences, sentence)
	if reason == "" || e.Reason == reason || strings.HasSuffix(e.Reason, "; "+reason) {
		return
	}
	if e.Reason != "" {
		e.Reason += "; "
	}
	e.Reason += reason
}

// settle sets the event's state. An event with an outcome no longer waits: a worker is about to acknowledge its message. If it came to the
// room after its outcome, it is a replayed dead letter, which waits.
func (e *Event) settle() {
	last := journal.Entry{}
	for _, entry := range e.Entries {
		if entry.Result.Ends() {
			last = entry
		}
	}
	if e.waits.event != nil && last.Result != "" && (e.waits.event.Reason == "" || !e.waits.event.Since.After(last.Decided)) {
		e.waits.event = nil
	}
	isSplit := e.has(func(entry journal.Entry) bool { return entry.Result == journal.Split })
	switch {
	case e.waits.event != nil && e.waits.event.Reason != "":
		e.State = StateWaiting
	case last.Result != "":
		e.State = State(last.Result)
	case isSplit:
		e.State, e.waits.event = StateSplit, nil
	case e.waits.event != nil:
		e.State = StateUndecided
	case len(e.letters) > 0:
		e.State = State(journal.Dead)
	default:
		e.State = StateUnknown
	}
}

// sayRecord describes the delivery record of an event without an outcome.
func (a *asking) sayRecord(ctx context.Context, e *Event) []string {
	if e.State != StateUnknown && e.State != StateUndecided && e.State != StateWaiting || e.ID == "" || e.Category == "" {
		return nil
	}
	for _, request := range e.requests() {
		known, err := a.session.Explain(ctx, request)
		switch {
		case err != nil:
			a.unknown("the delivery record cannot be read", err)
			return nil
		case known.Another && e.Sequence != 0:
			return []string{"the delivery record has its ID for another message"}
		case known.Fold != nil:
			e.State = State(journal.Folded)
			_, how := a.words.phrases(journal.Entry{
				Result: journal.Folded, Number: known.Fold.Number, Message: known.Fold.Posted, Flapping: known.Fold.Flaps,
			})
			return []string{"the delivery record has it as folded" + how}
		case !known.Done.IsZero():
			e.State = State(journal.Sent)
			return []string{"the delivery record has it as delivered"}
		case known.Leased.After(known.At):
			e.admitted()
			return []string{"a worker is processing it"}
		case !known.Leased.IsZero():
			e.admitted()
			return []string{"it has its slots, and no worker is processing it"}
		}
	}
	if e.State == StateUndecided {
		return []string{"no worker has admitted it so far"}
	}
	return nil
}

func (e *Event) admitted() {
	if e.State != StateWaiting {
		e.State = StateAdmitted
	}
}

// requests returns the possible requests for the delivery record of an event. The text after the last slash of an ID may be the part of a
// group. A waiting event's message has that information. For any other event, requests returns both. A derived ID is the place of the message.
func (e *Event) requests() []store.Request {
	message := store.Message{Sequence: e.Sequence, Stored: e.Stored}
	if p := e.waits.event; p != nil {
		if p.Identity == "" {
			return nil
		}
		message.Stream = p.Stream
		return []store.Request{{ID: p.Identity, Derived: p.Derived, Message: message, Category: e.Category, Cost: 1}}
	}
	if len(e.Entries) > 0 {
		message.Stream = e.Entries[0].Stream
	}
	identities := event.Named(e.ID)
	if len(e.Entries) == 0 { // the ID comes from the question
		identities = append(identities, event.Event{ID: event.OverHTTP(e.Category, identities[0].ID)})
	}
	var requests []store.Request
	for _, identity := range identities {
		identity.Category = e.Category
		stream, sequence := placeOf(identity.ID)
		requests = append(requests, store.Request{
			ID: identity.Identity(), Derived: stream != "" && stream == message.Stream && sequence == e.Sequence,
			Message: message, Category: e.Category, Cost: 1,
		})
	}
	return requests
}

// mostRecords bounds the categories in whose delivery record an ID is looked for: each takes up to four calls.
const mostRecords = 500

// askRecord looks in the delivery record for events that no other source has: for the event in question, or for events of which only
// duplicates and drops are known. It needs the category, which is part of the identity.
func (a *asking) askRecord(ctx context.Context) {
	if a.question.ID == "" || a.question.Title != "" {
		return
	}
	missing := a.events.duplicated()
	missing = missing[:min(maxEvents, len(missing))]
	if len(a.events.all) == 0 {
		for _, category := range a.session.categoriesOf(ctx, a.question) {
			missing = append(missing, &Event{ID: a.question.ID, Category: category})
		}
	}
	failures := len(a.answer.Unknown)
	for _, e := range missing {
		recorded := &Event{ID: e.ID, Category: e.Category, State: StateUnknown}
		isDropped := slices.ContainsFunc(a.events.index[nameOfEvent(e.ID, e.Category)], func(one *Event) bool { return !one.isDuplicate() })
		sentences := a.sayRecord(ctx, recorded)
		isLeft := isDropped && recorded.State == StateAdmitted // a record may outlast the drop of its event
		if len(sentences) > 0 && !isLeft {
			a.events.all = append(a.events.all, e)
		}
		if len(a.answer.Unknown) > failures || len(a.events.all) == maxEvents {
			return
		}
	}
}

// categoriesOf returns the categories that an event in question may have, at most mostRecords.
func (s *session) categoriesOf(ctx context.Context, q Question) []string {
	switch {
	case q.Category != "":
		return []string{q.Category}
	case !q.Everywhere:
		return nil
	}
	known := slices.Clone(s.Policy.Categories(ctx))
	slices.Sort(known)
	known = slices.Compact(known)
	return known[:min(mostRecords, len(known))]
}

// duplicated returns an event for each identity of which only duplicates and drops are known: the entry of their first message may have been lost.
// A copy of a delivered event is dropped while its worker remembers that a limit is full.
func (e *events) duplicated() (firsts []*Event) {
	for _, name := range slices.Sorted(maps.Keys(e.index)) {
		messages := e.index[name]
		if !slices.ContainsFunc(messages, func(one *Event) bool { return !one.mayBeCopy() }) {
			firsts = append(firsts, &Event{ID: messages[0].ID, Category: messages[0].Category})
		}
	}
	return firsts
}

// sayChannel describes the channel with a token that an event waits for, if a worker has reported the channel.
func (a *asking) sayChannel(token string) []string {
	for name, until := range a.session.Workers.Paused {
		switch {
		case room.Token(name) != token:
		case until.After(a.words.now):
			return []string{"the channel " + name + " is paused until " + a.words.stamp(until)}
		default:
			return []string{"the channel " + name + " is not paused"}
		}
	}
	return nil
}

// sayPair describes the firing event that a waiting resolved event waits for: where it is, and whether its message was posted.
func (a *asking) sayPair(ctx context.Context, resolved Pending) []string {
	if resolved.Fires || resolved.Key == "" || !a.question.Single() {
		return nil
	}
	var firing []Pending
	err := a.session.Pending(ctx, 0, func(p Pending) {
		if p.Fires && p.Key == resolved.Key && p.Category == resolved.Category {
			firing = append(firing, p)
		}
	})
	if err != nil {
		a.unknown("not every event that waits was looked at", err)
	}
	var sentences []string
	for _, p := range firing {
		where, since, until := a.words.placeOfPending(p)
		sentences = append(sentences, fmt.Sprintf("the firing event %s of %s %s", p.ID, a.words.stamp(p.Stored), where+since+until))
	}
	pair := event.Event{Category: resolved.Category, Status: event.StatusResolved, Key: resolved.Key}.Pair()
	known, err := a.session.Explain(ctx, store.Request{ID: resolved.Identity, Category: resolved.Category, Cost: 1, Pair: pair})
	if err != nil {
		a.unknown("the pairs cannot be read", err)
		return sentences
	}
	until := a.words.stamp(known.PairUntil)
	switch {
	case known.Pair == store.PairOpen:
		sentences = append(sentences, "the message of the firing event is out, and can be resolved until "+until)
	case known.Pair == store.PairUnderWay:
		sentences = append(sentences, "the firing event has its slots, and is being delivered")
	case known.Pair == store.PairWaits && len(firing) == 0: // otherwise its own sentence names its place
		sentences = append(sentences, "the firing event waits for a slot, until "+until)
	}
	return sentences
}
