package consume

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

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

// reporter reports what becomes of events: journal entries, debug lines and spans. Its methods may be called concurrently.
type reporter struct {
	reader   *reader
	journal  Journal
	limits   Rules
	tracer   *tracing.Tracer // nil: events have no spans
	channels Channels        // of dropped events
	logger   *slog.Logger
}

// recordOutcomes records outcomes that the server has confirmed. Round is the digest round in which drops were counted.
func (r *reporter) recordOutcomes(batch []settlement, of outcomes, round int64) {
	if of.outcome != journal.Dropped {
		round = 0
	}
	slices.SortFunc(of.members, func(a, b int) int { return cmp.Compare(batch[a].entry.Origin.Sequence, batch[b].entry.Origin.Sequence) })
	r.journal.Record(of.category, of.outcome, of.level, len(of.members), func(i int, d journal.Detail) journal.Entry {
		settled := batch[of.members[i]]
		switch d {
		case journal.Place:
			return journal.Entry{Sequence: settled.entry.Origin.Sequence}
		case journal.Brief:
			entry := r.briefEntry(settled.message)
			entry.Round = round
			return entry
		case journal.Full:
		}
		entry := r.journalEntry(settled.message, settled.denial, settled.decided)
		entry.Round = round
		if settled.outcome == journal.Dropped {
			entry.Channel = r.channels.Destination(sink.Delivery{Event: event.Event{Category: settled.about.category}})
			entry.Reason = cmp.Or(entry.Reason, settled.refused)
		}
		if settled.fold != nil {
			entry.Number, entry.Message, entry.Flapping = settled.fold.Number, settled.fold.Posted, settled.fold.Flaps
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

// sent is an event that was posted.
type sent struct {
	*message
	denial   *store.Denial // the denial of an event in shadow mode
	resolves bool          // it resolves another event
	channel  string
	receipt  string
	recorded time.Time // by this host's clock
}

func (r *reporter) recordSent(s sent) {
	result := journal.Sent
	if s.entry.IsReport() {
		result = journal.Steady
	}
	r.journal.Record(s.about.category, result, levelOf(s.denial), 1, func(_ int, detail journal.Detail) journal.Entry {
		if detail != journal.Full {
			return r.briefEntry(s.message)
		}
		entry := r.journalEntry(s.message, s.denial, s.recorded)
		entry.Channel, entry.Receipt = s.channel, sink.PostedAs(s.receipt)
		if r.limits.Rules().LimitsKey(s.about.category) {
			entry.Key = s.about.key
		}
		return entry
	})
}

// maxError is the maximum number of characters of a failed post's error in the journal.
const maxError = 200

// recordFailed records a failed post to a channel that will be retried.
func (r *reporter) recordFailed(m *message, channel string, failure *sink.Error) {
	if m.entry.IsReport() {
		return
	}
	r.journal.Record(m.about.category, journal.Failed, "", 1, func(int, journal.Detail) journal.Entry {
		entry := r.journalEntry(m, nil, time.Now())
		entry.Channel, entry.Reason, entry.Error = channel, string(failure.Class), plain.Short(failure.Err.Error(), maxError)
		return entry
	})
}

// moved is an event or a body that goes on in the room, for a reason.
type moved struct {
	*message
	reason  room.Reason
	denial  *store.Denial // if it waits for a slot; nil: not known
	due     time.Time     // when it comes back, by the server's clock; zero: not known
	channel string        // if it waits for its channel
}

// recordMoved records that an event or the parts of a body were stored in the room.
func (r *reporter) recordMoved(m moved) {
	if m.entry.IsReport() {
		return
	}
	result := journal.Waiting
	if m.reason == room.Part {
		result = journal.Split
	}
	r.journal.Record(m.about.category, result, levelOf(m.denial), 1, func(int, journal.Detail) journal.Entry {
		entry := r.journalEntry(m.message, m.denial, time.Now())
		if result == journal.Split {
			return entry
		}
		entry.Reason, entry.Next, entry.Channel = string(m.reason), m.due, m.channel
		if m.entry.Order.Action != room.Release { // the operator has not made it wait
			entry.By = ""
		}
		return entry
	})
}

func (r *reporter) briefEntry(m *message) journal.Entry {
	return journal.Entry{ID: r.reader.shownID(m), Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, Stored: m.entry.Origin.Stored}
}

// journalEntry returns the fields that every full entry of an event has.
func (r *reporter) journalEntry(m *message, denial *store.Denial, decided time.Time) journal.Entry {
	entry := r.briefEntry(m)
	entry.Title, entry.Decided, entry.Trace = titleOf(m), r.reader.at(decided), m.traceID()
	if m.about.cost > 1 {
		entry.Cost = m.about.cost
	}
	entry.Revision = r.limits.Rules().RevisionText()
	entry.By = m.entry.Order.By
	if denial != nil && denial.Mute != nil {
		mute := denial.Mute.Mute
		entry.Path, entry.Next, entry.Reason, entry.Mute = mute.Path, mute.Until, mute.Reason, mute.ID()
		if mute.By != "" {
			entry.Reason = mute.By + ": " + mute.Reason
		}
	}
	if denial != nil && denial.ByLimit() {
		entry.Path, entry.Limit, entry.Used, entry.Size = denial.Path, denial.Limit.String(), denial.Used, denial.Limit.Capacity()
		entry.Next = r.reader.at(denial.Opens)
		if denial.Key != "" {
			entry.Key = m.about.key
		}
	}
	return entry
}

// logOutcomes logs a line for each event of a batch that has ended, if debug lines are enabled. Otherwise it looks at no event.
func (r *reporter) logOutcomes(settled ...settlement) {
	if !r.logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, s := range settled {
		if s.outcome == "" {
			continue
		}
		attributes := []any{"id", r.reader.shownID(s.message), "category", s.about.category, "outcome", string(s.outcome)}
		if level := levelOf(s.denial); level != "" {
			attributes = append(attributes, "limit_level", level) // "level" is the line's own
		}
		r.logger.Debug("event has ended", s.traced(attributes...)...)
	}
}

// trace starts the span of a message that has none, if its event belongs to the sample or had a span, other than a body's, before it waited.
func (r *reporter) trace(m *message, begun time.Time) {
	if r.tracer == nil || m.span != nil || m.untraced {
		return
	}
	goesOn := m.entry.Trace != "" && m.entry.Reason != room.Part
	if m.untraced = !goesOn && !r.tracer.Samples(begun); !m.untraced {
		r.startSpan(m, begun)
	}
}

func (r *reporter) startSpan(m *message, begun time.Time) {
	m.span = r.tracer.Process(tracing.Message{
		Subject: m.entry.Subject, Stream: m.entry.Origin.Stream, Sequence: m.entry.Origin.Sequence, ID: r.reader.shownID(m), Category: m.about.category,
		Size: len(m.Data), Delivered: m.meta.NumDelivered, WaitedFor: string(m.entry.Reason), Producer: m.producerSpan(), Parent: m.entry.Trace,
	}, begun)
}

type roundTrip struct {
	asked, answered time.Time
	events          int
}

func (r *reporter) traceDecision(c *candidate, by roundTrip, d *store.Decision, denial *store.Denial) {
	if r.tracer == nil {
		return
	}
	if d.Grant == nil {
		r.trace(c.message, c.received)
	} else if c.span == nil { // every admitted event has a span
		r.startSpan(c.message, c.received)
	}
	c.span.Decided(by.asked, by.answered, d.Verdict.String(), levelOf(denial), by.events)
}
