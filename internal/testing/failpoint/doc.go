// Package failpoint names the points between two steps where a crash does most harm, so that tests can kill a worker exactly there.
//
// In a binary that is built with the tag failpoints, the environment variable FAILPOINT names a point, optionally followed by a colon and a
// count n. When the process reaches the point for the nth time, it kills itself, as with kill -9. Without the tag the binary contains none
// of this.
package failpoint

// Point is a moment between two steps.
type Point string

// The points.
const (
	BeforePost   Point = "before-post"   // an event is admitted, not posted
	AfterPost    Point = "after-post"    // posted, not recorded
	AfterRecord  Point = "after-record"  // recorded, its message not settled
	BeforeUpdate Point = "before-update" // an update has begun and what it shows is recorded, Slack does not have it
	AfterShow    Point = "after-show"    // Slack has an update, which is not recorded
	AfterUpdate  Point = "after-update"  // one of several messages is updated, and that is recorded
	AfterFold    Point = "after-fold"    // an event is counted in a message of its key, and no update is planned that shows it
	AfterKeep    Point = "after-keep"    // the updates of folded events, or those that a posted event came back for, are in the room, their messages not settled
	AfterPlan    Point = "after-plan"    // a denied event is to come back, which is not stored
	AfterMove    Point = "after-move"    // events are stored in the room, their messages not settled
	AfterSplit   Point = "after-split"   // the events of a body are stored, its message not settled
	AfterRelease Point = "after-release" // the leases of events are released, which are not in the room yet
	AfterLetter  Point = "after-letter"  // a dead letter is stored, the slots of its event are not returned
	AfterReturn  Point = "after-return"  // the slots of an undelivered event are returned, its message not settled
	AfterClaim   Point = "after-claim"   // a digest is claimed, not posted
	AfterSummary Point = "after-summary" // posted, not recorded
	AfterReplay  Point = "after-replay"  // a dead letter's event is in the room, the letter not removed
)
