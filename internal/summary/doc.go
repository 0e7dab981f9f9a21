// Package summary reports drops to channels: one digest per channel and interval, over all instances.
//
// A [Counter] counts an instance's drops in memory, next to a flood. Each second, the [Reporter] adds its counts to the [Store], which all
// instances share ([Redis]), and looks for due digests. A digest is due when the drops of its channel are over, and at the latest an interval
// after the first drop. One instance claims the digest and posts it.
//
//	worker ── Counter.Add ──► Reporter ── CountDrops ──► Store ◄── DueDigests, ClaimDigest ── Reporter ── Send ──► channel
//	                                                        ◄── EndDigest ──────────────────┘
//
// Every drop is in the total of its channel. Up to 20 paths of each first-level category, the largest, are counted by name, so no producer
// can displace the paths of another first level.
//
// A digest waits for events: it is claimed when no event waits for the channel and the channel takes a message at once. Until then it
// collects further counts. This is not a failure.
//
// No count is lost while the Store is unavailable: the Reporter adds the counts later. A killed instance loses the counts of its last second.
// Since the Store has no final report of that instance, the next digests say "at least".
//
// A digest is not posted twice. The claim records that an instance is posting it. If that instance is killed or the answer to its post is
// lost, nobody knows whether the channel has the digest. Then its counts carry over to the next digest, which says so. The digest of a mute
// is posted again instead: no later digest has its counts.
package summary
