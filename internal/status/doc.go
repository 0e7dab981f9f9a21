// Package status reports the present state of a deployment.
//
// Each worker counts with [Counts] and answers with a [Report]. [Collect] asks all workers of a deployment through their micro service, and
// NATS and Redis directly, and merges the answers into one [Status]. It only reads.
package status
