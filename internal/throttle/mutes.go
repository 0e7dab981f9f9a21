package throttle

import (
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// Mutes knows which events operators have muted, by the limits of this instance. Its methods may be called concurrently.
type Mutes struct {
	o         *LimiterOptions
	staleness *staleness
	past      *pastMutes
}

// Muted returns the denial of an event by a mute, without asking Redis. It returns nil if no mute covers the event, or if Redis has not
// confirmed the limits of this instance within the lifetime of an entry of the deny cache.
func (m *Mutes) Muted(category string, severity event.Severity) *store.Denial {
	denial := m.KnownMutes(category).Of(severity)
	if denial == nil || !m.staleness.confirmed(m.o.DenyCacheTTL) {
		return nil
	}
	m.o.Metrics.Decision(store.Denied.String(), SourceCache, 1)
	return denial
}

// ErrMuted means that a mute covers an event.
var ErrMuted = errors.New("a mute covers the event")

// CheckMute returns by when the post of an event must have begun; zero: at any time. If Redis has not just confirmed the limits of this
// instance, it asks first, in one call for all events. After an error, such as [ErrMuted], the event must not be posted now.
func (m *Mutes) CheckMute(ctx context.Context, category string, severity event.Severity) (by time.Time, err error) {
	if !m.staleness.confirmed(ConfirmedFor) {
		if _, err := m.staleness.confirming.do(ctx, struct{}{}); err != nil {
			return time.Time{}, err
		}
	}
	if asked := m.staleness.asked.Load(); asked != nil {
		by = asked.Add(postedWithin)
	}
	if m.KnownMutes(category).Of(severity) != nil {
		return by, ErrMuted
	}
	return by, nil
}

// KnownMutes returns the mutes that cover a category, as far as this instance knows.
func (m *Mutes) KnownMutes(category string) store.Mutes {
	return m.o.Redis.Rules().MutesOf(category)
}

// UnreportedMutes returns the texts of the mutes that cover a category, if their reports may not be posted yet: mutes in force, as far as
// this instance knows, and past mutes.
func (m *Mutes) UnreportedMutes(category string) []string {
	texts := m.past.covering(category, time.Now())
	for _, denial := range m.KnownMutes(category) {
		texts = append(texts, denial.Mute.Text)
	}
	return texts
}

// Ended reports whether a mute is no longer in force. Its report is due.
func (m *Mutes) Ended(mute *limits.Mute) bool {
	rules := m.o.Redis.Rules().Ruleset
	m.past.note(mute, rules, time.Now())
	return !mute.In(rules)
}
