package consume

import "context"

// life has the contexts of a worker's stages. A shutdown never cuts off what has to reach Redis or NATS, such as the end of a lease.
type life struct {
	waiting context.Context // ends with the worker: requests, decisions, and waiting for a turn, a pause or a retry
	working context.Context // ends when the shutdown timeout is over: posts, leases, searches and dead letters that have begun
}

// ending returns a context for the end of an event, which nothing cuts off.
func (l life) ending() context.Context { return context.WithoutCancel(l.working) }
