// Package summary tells of what was dropped: one digest for each channel and interval, over all instances.
//
// A [Counter] counts an instance's drops in memory, next to a flood. The [Reporter] adds its counts each second to those in
// the [Store], which all instances share ([Redis]), and sees whether some channel is to be told: when its drops are over, or an
// interval after the first of them. One instance claims the digest and posts it.
//
//	worker ── Counter.Add ──► Reporter ── CountDrops ──► Store ◄── DueDigests, ClaimDigest ── Reporter ── Send ──► channel
//	                                                        ◄── EndDigest ──────────────────┘
//
// Every drop is in the total of its channel. Paths are counted by name as far as there is room: 20 for each first-level
// category, the largest of them, so that no category takes another one's room.
//
// A digest waits for events: it is claimed when no event waits for the channel and the channel takes a message at once. Until
// then it goes on collecting counts, and nothing has failed.
//
// No count is lost while the Store is unavailable: counts are kept and added later. An instance that is killed loses what it
// has counted in its last second. The Store knows that the instance was dropping and never said that it had told all, and the
// digests to come say "at least".
//
// A digest is not posted twice. The claim records that it is being posted. If the instance is killed then, or the answer to
// its post is lost, nobody knows whether the channel has the digest: its counts go into the next one, which says so.
package summary
