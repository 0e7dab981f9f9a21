package consume

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Journal records the outcomes of events: [journal.Recorder]. Its method does not block and may be called concurrently.
type Journal interface {
	// Record records the result of n events of a category, in the order of their sequences, and the rule that denied them, if any. Entry
	// returns the entry of event i; if inFull is false, it returns only the identity. Record calls entry for a sample only.
	Record(category string, result journal.Result, level string, n int, entry func(i int, inFull bool) journal.Entry)
}

// recordOutcomes records outcomes that the server has confirmed. Round is the digest round in which drops were counted.
func (w *Worker) recordOutcomes(batch []settlement, of outcomes, round int64) {
	if of.outcome != Dropped {
		round = 0
	}
	slices.SortFunc(of.members, func(a, b int) int { return cmp.Compare(batch[a].entry.Origin.Sequence, batch[b].entry.Origin.Sequence) })
	w.journal.Record(of.category, journal.Result(of.outcome), of.level, len(of.members), func(i int, inFull bool) journal.Entry {
		settled := batch[of.members[i]]
		if !inFull {
			entry := w.briefEntry(settled.message)
			entry.Round = round
			return entry
		}
		entry := w.journalEntry(settled.message, settled.denial, settled.decided)
		entry.Round = round
		if settled.outcome == Dropped {
			entry.Channel = w.sink.Destination(sink.Delivery{Event: event.Event{Category: settled.category}})
		}
		if settled.fault != nil {
			entry.Reason = string(settled.fault.Reason)
			if settled.fault.Reason == event.ReasonRejected {
				entry.Code = settled.fault.Detail
			}
		}
		return entry
	})
}

// recordSent records a delivery.
func (w *Worker) recordSent(d *delivery, receipt string, decided time.Time) {
	w.journal.Record(d.category, journal.Sent, levelOf(d.denial), 1, func(_ int, inFull bool) journal.Entry {
		if !inFull {
			return w.briefEntry(d.message)
		}
		entry := w.journalEntry(d.message, d.denial, decided)
		entry.Channel, entry.Receipt = d.destination, sink.PostedAs(receipt)
		return entry
	})
}

// recordFailed records a failed post that will be retried.
func (w *Worker) recordFailed(d *delivery, failure *sink.Error) {
	w.journal.Record(d.category, journal.Failed, "", 1, func(int, bool) journal.Entry {
		entry := w.journalEntry(d.message, nil, time.Now())
		entry.Channel, entry.Reason, entry.Code = d.destination, string(failure.Class), failure.Code
		return entry
	})
}

// recordMove records that an event, or the parts of a body, were stored in the room.
func (w *Worker) recordMove(m *move) {
	if m.reason == room.Part {
		w.journal.Record(m.category, journal.Split, "", 1, func(int, bool) journal.Entry { return w.journalEntry(m.message, nil, time.Now()) })
		return
	}
	w.journal.Record(m.category, journal.Waiting, levelOf(m.denial), 1, func(int, bool) journal.Entry {
		entry := w.journalEntry(m.message, m.denial, time.Now())
		entry.Reason, entry.Next, entry.Channel = string(m.reason), m.due, m.channel
		return entry
	})
}

// briefEntry returns an entry that only identifies an event.
func (w *Worker) briefEntry(m *message) journal.Entry {
	return journal.Entry{ID: w.shownID(m), Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, Stored: m.entry.Origin.Stored}
}

// journalEntry returns the fields that every full entry of an event has.
func (w *Worker) journalEntry(m *message, denial *store.Denial, decided time.Time) journal.Entry {
	entry := w.briefEntry(m)
	entry.Title, entry.Decided, entry.Trace = m.title, w.streams.Clock.At(decided), m.traceID()
	if entry.Title == "" {
		entry.Title = event.QuickTitle(m.Data())
	}
	if m.cost > 1 {
		entry.Cost = m.cost
	}
	if w.o.Revision != nil {
		entry.Revision = w.o.Revision()
	}
	if denial != nil && denial.ByLimit() {
		entry.Path, entry.Limit, entry.Used, entry.Size = denial.Path, denial.Limit.String(), denial.Used, denial.Limit.Capacity()
		entry.Next = w.streams.Clock.At(denial.Opens)
	}
	return entry
}
