package outcome

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/internal/tracing"
)

// Journal records the outcomes of events: [journal.Recorder]. Its method does not block and may be called concurrently.
type Journal interface {
	// Record records the result of n events of a category, in the order of their sequences, and the rule that denied them, if any. Entry
	// returns the entry of event i; a brief entry identifies the event only. Record calls entry for a sample only.
	Record(category string, result journal.Result, level string, n int, entry func(i int, d journal.Detail) journal.Entry)
}

// Rules returns the limits of this instance: a part of [throttle.Limiter].
type Rules interface{ Rules() *store.Rules }

// Channels returns the channel of a delivery: a part of [sink.Sink].
type Channels interface {
	Destination(d sink.Delivery) string
}

// Reporter reports what becomes of events: journal entries, debug lines and spans. Its methods may be called concurrently.
type Reporter struct {
	Reader   *received.Reader
	Journal  Journal
	Limits   Rules
	Tracer   *tracing.Tracer // nil: events have no spans
	Channels Channels        // of dropped events
	Logger   *slog.Logger
}

// recordOutcomes records outcomes that the server has confirmed. Round is the digest round in which drops were counted.
func (r *Reporter) recordOutcomes(batch []Settlement, of outcomes, round int64) {
	if of.outcome != journal.Dropped {
		round = 0
	}
	slices.SortFunc(of.members, func(a, b int) int { return cmp.Compare(batch[a].Entry.Origin.Sequence, batch[b].Entry.Origin.Sequence) })
	r.Journal.Record(of.category, of.outcome, of.level, len(of.members), func(i int, d journal.Detail) journal.Entry {
		settled := batch[of.members[i]]
		switch d {
		case journal.Place:
			return journal.Entry{Sequence: settled.Entry.Origin.Sequence}
		case journal.Brief:
			entry := r.briefEntry(settled.Message)
			entry.Round = round
			return entry
		case journal.Full:
		}
		entry := r.journalEntry(settled.Message, settled.Denial, settled.decided)
		entry.Round = round
		if settled.Outcome == journal.Dropped {
			entry.Channel = r.Channels.Destination(sink.Delivery{Event: event.Event{Category: settled.About.Category}})
			entry.Reason = cmp.Or(entry.Reason, settled.Refused)
		}
		if settled.Fold != nil {
			entry.Number, entry.Message, entry.Flapping = settled.Fold.Number, settled.Fold.Posted, settled.Fold.Flaps
		}
		if settled.fault != nil {
			entry.Reason = string(settled.fault.Reason)
			if settled.fault.Reason == event.ReasonRejected {
				entry.Error = settled.fault.Detail
			}
		}
		return entry
	})
}

// Sent is an event that was posted.
type Sent struct {
	Message  *received.Message
	Denial   *store.Denial // the denial of an event in shadow mode
	Resolves bool          // it resolves another event
	Channel  string
	Receipt  string
	Recorded time.Time // by this host's clock
}

// RecordSent records that an event was posted, or a report.
func (r *Reporter) RecordSent(s Sent) {
	result := journal.Sent
	if s.Message.Entry.IsReport() {
		result = journal.Steady
	}
	r.Journal.Record(s.Message.About.Category, result, LevelOf(s.Denial), 1, func(_ int, detail journal.Detail) journal.Entry {
		if detail != journal.Full {
			return r.briefEntry(s.Message)
		}
		entry := r.journalEntry(s.Message, s.Denial, s.Recorded)
		entry.Channel, entry.Receipt = s.Channel, sink.PostedAs(s.Receipt)
		if r.Limits.Rules().LimitsKey(s.Message.About.Category) {
			entry.Key = s.Message.About.Key
		}
		return entry
	})
}

// MaxError is the maximum number of characters of a failed post's error in the journal.
const MaxError = 200

// RecordFailed records a failed post to a channel that will be retried.
func (r *Reporter) RecordFailed(m *received.Message, channel string, failure *sink.Error) {
	if m.Entry.IsReport() {
		return
	}
	r.Journal.Record(m.About.Category, journal.Failed, "", 1, func(int, journal.Detail) journal.Entry {
		entry := r.journalEntry(m, nil, time.Now())
		entry.Channel, entry.Reason, entry.Error = channel, string(failure.Class), plain.Short(failure.Err.Error(), MaxError)
		return entry
	})
}

// Moved is an event or a body that goes on in the room, for a reason.
type Moved struct {
	Message *received.Message
	Reason  room.Reason
	Denial  *store.Denial // if it waits for a slot; nil: not known
	Due     time.Time     // when it comes back, by the server's clock; zero: not known
	Channel string        // if it waits for its channel
}

