// Package pacing decides when Slack gets the next request, and which event of a category may mention people.
//
// All instances of a deployment share four budgets in Redis: posts of each channel ([Pace]), posts of the workspace, updates of messages and
// look-ups of posts (each a [Window]). A [Pacer] asks for a post of a channel and of the workspace together, and gets both or neither
// ([Pacer.Reserve]). An update needs its own budget only ([Pacer.ReserveUpdate]), and so does a look-up ([Pacer.AwaitLookUp]). A refused post
// pauses its channel, a refused update pauses updates, a refused look-up pauses look-ups, and two channels refused within a second pause the
// workspace.
//
// # Turns
//
// A post is reserved at most 50 ms before its channel takes it, and at most a second before the workspace takes it. A pause or the end of
// an instance therefore wastes little. A caller that is too early gets the time of its next attempt, and counts as waiting until a second
// after that time. Among the askers of one channel, the most urgent and oldest message goes first, whichever instance holds it. Channels
// that wait for the workspace are in a line. A channel has one place in the line, whatever number of messages and instances wait for it,
// and goes to the end of the line with each post. Between two posts of a waiting channel, no other channel therefore gets more than two.
//
// An example: the workspace takes one post each 10 s, and took one at 0 s. #flood has 10,000 events on two instances, #quiet has one.
//
//	 1 s  instance 1 asks for #flood: the post is expected at 10 s. It is the first of the line, and asks again at 5 s: after half of the
//	      time until a second before the post.
//	 2 s  instance 2 asks for #flood with a newer event. It is behind instance 1, in the same place of the line, and expects 20 s.
//	 3 s  instance 1 asks for #quiet: it is the second channel of the line, and expects 20 s.
//	 9 s  instance 1 asks for #flood again, and has reserved the post at 10 s. #flood leaves the line.
//	10 s  instance 1 posts and asks for #flood again: behind #quiet, it expects 30 s.
//	19 s  instance 1 asks for #quiet again, and has reserved the post at 20 s.
//
// If #quiet's instance had ended at 5 s, #quiet would not count any more from 12 s on, and #flood would have the post at 20 s.
//
// # Failures
//
// While Redis is unavailable, an instance paces alone, by the same rules. It continues after its own last reservations, and observes the
// pauses that it knows of. All instances together may then exceed the budgets. In that case Slack pauses them. During the outage, one event
// of a category may mention people on each instance.
//
// An instance learns of the pauses of other instances with each decision of the limits ([Pacer.Learn]) and from [Pacer.CheckPause]. No call
// returns an error of Redis: without Redis the Pacer decides locally.
//
// [Channels] shares the IDs of channels between instances. A look-up needs the ID of a channel, and perhaps only the answer to another
// instance's post has shown it.
//
// [Readings] shares what instances read of channels, so that a look-up rarely costs a request for each instance. One instance at a time has the
// claim on a channel or a thread, renews the claim while it reads, and stores what it has read for a minute. Other instances wait for that
// reading. Each asks first, and the reading answers the questions that Redis received before the reading began. If the claim expires or Redis
// fails, an instance reads for itself: nothing is concluded from a reading that was not stored.
//
// Any number of goroutines may use a Pacer at once. [Pacer.Run] counts the use of the budgets, and owns the timers of the log.
package pacing
