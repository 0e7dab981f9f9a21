package consume

import (
	"cmp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// Journal remembers what became of events: [journal.Recorder]. Its method does not wait, and may be called at once.
type Journal interface {
	// Record tells what became of n events of a category, and which rule denied them, if one did. Entry returns what is to be told of
	// one of them. It is asked for few of many.
	Record(category string, result journal.Result, level string, n int, entry func(i int) journal.Entry)
}

// recordOutcomes records outcomes that the server has confirmed.
func (w *Worker) recordOutcomes(batch []settlement, of outcomes) {
	w.journal.Record(of.category, journal.Result(of.outcome), of.level, len(of.members), func(i int) journal.Entry {
		settled := batch[of.members[i]]
		entry := w.journalEntry(settled.message, settled.denial, settled.decided)
		if settled.outcome == Dropped {
			entry.Channel = w.sink.Destination(sink.Delivery{Event: event.Event{Category: settled.category}})
		}
		if settled.fault != nil {
			entry.Reason = string(settled.fault.Reason)
			if settled.fault.Reason == event.ReasonSlackRejected {
				entry.Code = settled.fault.Detail
			}
		}
		return entry
	})
}

// recordSent records a delivery.
func (w *Worker) recordSent(d *delivery, receipt string, decided time.Time) {
	level := ""
	if d.denial != nil {
		level = d.denial.Level
	}
	w.journal.Record(d.category, journal.Sent, level, 1, func(int) journal.Entry {
		entry := w.journalEntry(d.message, d.denial, decided)
		entry.Channel, entry.Receipt = d.destination, sink.PostedAs(receipt)
		return entry
	})
}

// recordFailed records a post that is repeated later.
func (w *Worker) recordFailed(d *delivery, failure *sink.Error) {
	w.journal.Record(d.category, journal.Failed, "", 1, func(int) journal.Entry {
		entry := w.journalEntry(d.message, nil, time.Now())
		entry.Channel, entry.Reason, entry.Code = d.destination, string(failure.Class), failure.Code
		return entry
	})
}

// recordMove records that an event was stored in the room, or the parts of a body.
func (w *Worker) recordMove(m *move) {
	if m.reason == room.Part {
		w.journal.Record(m.category, journal.Split, "", 1, func(int) journal.Entry { return w.journalEntry(m.message, nil, time.Now()) })
		return
	}
	level := ""
	if m.denial != nil {
		level = m.denial.Level
	}
	w.journal.Record(m.category, journal.Waiting, level, 1, func(int) journal.Entry {
		entry := w.journalEntry(m.message, m.denial, time.Now())
		entry.Reason, entry.Next, entry.Channel = string(m.reason), m.due, m.channel
		return entry
	})
}

// journalEntry is what is told of an event in any case. An event that was dropped undecoded is decoded here.
func (w *Worker) journalEntry(m *message, denial *throttle.Denial, decided time.Time) journal.Entry {
	id, cost := m.shownID, m.cost
	if id == "" {
		e, _ := m.decode(w.o.Decoder) // it has its ID whatever is wrong with it
		id, cost = e.ShownID(), e.Cost
	}
	entry := journal.Entry{
		ID: id, Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, Stored: m.entry.Origin.Stored,
		Title: event.QuickTitle(m.Data()), Decided: w.clock.at(decided), Trace: traceOf(m.Headers()),
	}
	if cost > 1 {
		entry.Cost = cost
	}
	if w.o.Revision != nil {
		entry.Revision = w.o.Revision()
	}
	if denial != nil && denial.ByLimit() {
		entry.Path, entry.Limit, entry.Used, entry.Size = denial.Path, denial.Limit.String(), denial.Used, denial.Limit.Capacity()
		entry.Next = w.clock.at(denial.Opens)
	}
	return entry
}

// traceOf is the trace ID in the W3C header traceparent, as a producer or a CloudEvent has it; "" if there is none.
func traceOf(header nats.Header) string {
	parent := cmp.Or(header.Get("traceparent"), header.Get("Traceparent"), header.Get("ce-traceparent"))
	parts := strings.Split(parent, "-")
	const version, id = 2, 32
	if len(parts) < 4 || len(parts[0]) != version || len(parts[1]) != id {
		return ""
	}
	return parts[1]
}
