// Package limits says which limits apply to a category: as text, as a plan, and as a tree.
//
// It owns four things. The grammar: [Limit], [Limits], [Rule], [Override] and [Guarantee], their parsers, the names of the algorithms, and
// each algorithm's bounds. The [Plan]: all limits of a deployment. The [Tree], built from a plan: it lists the limits on a category's path,
// from the root down, with the limits of each key behind their path. The [Ruleset]: the limits in force at one moment, with their
// [Position] among earlier and later rulesets. [Live] makes rulesets of a plan and of the overrides that operators set while workers run.
//
// The package counts nothing, and it knows neither Redis nor Lua. Package internal/throttle applies the limits to events.
//
// Except for [Live], every function is pure and every value is immutable. Any number of goroutines may use a [Tree] or a [Ruleset] at once.
// A [Live] belongs to one goroutine at a time: it remembers the last good override of each level.
//
// A parser refuses bad text with an error that quotes it; a parser of a list returns every fault at once. [NewTree] and [NewRuleset] refuse
// contradictory rules and impossible guarantees. [Live] ignores a bad override, logs it once, and keeps the level's last good override in
// force. No input makes this package panic.
package limits
