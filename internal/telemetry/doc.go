// Package telemetry shows the notifier from outside: its logger, its metrics, the HTTP server for metrics and probes, and the sending of
// traces.
//
// The package owns the names, labels and label values of every metric. The command alone imports it. It passes counting functions to each
// package, so no other package depends on Prometheus.
//
// Any number of goroutines may use a [Metrics] at once. Counting never fails, and blocks no longer than a map lookup. No caller and
// no producer of events can make the number of series grow without limit: a value outside a closed label set counts as "other",
// and so does a category beyond the bound.
//
// A metric that cannot be gathered is left out of the answer and logged.
//
// [Traces] sends spans to an OpenTelemetry collector, from a queue of its own. A collector that is slow or unavailable costs spans, which
// are counted, and nothing else.
package telemetry
