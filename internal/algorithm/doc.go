// Package algorithm describes how limits count.
//
// It owns the table of the algorithms: a row has everything that is particular to one algorithm, and no other code of the product compares
// names of algorithms. It also owns their in-memory states, which decide exactly like the scripts in lua/algorithms. Redis holds such states
// for all instances; internal/throttle/store uses both.
//
// A [State] is not safe for concurrent use: its caller holds a lock. All times are microseconds of the caller's clock. Its functions never
// fail, block or start goroutines.
package algorithm
