package throttle

import (
	"context"
	"errors"
	"slices"
	"sync"
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

const (
	// reportedWithin is longer than the report about a mute takes after the mute's end, even if events wait for the channel.
	reportedWithin = time.Hour

	// maxPast bounds the past mutes that are remembered, the newest.
	maxPast = 100
)

// pastMutes remembers mutes that have ended or were replaced, until their reports must have been posted. Until then, keys that these
// reports show as firing may be resolved. It is safe for concurrent use.
type pastMutes struct {
	mu      sync.Mutex
	inForce []*limits.Mute
	past    []pastMute
}

// pastMute is a mute that has ended or was replaced.
type pastMute struct {
	*limits.Mute
	ended time.Time // zero: a newer mute in its place is in force, and the report waits for its end
}

// adopt notes which mutes are in force from now on.
func (p *pastMutes) adopt(rules limits.Ruleset, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.inForce
	p.inForce = rules.Mutes
	for _, mute := range before {
		p.add(mute)
	}
	p.past = slices.DeleteFunc(p.past, func(m pastMute) bool { return isAmong(p.inForce, m.Mute) || m.isReported(now) })
	p.update(rules, now)
}

// note remembers a mute with a due report. This instance may have started after the end of the mute.
func (p *pastMutes) note(mute *limits.Mute, rules limits.Ruleset, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(mute)
	p.update(rules, now)
}

// add remembers a mute, unless it is known. The caller holds the lock.
func (p *pastMutes) add(mute *limits.Mute) {
	isKnown := isAmong(p.inForce, mute) || slices.ContainsFunc(p.past, func(m pastMute) bool { return m.ID() == mute.ID() })
	if isKnown {
		return
	}
	p.past = append(p.past, pastMute{Mute: mute})
	p.past = slices.Delete(p.past, 0, max(0, len(p.past)-maxPast))
}

// update notes which past mutes have ended by now. The caller holds the lock.
func (p *pastMutes) update(rules limits.Ruleset, now time.Time) {
	for i := range p.past {
		if m := &p.past[i]; m.In(rules) {
			m.ended = time.Time{}
		} else if m.ended.IsZero() {
			m.ended = now
		}
	}
}

func isAmong(mutes []*limits.Mute, mute *limits.Mute) bool {
	return slices.ContainsFunc(mutes, func(other *limits.Mute) bool { return other.ID() == mute.ID() })
}

// isReported reports whether the report about the mute must have been posted.
func (m pastMute) isReported(now time.Time) bool {
	return !m.ended.IsZero() && now.Sub(m.ended) > reportedWithin
}

// covering returns the texts of the past mutes that cover a category.
func (p *pastMutes) covering(category string, now time.Time) (texts []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.past {
		if !m.isReported(now) && m.Covers(category) {
			texts = append(texts, m.Text())
		}
	}
	return texts
}
