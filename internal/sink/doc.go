// Package sink delivers events: to Slack through a bot token or an incoming webhook, or to a terminal.
//
// It owns the rendering of an event, the request that sends it, and the classification of the answer. It does not retry, wait or pace.
// A failure is an *Error whose Class tells the caller what to do:
//
//	class          the message                       the caller
//	ok             Slack has it                      is done
//	rate_limited   was not taken                     waits RetryAfter for that channel
//	transient      was not taken                     tries again soon
//	unknown        may have been taken               tries again, knowing that it may be the second post
//	rejected       can never be taken                gives the message up
//	misconfigured  is fine; the setup is not         stops, alarms, tries again slowly
//
// The client of slack-go makes the requests to Slack. Its transport, exchange, adds the message to the request, and keeps the answer
// for the package's own classification.
//
// A request counts as certainly not sent as long as none of its body was handed to a connection. From then on its fate is unknown
// until an answer comes.
//
// Prepare makes and encodes the message of an event ahead of its post. Send makes a message that was not prepared.
//
// A firing event leaves a receipt: where its message stands, and enough of the event to render it again. With a bot token the
// event that resolves it takes two requests. The first one updates the message. It can be repeated, so a fault that will pass
// fails the attempt as a whole, and an update that Slack refuses for good is left out. The second one replies in the message's
// thread, and is the delivery. With a webhook the event is a message of its own. So it is where message, thread or channel are
// gone, and where the receipt cannot be read.
//
// [Annotated] is a sink around another one. It adds how full the limits of the event are, and whom its message mentions.
//
// Only the operator's settings mention anybody. The handle of a user group is looked up when it is first needed. A message
// leaves out a handle that cannot be found.
//
// Everything exported is safe for concurrent use. No error holds the token, the webhook URL or its path: texts are redacted
// before they are wrapped.
package sink
