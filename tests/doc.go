// Package tests looks at the built program from the outside.
//
// Its tests start the program as processes, with a real Redis, a real NATS with JetStream and a Slack-shaped server, and
// count what those saw: posts, members of the logs, messages left in the streams, metrics as a scraper reads them. They use no
// package of the program but the helpers that start servers.
//
// Each test has servers, ports and folders of its own and runs beside the others. What it started ends with it, killed by
// its number if need be; a test that fails prints what its processes logged. Waits are bounded generously and
// are no expectation of how long anything takes.
package tests
