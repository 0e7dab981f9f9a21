// Package simulation runs workers for two simulated minutes in a bubble of testing/synctest, where time passes as fast as the code runs.
//
// Its tests run the worker's real parts: the way of an event, the limiter, the pacer and the digests. They talk to a NATS server inside of
// the process, over pipes, and to a real Redis server whose scripts read the simulated clock. A seed gives the events, and the times and
// kinds of all faults: Redis answers late, twice or never, connections to NATS are cut or stall, answers of Slack are lost, workers are
// cut off from everything, the limits change, and reading them fails. The seed also draws what workers do while Redis is unavailable.
//
// A seed does not give the order of goroutines that run at the same simulated time.
package simulation
