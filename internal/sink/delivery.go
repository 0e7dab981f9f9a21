package sink

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Delivery is an event and what its message shows beside it.
type Delivery struct {
	Event   event.Event
	Stored  time.Time    // when JetStream stored the event: the time of an event that has none; zero if unknown
	Name    string       // of the post, made by NameOf: the same in every attempt; empty if the post cannot be looked up
	Opened  string       // receipt of the message that a resolved event resolves; empty if there is none
	Usage   []limits.Use // use of the limits on the event's path, root first; may be empty
	Seen    Seen         // what is folded into the message that Sink.Update changes
	Mention string       // whom the message mentions, in Slack's markup such as <!here>; empty for nobody
}

// Seen is what a message shows of the events that are folded into it, and of its key. The zero value is nothing.
type Seen struct {
	Times int64 // with the message's own event
	Last  time.Time
	Worst event.Severity

	Flapping bool // the key changes again and again
	Fires    bool // if so: its newest status is firing
}

// For returns a delivery with a category alone, to find the destination of the category.
func For(category string) Delivery { return Delivery{Event: event.Event{Category: category}} }

// NameOf returns the name of a post: a hash of the deployment, of the identity of what is posted and of the stored message that it comes
// from. Every attempt at the post carries the name, so a look-up finds the post whatever its text is. Names do not reveal what they are
// made of.
func NameOf(deployment, identity, message string) string {
	hash := sha256.Sum256([]byte(strings.Join([]string{deployment, identity, message}, "\x00")))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:20]))
}

// DigestName returns the name of the post of a digest. No two claims have the same number.
func DigestName(channel, claim string) string { return NameOf("digest", channel, claim) }
