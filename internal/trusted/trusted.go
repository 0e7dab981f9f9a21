// Package trusted marks the messages that workers and operators write: events that wait in the room, dead letters, entries of the journal,
// and live limits.
//
// Every user with permission to publish to one of these subjects is trusted, but a permission alone does not keep producers out. NATS
// checks no permission for a reply subject, so a producer in that account can have the server publish its acknowledgement there. Such an
// acknowledgement has no headers. Readers therefore ignore a message without the mark, remove it where they may, and count it. A separate
// account for producers keeps such messages out altogether (configs/nats).
package trusted

import "github.com/nats-io/nats.go"

// Header is the mark. Its value has no meaning, and the header has none in a message of the producers' stream, because producers write its
// headers.
const Header = "Notifier-Written-By"

// Mark marks a message of a worker or an operator. A message that is about to be stored must have it.
func Mark(h nats.Header) { h.Set(Header, "notifier") }

// IsMarked reports whether a worker or an operator wrote a message. JetStream keeps the mark when it stores a scheduled message.
func IsMarked(h nats.Header) bool { return h.Get(Header) != "" }

// The places of messages without the mark, as the label of a metric.
const (
	Room        = "room"
	DeadLetters = "dead_letters"
	Journal     = "journal"
	Limits      = "limits"
)
