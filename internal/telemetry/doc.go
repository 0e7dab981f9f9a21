// Package telemetry is how the notifier is watched from outside: its logger, its metrics and
// the HTTP server that shows them.
//
// It owns the names, labels and label values of every metric. No other package imports it but
// the command, which hands each package the few functions it needs, so none of them depends on
// Prometheus.
//
// Everything in Metrics may be called from any number of goroutines at once. Counting never
// fails and never blocks for longer than a map lookup: a value outside a closed label set is
// counted as "other", and so is a category beyond the bound, so no caller and no producer of
// events can make the number of series grow without limit.
//
// An Admin is used in one order: Listen, then Serve in a goroutine of its own, then Shutdown,
// which may also come before Serve or instead of it. A metric that cannot be gathered is left
// out of the answer and logged; it does not disturb the worker.
package telemetry