// RecordMoved records that an event or the parts of a body were stored in the room.
func (r *Reporter) RecordMoved(m Moved) {
	if m.Message.Entry.IsReport() {
		return
	}
	result := journal.Waiting
	if m.Reason == room.Part {
		result = journal.Split
	}
	r.Journal.Record(m.Message.About.Category, result, LevelOf(m.Denial), 1, func(int, journal.Detail) journal.Entry {
		entry := r.journalEntry(m.Message, m.Denial, time.Now())
		if result == journal.Split {
			return entry
		}
		entry.Reason, entry.Next, entry.Channel = string(m.Reason), m.Due, m.Channel
		if m.Message.Entry.Order.Action != room.Release { // the operator has not made it wait
			entry.By = ""
		}
		return entry
	})
}

func (r *Reporter) briefEntry(m *received.Message) journal.Entry {
	return journal.Entry{ID: r.Reader.ShownID(m), Stream: m.Entry.Origin.Stream, Sequence: m.Entry.Origin.Sequence, Stored: m.Entry.Origin.Stored}
}

// journalEntry returns the fields that every full entry of an event has.
func (r *Reporter) journalEntry(m *received.Message, denial *store.Denial, decided time.Time) journal.Entry {
	entry := r.briefEntry(m)
	entry.Title, entry.Decided, entry.Trace = received.TitleOf(m), r.Reader.At(decided), m.TraceID()
	if m.About.Cost > 1 {
		entry.Cost = m.About.Cost
	}
	entry.Revision = r.Limits.Rules().RevisionText()
	entry.By = m.Entry.Order.By
	if denial != nil && denial.Mute != nil {
		mute := denial.Mute.Mute
		entry.Path, entry.Next, entry.Reason, entry.Mute = mute.Path, mute.Until, mute.Reason, mute.ID()
		if mute.By != "" {
			entry.Reason = mute.By + ": " + mute.Reason
		}
	}
	if denial != nil && denial.ByLimit() {
		entry.Path, entry.Limit, entry.Used, entry.Size = denial.Path, denial.Limit.String(), denial.Used, denial.Limit.Capacity()
		entry.Next = r.Reader.At(denial.Opens)
		if denial.Key != "" {
			entry.Key = m.About.Key
		}
	}
	return entry
}

// logOutcomes logs a line for each event of a batch that has ended, if debug lines are enabled. Otherwise it looks at no event.
func (r *Reporter) logOutcomes(settled ...Settlement) {
	if !r.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, s := range settled {
		if s.Outcome == "" {
			continue
		}
		attributes := []any{"id", r.Reader.ShownID(s.Message), "category", s.About.Category, "outcome", string(s.Outcome)}
		if level := LevelOf(s.Denial); level != "" {
			attributes = append(attributes, "limit_level", level) // "level" is the line's own
		}
		r.Logger.Debug("event has ended", s.Traced(attributes...)...)
	}
}

// Trace starts the span of a message that has none, if its event belongs to the sample or had a span, other than a body's, before it waited.
func (r *Reporter) Trace(m *received.Message, begun time.Time) {
	if r.Tracer == nil || m.Span != nil || m.Untraced {
		return
	}
	goesOn := m.Entry.Trace != "" && m.Entry.Reason != room.Part
	if m.Untraced = !goesOn && !r.Tracer.Samples(begun); !m.Untraced {
		r.startSpan(m, begun)
	}
}

func (r *Reporter) startSpan(m *received.Message, begun time.Time) {
	m.Span = r.Tracer.Process(tracing.Message{
		Subject: m.Entry.Subject, Stream: m.Entry.Origin.Stream, Sequence: m.Entry.Origin.Sequence, ID: r.Reader.ShownID(m), Category: m.About.Category,
		Size: len(m.Data), Delivered: m.Meta.NumDelivered, WaitedFor: string(m.Entry.Reason), Producer: m.ProducerSpan(), Parent: m.Entry.Trace,
	}, begun)
}

// RoundTrip is one request for decisions.
type RoundTrip struct {
	Asked, Answered time.Time
	Events          int
}

// TraceDecision adds a decision to the span of its event, and starts that span if needed.
func (r *Reporter) TraceDecision(c *received.Candidate, by RoundTrip, d *store.Decision, denial *store.Denial) {
	if r.Tracer == nil {
		return
	}
	if d.Grant == nil {
		r.Trace(c.Message, c.Received)
	} else if c.Span == nil { // every admitted event has a span
		r.startSpan(c.Message, c.Received)
	}
	c.Span.Decided(by.Asked, by.Answered, d.Verdict.String(), LevelOf(denial), by.Events)
}
