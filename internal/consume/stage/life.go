package stage

import "context"

// Life has the contexts of a worker's stages. A shutdown never cuts off what has to reach Redis or NATS, such as the end of a lease.
type Life struct {
	Waiting context.Context // ends with the worker: requests, decisions, and waiting for a turn, a pause or a retry
	Working context.Context // ends when the shutdown timeout is over: posts, leases, searches and dead letters that have begun
}

// Ending returns a context for the end of an event, which nothing cuts off.
func (l Life) Ending() context.Context { return context.WithoutCancel(l.Working) }
