package sink

import (
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Delivery is an event and what its message shows beside it.
type Delivery struct {
	Event   event.Event
	Opened  string       // receipt of the message that a resolved event resolves; empty if there is none
	Others  []string     // receipts of further messages that the event resolves; Send leaves them alone, Sink.Update changes them
	Usage   []limits.Use // use of the limits on the event's path, root first; may be empty
	Mention string       // whom the message mentions, in Slack's markup such as <!here>; empty for nobody

	Prepared  any  // made by Sink.Prepare, for that sink; nil if nothing was prepared
	annotated bool // Usage and Mention are complete
}
