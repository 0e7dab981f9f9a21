package sink

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Delivery is an event and what its message shows beside it.
type Delivery struct {
	Event   event.Event
	Name    string         // of the post, made by NameOf: the same in every attempt; empty if the post cannot be looked up
	Opened  string         // receipt of the message that a resolved event resolves; empty if there is none
	Others  []string       // receipts of further messages that the event resolves; Send leaves them alone, Sink.Update changes them
	Usage   []limits.Usage // use of the limits on the event's path, root first; may be empty
	Mention string         // whom the message mentions, in Slack's markup such as <!here>; empty for nobody

	Prepared  any  // made by Sink.Prepare, for that sink; nil if nothing was prepared
	annotated bool // Usage and Mention are complete
}

// NameOf returns the name of a post: a hash of the deployment, of the identity of what is posted and of the stored message that it comes
// from. Every attempt at the post carries the name, so a look-up finds the post whatever its text is. Names do not reveal what they are
// made of.
func NameOf(deployment, identity, message string) string {
	hash := sha256.Sum256([]byte(strings.Join([]string{deployment, identity, message}, "\x00")))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:20]))
}
