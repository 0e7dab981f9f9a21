package sink

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Limits reports how full limits are: throttle.Limiter. Its methods may be called at once.
type Limits interface {
	// Uses returns the use of the limits on a category's path.
	Uses(ctx context.Context, category string) []limits.Use
}

// Pacer decides who may mention people: pacing.Pacer. Its methods may be called at once.
type Pacer interface {
	// Mention reports whether an event may mention people, and whether this is the first such answer for the event. One event
	// of a category may mention people in each duration d. ReturnMention permits another one.
	Mention(ctx context.Context, category, id string, d time.Duration) (may, first bool)
	ReturnMention(ctx context.Context, category, id string)
}

// defaultMentionFor replaces the interval of digests if digests are off.
const defaultMentionFor = 30 * time.Minute

// Annotated adds to each message the use of the event's limits and the people to mention.
type Annotated struct {
	Sink
	Limits     Limits
	Pacer      Pacer
	Mention    Mentioner             // nil: messages mention nobody
	Mentions   event.Table[[]string] // categories whose messages may mention somebody
	MentionFor time.Duration         // one event of a category may mention people in this time; 0: half an hour
	Sent       func(channel string)  // called after each message that the sink accepted; nil: nobody counts them
}

// Send adds the use of the limits and the mentions to d, and makes one attempt.
func (a *Annotated) Send(ctx context.Context, d Delivery) (receipt string, err error) {
	takesMention := false
	if !d.Event.Resolves() {
		d.Usage = a.Limits.Uses(ctx, d.Event.Category)
		d.Mention, takesMention = a.mention(ctx, d.Event)
	}
	receipt, err = a.Sink.Send(ctx, d)
	if err == nil && a.Sent != nil {
		a.Sent(a.Destination(d))
	}
	// Another event may mention people only if no attempt of this one can have done so.
	if failure, known := errors.AsType[*Error](err); known && takesMention && failure.NotPosted() {
		a.Pacer.ReturnMention(context.WithoutCancel(ctx), d.Event.Category, d.Event.Identity())
	}
	return receipt, err
}

// mention returns the people whom the event's message mentions. takes is true for the first attempt of the event that may.
func (a *Annotated) mention(ctx context.Context, e event.Event) (markup string, takes bool) {
	if a.Mention == nil {
		return "", false
	}
	if markup = a.Mention(e); markup == "" {
		return "", false
	}
	may, first := a.Pacer.Mention(ctx, e.Category, e.Identity(), cmp.Or(a.MentionFor, defaultMentionFor))
	if !may {
		return "", false
	}
	return markup, first
}
