package received

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
)

// Reader reads what a stored message says about its event, by the decoder, the settings and the server's clock. It has no state.
type Reader struct {
	event.Decoder
	Streams *stream.Client
	MaxAge  time.Duration                       // older events expire, unless Delay allows their category more; 0: no bound
	Delay   func(category string) time.Duration // how long a denied event may wait for a slot; 0: it may not
	Fold    func(category string) time.Duration // how old the message may be into which an event of its key is folded; 0: none is
	Flaps   bool                                // keys may be flapping
}

// TimeToDeliver is how long an event may take from the end of its longest wait, when its slot may open, until its post.
const TimeToDeliver = time.Minute

// LongestLife returns the age at which the last event expires, by its maximum age and the longest wait for a slot; 0: no event expires.
func LongestLife(maxAge, longestDelay time.Duration) time.Duration {
	if maxAge == 0 || longestDelay == 0 {
		return maxAge
	}
	return max(maxAge, longestDelay+TimeToDeliver)
}

// At returns a time of this host's clock by the server's clock.
func (r *Reader) At(t time.Time) time.Time { return r.Streams.Clock.At(t) }

// TooOld reports whether an event has expired at a time of this host's clock. If the event's category may wait for slots, the event lives
// at least until the end of the longest wait, plus TimeToDeliver. A report never expires: without its decision, its key would be flapping for
// as long as its pair is remembered, and its next event would be folded.
func (r *Reader) TooOld(now time.Time, m *Message) bool {
	if m.Entry.IsReport() {
		return false
	}
	age := r.At(now).Sub(m.Entry.Since)
	if r.MaxAge == 0 || age <= r.MaxAge {
		return false
	}
	delay := r.Delay(r.CategoryOfMessage(m))
	return delay == 0 || age > delay+TimeToDeliver
}

// LeastAge returns the minimum time since an event was stored, by the server's clock.
func (r *Reader) LeastAge(m *Message) time.Duration {
	latest := r.Streams.Clock.Earliest(time.Now())
	if m.Meta.Timestamp.After(latest) { // the time at which it came back from the room
		latest = m.Meta.Timestamp
	}
	return latest.Sub(m.Entry.Since)
}

// clockSkew is the tolerated error of the estimate of the server's clock.
const clockSkew = 5 * time.Second

// ForgottenUntil is the time up to which the server may have forgotten deliveries, since the consumer is new or the server was killed.
func (r *Reader) ForgottenUntil() time.Time {
	created, reconnected := r.Streams.Layout().Created, r.At(r.Streams.Connection.LastReconnect()).Add(clockSkew)
	if created.After(reconnected) {
		return created
	}
	return reconnected
}

// CategoryOfMessage returns the category of a message that may not have been decoded yet; "": it has none.
func (r *Reader) CategoryOfMessage(m *Message) string {
	if m.About.Category != "" {
		return m.About.Category
	}
	category, bare, err := r.CategoryOf(m.Entry.Subject)
	if err != nil || !bare {
		return category
	}
	e, _ := r.Decode(m.Published())
	return e.Category
}

// FirstLevel returns the first level of an event's category. If the category is unknown, it returns the first level of the subject: a
// producer of notify.payments.> must not push out letters of other first levels.
func (r *Reader) FirstLevel(m *Message, e event.Event) string {
	if e.Category != "" {
		return event.FirstLevel(e.Category)
	}
	return r.FirstLevelOf(m.Entry.Subject)
}

// ShownID returns the ID of a message's event, which may have been dropped undecoded.
func (r *Reader) ShownID(m *Message) string {
	if m.About.ShownID == "" {
		e := r.Identify(m.Published())
		m.About.ShownID, m.About.Cost = e.ShownID(), e.Cost
	}
	return m.About.ShownID
}
