// Package summary tells of what was dropped: one summary for each category and interval, over all instances.
//
// A [Counter] counts an instance's drops in memory, next to a flood. The [Keeper] adds its counts each second to those in
// the [Store], which all instances share, and sees whether the summary of some category is due there: when its drops are
// over, or an interval after the first of them. One instance claims it and posts it; if that instance is killed,
// another one does.
//
//	worker ── Counter.Add ──► Keeper ── CountDrops ──► Store ◄── ClaimSummaries ── Keeper ── Send ──► channel
//	                                                        ◄── EndSummary ──────────┘
//
// No count is lost while the Store is away: it is kept and added later. An instance that is killed loses what it
// has counted in its last second. The Store knows that it was dropping and never said that it had told all, and
// the summaries to come say "at least". A post whose end is not recorded, since the instance was killed just then, is
// made again.
package summary
