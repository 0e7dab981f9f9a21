package sink

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// Class says what came of one request. The set is closed, and a class is the value of a metric label.
type Class string

// The classes; the package comment says what each means.
const (
	OK            Class = "ok"
	RateLimited   Class = "rate_limited"
	Transient     Class = "transient"
	Rejected      Class = "rejected"
	Misconfigured Class = "misconfigured"
	Unknown       Class = "unknown"
)

// Classes returns every class.
func Classes() []Class {
	return []Class{OK, RateLimited, Transient, Rejected, Misconfigured, Unknown}
}

// Error is a delivery that did not succeed.
type Error struct {
	Class Class // any but OK
	// Code is Slack's error code, the first line of a webhook's answer, or the HTTP status in words; empty when no answer
	// came. It is printable and has at most 100 characters.
	Code string
	// Channel is the destination whose pause or fault it is, as Sink.Destination names it.
	Channel string
	// RetryAfter is how long the channel must rest: 1s to 1h for RateLimited, else 0.
	RetryAfter time.Duration
	// Err is never nil and holds no secret. errors.Is finds a cancelled or expired context in it.
	Err error
}

// Error says where, which class and why.
func (e *Error) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("post to %s: %s for %v: %v", e.Channel, e.Class, e.RetryAfter, e.Err)
	}
	return fmt.Sprintf("post to %s: %s: %v", e.Channel, e.Class, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// asError keeps a nil *Error from becoming an error that is not nil.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

// A digest that does not succeed tells the reporter of digests what to do about it.
var _ summary.SendError = (*Error)(nil)

// NotPosted tells whether the message certainly did not go out.
func (e *Error) NotPosted() bool { return e.Class != Unknown }

// Hopeless tells whether another try would fail as well, whenever it is made.
func (e *Error) Hopeless() bool { return e.Class == Rejected }

// Rest is how long the channel must rest, which is no fault of the message; 0 where it need not.
func (e *Error) Rest() time.Duration { return e.RetryAfter }

// Sink delivers events. All methods may be called at once.
type Sink interface {
	// Prepare makes the message of d ahead of Send, as far as that is possible without asking anybody. Its result must not be
	// changed.
	Prepare(d Delivery) Delivery
	// Send delivers d once, without retries; any error is an *Error. The receipt of a firing event is opaque text of at most
	// 2 KiB, for the delivery of the event that resolves it. Other events have none.
	Send(ctx context.Context, d Delivery) (receipt string, err error)
	// Updatable returns those of d.Others whose messages can be updated. Update renders such a message again, now as resolved by d. It may be
	// repeated. A message that is out of reach for good is no error.
	Updatable(d Delivery) []string
	Update(ctx context.Context, d Delivery, receipt string) error
	// Destination names where d goes: a channel, "webhook" or "console". Deliveries to one destination share its rate limit.
	// An event that resolves another one goes where that one went.
	Destination(d Delivery) string
	// SendSummary delivers d as Send does an event.
	SendSummary(ctx context.Context, d summary.Digest) error
	// Destinations lists the channels that the settings name.
	Destinations() []string
	// SummaryDestination names the channel that is told what was suppressed of a category.
	SummaryDestination(category string) string
	// Mention returns whom messages of e's category mention, in Slack's markup; "" for nobody.
	Mention(e event.Event) string
	// Check finds out, without posting anything, whether the sink could deliver. It returns one Problem for each fault, and
	// for each thing that it could not find out.
	Check(ctx context.Context) []Problem
}

// Problem is one finding of Sink.Check.
type Problem struct {
	Subject string // what was checked, such as "Slack channel C0123456789"
	Err     error  // what is wrong and what to do about it, without secrets
	Warning bool   // delivery may still work
}
