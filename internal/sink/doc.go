// Package sink defines what a sink is: it delivers events and digests, and reports how a delivery failed.
//
// The implementations are in the packages below. Package client makes the HTTP requests of any sink, render makes Slack's messages, slack posts
// them, and console prints lines.
//
// A sink makes one attempt. It does not retry, wait or pace. A failure is an *Error whose Class determines what the caller does:
//
//	class          the message                       the caller
//	ok             was delivered                     is done
//	rate_limited   was not taken                     waits RetryAfter for that channel
//	transient      was not taken                     tries again soon
//	unknown        may have been taken               looks for it, then tries again
//	rejected       can never be taken                gives the message up
//	misconfigured  is fine; the setup is not         stops, alarms, tries again slowly
//
// A reply whose thread is out of reach is rejected too, and its failure is Lost: the caller sends the event as a message of its own.
//
// A post carries the name of its [Delivery], which every attempt has. A [Finder] finds the post of an attempt whose result nobody knows.
//
// A firing event leaves a [Receipt]: where its message is, and enough of the event to render it again.
//
// [Annotated] wraps a sink. It adds the use of the event's limits and the people whom the message mentions.
//
// Everything exported is safe for concurrent use. No error holds a token, a secret URL or its path.
package sink
