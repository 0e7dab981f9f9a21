package sink

import (
	"context"
	"time"
)

// Doubt is a delivery that earlier attempts may have made. The times are by the clock of this process.
type Doubt struct {
	Delivery Delivery
	First    time.Time // no attempt began before
	Last     time.Time // the last attempt had ended by then
}

// Presence says whether a post is in its channel. The set is closed.
type Presence int

// The values of Presence.
const (
	Unsearchable Presence = iota // nobody can tell: the sink cannot look there, or may not
	Present                      // the post is there
	Absent                       // the post is certainly not there, and no attempt can still bring it
)

// Finding is the result of a look-up.
type Finding struct {
	Presence Presence
	Receipt  string // Present: what Send would have returned
	Reason   string // Unsearchable: why
}

// Finder looks up posts that nobody knows to have been made. All methods may be called at once.
type Finder interface {
	// Find looks for the post of a doubtful delivery by its name. It waits until the post would be visible, and then for its share of the
	// requests that the service allows. Callers in doubt about one channel share the requests.
	//
	// Every error is an *Error. After an error nothing is known: the caller must not post, and looks again after RetryAfter or a back-off.
	Find(ctx context.Context, d Doubt) (Finding, error)
}
