// Package sink delivers events: to Slack through a bot token or an incoming webhook, or to a
// terminal.
//
// It owns the rendering of an event, the request that sends it, and the judgement of what came
// of it. It does not retry, wait or pace: a failure is an *Error whose Class tells the caller
// what to do, and whose Channel and RetryAfter tell where and how long.
//
//	class          the message                       the caller
//	ok             Slack has it                      is done
//	rate_limited   was not taken                     waits RetryAfter for that channel
//	transient      was not taken                     tries again soon
//	unknown        may have been taken               tries again, knowing that it may be the second post
//	rejected       can never be taken                gives the message up
//	misconfigured  is fine; the setup is not         stops, alarms, tries again slowly
//
// The message of an event can be made ahead of its post, with Prepare; Send makes what was not.
//
// A request counts as certainly not sent as long as none of its body was handed to a
// connection; from then on, without an answer, its fate is unknown.
//
// A firing event leaves a receipt: where its message stands, and enough of the event to render it
// again. With a bot token the event that resolves it takes two requests. First the message is
// updated; that can be repeated, so a fault that will pass fails the attempt as a whole, and an
// update that Slack refuses for good is left out. Then comes a reply in the message's thread,
// which is the delivery. Where message, thread or channel are gone, where the
// receipt cannot be read, and with a webhook, the event is a message of its own.
//
// [Annotated] is a sink around another one. It adds what a message tells beside its event: how full
// the limits of the event are, and whom it mentions.
//
// Mentions are the operator's alone. Handles of user groups are looked up when they are first
// needed; one that cannot be found is left out of the message.
//
// Everything exported is safe for concurrent use. No error holds the token, the webhook URL or
// its path: texts are redacted before they are wrapped.
package sink
