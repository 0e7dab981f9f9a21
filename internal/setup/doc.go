// Package setup turns settings into what other packages work with: connections to NATS and Redis, the sink, and the names of streams.
//
// The worker, ingest, the commands and the demonstration all open their connections here, so all of them interpret the settings alike and
// explain a failure in identical words. The package starts nothing: the caller closes what it opened. All functions may run at once. No
// error contains a secret.
package setup
