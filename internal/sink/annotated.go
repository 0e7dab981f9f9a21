package sink

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Limits tells how full limits are: throttle.Limiter. Its methods may be called at once.
type Limits interface {
	// Uses tells how full the limits on a category's path are. KnownUses tells the same as far as it is known without asking.
	Uses(ctx context.Context, category string) []limits.Usage
	KnownUses(category string) (uses []limits.Usage, known bool)
}

// Pacer knows who may mention people: pacing.Pacer. Its methods may be called at once.
type Pacer interface {
	// Mention tells whether an event may mention people, and whether it was told so for the first time. One event of a category
	// may do so in each duration. ReturnMention lets another one.
	Mention(ctx context.Context, category, id string, d time.Duration) (may, first bool)
	ReturnMention(ctx context.Context, category, id string)
}

// defaultMentionFor stands in for the interval of summaries where there are none.
const defaultMentionFor = 30 * time.Minute

// Annotated is a sink whose messages tell how full the limits of their events are, and mention people.
type Annotated struct {
	Sink
	Limits     Limits
	Pacer      Pacer
	Mentions   event.Table[[]string] // of the categories whose messages may mention somebody
	MentionFor time.Duration         // in which one event of a category may; 0 for half an hour
}

// Prepare makes an event's message, unless somebody has to be asked for something that it says.
func (a *Annotated) Prepare(d Delivery) Delivery {
	uses, known := a.Limits.KnownUses(d.Event.Category)
	if _, mentions := a.Mentions.Nearest(d.Event.Category); mentions || !known || d.Event.Resolves() {
		return d
	}
	d.Usage, d.annotated = uses, true
	return a.Sink.Prepare(d)
}

// Send asks for what was not known when d was prepared, and makes one attempt.
func (a *Annotated) Send(ctx context.Context, d Delivery) (receipt string, err error) {
	takesMention := false
	if !d.annotated && !d.Event.Resolves() {
		d.Usage = a.Limits.Uses(ctx, d.Event.Category)
		d.Mention, takesMention = a.mention(ctx, d.Event)
	}
	receipt, err = a.Sink.Send(ctx, d)
	// No other event mentions people where an earlier attempt, or this one, may have done so.
	if failure, known := errors.AsType[*Error](err); known && takesMention && failure.NotPosted() {
		a.Pacer.ReturnMention(context.WithoutCancel(ctx), d.Event.Category, d.Event.Identity())
	}
	return receipt, err
}

// mention returns whom an event's message mentions, if anybody, and whether this is the first message of the event that may.
func (a *Annotated) mention(ctx context.Context, e event.Event) (markup string, takes bool) {
	if markup = a.Mention(e); markup == "" {
		return "", false
	}
	may, first := a.Pacer.Mention(ctx, e.Category, e.Identity(), cmp.Or(a.MentionFor, defaultMentionFor))
	if !may {
		return "", false
	}
	return markup, first
}
