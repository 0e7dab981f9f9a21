// Package devstack runs what the notifier needs inside its own process, so that it can be tried with nothing installed:
// a NATS server with JetStream and a stand-in for Redis. Both listen on loopback, keep their state in a temporary folder
// or in memory, and are gone with the process.
//
// It is for trying out, not for production: the build tag nodev leaves it out.
package devstack
