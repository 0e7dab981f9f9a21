// Package testkit has what tests of several packages share: a clock, a log that can be searched, and one way to wait.
//
// It imports no package of this module, so that every package can use it in its tests. Any number of goroutines may use a [Clock] or a
// [Log]. [Await] and the checks end or fail the test, so they belong on the test's own goroutine.
package testkit
