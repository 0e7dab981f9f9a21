// Package limits says which limits apply to a category: as text, as a plan, and as a tree.
//
// It owns four things. The grammar: [Limit], [Limits], [Rule], [Override] and [Guarantee], their parsers, the names of the
// algorithms, and the bounds of what each algorithm may be given. The [Plan]: all limits of a deployment. The [Tree], built
// from a plan: it lists the limits on a category's path, from the root down. And the [Ruleset]: the limits in force at one moment,
// with its [Position] among earlier and later ones. [Live] makes rulesets of a plan and of the overrides that operators set while
// workers run.
//
// The package counts nothing, and it knows neither Redis nor Lua. What a limit does to an event is decided in
// internal/throttle.
//
// Everything but [Live] is a pure function of its arguments, or a value that nobody changes once it is made. Any number of
// goroutines may use a [Tree] or a [Ruleset] at once. A [Live] belongs to one goroutine at a time: it remembers the last good
// override of each level.
//
// A parser refuses bad text with an error that quotes it; a parser of a list returns every fault at once. [NewTree] and
// [NewRuleset] refuse rules that contradict each other and guarantees that cannot be kept. [Live] ignores a bad override, logs
// it once, and keeps the last good one of that level in force. No input makes this package panic.
package limits
