// Package stage has what the stages of a worker share: what ends with the worker, bounds of concurrent work, queues and back-offs.
//
// It knows nothing of messages. All its types may be used concurrently.
package stage
