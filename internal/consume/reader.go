package consume

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// reader reads what a stored message says about its event, by the decoder, the settings and the server's clock. It has no state.
type reader struct {
	event.Decoder
	streams *stream.Client
	maxAge  time.Duration                       // see Options.MaxAge, as for the next field
	delay   func(category string) time.Duration // never nil
	fold    func(category string) time.Duration // see Options.Fold; never nil
	flaps   bool                                // keys may be flapping
}

// timeToDeliver is how long an event may take from the end of its longest wait, when its slot may open, until its post.
const timeToDeliver = time.Minute

// LongestLife returns the age at which the last event expires, by [Options.MaxAge] and the longest wait for a slot; 0: no event expires.
func LongestLife(maxAge, longestDelay time.Duration) time.Duration {
	if maxAge == 0 || longestDelay == 0 {
		return maxAge
	}
	return max(maxAge, longestDelay+timeToDeliver)
}

// at returns a time of this host's clock by the server's clock.
func (r *reader) at(t time.Time) time.Time { return r.streams.Clock.At(t) }

// tooOld reports whether an event has expired at a time of this host's clock. If the event's category may wait for slots, the event lives
// at least until the end of the longest wait, plus timeToDeliver. A report never expires: without its decision, its key would be flapping for
// as long as its pair is remembered, and its next event would be folded.
func (r *reader) tooOld(now time.Time, m *message) bool {
	if m.entry.IsReport() {
		return false
	}
	age := r.at(now).Sub(m.entry.Since)
	if r.maxAge == 0 || age <= r.maxAge {
		return false
	}
	delay := r.delay(r.categoryOf(m))
	return delay == 0 || age > delay+timeToDeliver
}

// leastAge returns the minimum time since an event was stored, by the server's clock.
func (r *reader) leastAge(m *message) time.Duration {
	latest := r.streams.Clock.Earliest(time.Now())
	if m.meta.Timestamp.After(latest) { // the time at which it came back from the room
		latest = m.meta.Timestamp
	}
	return latest.Sub(m.entry.Since)
}

// clockSkew is the tolerated error of the estimate of the server's clock.
const clockSkew = 5 * time.Second

// forgottenUntil is the time up to which the server may have forgotten deliveries, since the consumer is new or the server was killed.
func (r *reader) forgottenUntil() time.Time {
	created, reconnected := r.streams.Layout().Created, r.at(r.streams.Connection.LastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// categoryOf returns the category of a message that may not have been decoded yet; "": it has none.
func (r *reader) categoryOf(m *message) string {
	if m.about.category != "" {
		return m.about.category
	}
	category, bare, err := r.CategoryOf(m.entry.Subject)
	if err != nil || !bare {
		return category
	}
	e, _ := r.Decode(m.published())
	return e.Category
}

// firstLevel returns the first level of an event's category. If the category is unknown, it returns the first level of the subject: a
// producer of notify.payments.> must not push out letters of other first levels.
func (r *reader) firstLevel(m *message, e event.Event) string {
	if e.Category != "" {
		return event.FirstLevel(e.Category)
	}
	return r.FirstLevelOf(m.entry.Subject)
}

// shownID returns the ID of a message's event, which may have been dropped undecoded.
func (r *reader) shownID(m *message) string {
	if m.about.shownID == "" {
		e := r.Identify(m.published())
		m.about.shownID, m.about.cost = e.ShownID(), e.Cost
	}
	return m.about.shownID
}
