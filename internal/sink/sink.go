package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// Class classifies the result of one request. The set is closed, and a class is the value of a metric label.
type Class string

// The classes. The package comment explains them.
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

// Error is a failed delivery.
type Error struct {
	Class Class // any but OK
	// Code is the server's error code, the first line of its answer, or the HTTP status in words. It is empty if no answer
	// came. It is printable and has at most 100 characters.
	Code string
	// Channel is the destination that must pause or is misconfigured, as Sink.Destination names it.
	Channel string
	// OfChannel is true for Misconfigured if it is the channel that refuses, not the whole setup: other channels may take messages.
	OfChannel bool
	// Lost is true if the message that Delivery.Opened names is out of reach: the event has to be a message of its own. If a message of its own
	// fails so, no reply reaches any message of the channel.
	Lost bool
	// RetryAfter is how long the channel must pause: 1s to 1h for RateLimited, otherwise 0.
	RetryAfter time.Duration
	// Err is never nil and holds no secret. errors.Is finds a cancelled or expired context in it.
	Err error
}

// Error returns the destination, the class and the cause.
func (e *Error) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("post to %s: %s for %v: %v", e.Channel, e.Class, e.RetryAfter, e.Err)
	}
	return fmt.Sprintf("post to %s: %s: %v", e.Channel, e.Class, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// FailureOf returns the failure of a request about a destination; nil if it succeeded. After an error of another type it is unknown whether the
// message was posted.
func FailureOf(err error, destination string) *Error {
	if err == nil {
		return nil
	}
	if failure, known := errors.AsType[*Error](err); known {
		return failure
	}
	return &Error{Class: Unknown, Channel: destination, Err: err}
}

// AsError returns e as an error: nil if e is nil.
func (e *Error) AsError() error {
	if e == nil {
		return nil
	}
	return e
}

// The reporter of digests decides by these methods what to do about a digest that failed.
var _ summary.SendError = (*Error)(nil)

// NotPosted reports whether the message certainly did not go out.
func (e *Error) NotPosted() bool { return e.Class != Unknown }

// Hopeless reports whether every later attempt would fail too.
func (e *Error) Hopeless() bool { return e.Class == Rejected }

// Rest returns how long the channel must pause for a reason outside the message; 0 if it need not.
func (e *Error) Rest() time.Duration { return e.RetryAfter }

// Check reports whether a message may be posted, and by when its request must have begun; a zero time is no bound.
type Check func(context.Context) (by time.Time, err error)

type checkKey struct{}

// WithCheck returns a context in which every request that delivers a message begins with a check.
func WithCheck(ctx context.Context, check Check) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// Begin is called when the request that delivers a message is complete. If it returns a failure, the request must not be made.
func Begin(ctx context.Context, destination string) (by time.Time, failure *Error) {
	err := ctx.Err()
	if check, checks := ctx.Value(checkKey{}).(Check); checks && err == nil {
		by, err = check(ctx)
	}
	if err != nil {
		return by, &Error{Class: Transient, Channel: destination, Err: fmt.Errorf("not sent: %w", err)}
	}
	return by, nil
}

// Request is the result of one request of a sink.
type Request struct {
	Sink   string // the kind of sink, such as "slack"
	Method string // what the request called, such as "chat.postMessage" or "webhook"
	Class  Class
	Status int    // of the HTTP answer; 0 if none came
	Code   string // as in Error; empty for OK
	Began  time.Time
	Took   time.Duration
}

// Sink delivers events. All methods may be called at once.
type Sink interface {
	// Send delivers d in one attempt. Every error is an *Error. The receipt of a firing event is opaque text of at most
	// 2 KiB, for the delivery of the event that resolves it. Other events have no receipt.
	Send(ctx context.Context, d Delivery) (receipt string, err error)

	// Updatable reports whether the message of a receipt can be updated. Update renders the message again, now as resolved by d. It may be
	// repeated. Every error is an *Error, which is Rejected if the message can never be updated.
	Updatable(receipt string) bool
	Update(ctx context.Context, d Delivery, receipt string) error

	// Destination names where d goes: a channel, "webhook" or "console". Deliveries to one destination share its rate limit.
	// An event that resolves another event goes to the destination of that event. Digests go where new events go.
	Destination(d Delivery) string

	// Destinations lists the channels in the settings.
	Destinations() []string
}

// Digests delivers digests. All methods may be called at once.
type Digests interface {
	// SendSummary delivers a digest in one attempt. Every error is an *Error.
	SendSummary(ctx context.Context, d summary.Digest) error

	// FindSummary is Finder.Find for the digest of a claim that was made at a time.
	FindSummary(ctx context.Context, channel, claim string, claimed time.Time) (Finding, error)
}

// Mentioner returns the people whom messages of e's category mention, in Slack's markup; "" for nobody.
type Mentioner func(e event.Event) string

// Outlet is where a deployment delivers, by what its users need. Mention is nil if no message can mention people, and CheckToken if there is no
// token to check without a post. CheckToken asks the service whether it accepts the token. After an error that is no refusal, nobody knows.
type Outlet struct {
	Sink    Sink
	Finder  Finder
	Digests Digests
	Mention Mentioner

	CheckToken func(context.Context) (refused bool, err error)
}

// Checked is one result of checking a sink.
type Checked struct {
	Subject string // what was checked, such as "Slack channel C0123456789"
	Note    string // what the check found, if Err is nil
	Err     error  // what is wrong and what to do about it, without secrets
	Warning bool   // delivery may still work
}

// Doubt is a delivery that earlier attempts may have made. The times are by the clock of this process.
type Doubt struct {
	Delivery Delivery
	First    time.Time // no attempt began before
	Last     time.Time // the last attempt had ended by then
}

// Presence is the answer whether a post is in its channel. The set is closed.
type Presence int

// The values of Presence.
const (
	Unsearchable Presence = iota // unknown: the sink cannot look there, or may not
	Present                      // the post is there
	Absent                       // the post is certainly not there, and no attempt can still bring it
)

// Finding is the result of a look-up.
type Finding struct {
	Presence Presence
	Receipt  string // Present: what Send would have returned
	Reason   string // Unsearchable: why
}

// Finder looks up posts whose result is unknown. All methods may be called at once.
type Finder interface {
	// Find looks for the post of a doubtful delivery by its name. It waits until the post would be visible, and then for its share of the
	// requests that the service allows. Callers in doubt about one channel share the requests.
	//
	// Every error is an *Error. After an error nothing is known: the caller must not post, and looks again after RetryAfter or a back-off.
	Find(ctx context.Context, d Doubt) (Finding, error)
}
