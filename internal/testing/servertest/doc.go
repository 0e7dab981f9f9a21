// Package servertest starts the real servers that tests and benchmarks need: Redis, NATS with
// JetStream, and a proxy that breaks the connection to either of them.
//
// It owns each process, port, folder and goroutine that it starts, and gives all of them back in the
// cleanup of the test that asked for them. It ends no process but its own, and each by its number. Everything
// listens on 127.0.0.1, on ports that no other user of this package holds, in this process or another one, until the
// test ends; so a killed server comes back on the address that it had.
//
// Servers are independent, and any number of tests may start them in parallel. The methods of one server are for one goroutine at a time.
// Any number of goroutines may use a [Proxy]. A method that fails ends the test, so call it on the test's own goroutine.
//
// No test is skipped: if the server program is missing, the test fails and names the command that installs it.
//
// A test binary that imports this package serves NATS, and runs no test, when the variable SERVERTEST_NATS is set in its
// environment. That is how [StartNATSProcess] gets a NATS server that can be killed.
package servertest
