// Package powerloss measures what a power failure costs a deployment. Its test runs nats-server and redis-server on disks of package powerfs,
// which lose what was not synced, and cuts their power under load: producers that wait for acknowledgements, an operator who sets live
// limits, two workers of the built program, and a Slack that counts. It prints the table of docs/delivery.md.
//
// Each row of the table is one deployment. Its power fails as often as -powerloss.times says. Before each failure everything older is on the
// disk, so each failure costs what one failure costs.
//
// The test has the build tag powerloss: `make powerloss`, `make powerloss TIMES=3`, `make powerloss ROWS=/3_of_NATS`.
package powerloss
