// Package status says what a deployment does at one moment.
//
// A worker counts for itself with [Counts], and answers with a [Report] of itself. [Collect] asks all workers of a deployment through
// their micro service, and NATS and Redis themselves, and merges the answers into one [Status]. Nothing is taken or changed.
package status
