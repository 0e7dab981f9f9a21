package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Ingest counts what the server for events over HTTP does. Names of clients come from the operator's file of tokens, so their number is
// bounded by that file, and by the bound of a scrape over the life of a process.
type Ingest struct {
	requests        closedCounter
	clients         growingSet
	events          *prometheus.CounterVec            // by client and result
	failures        map[string]*prometheus.CounterVec // by client, for each kind of failed requests
	bytes, evicted  prometheus.Counter
	publishDuration prometheus.Histogram
	connections     prometheus.Gauge
}

// NewIngest registers the metrics of the server for events. The server answers with these statuses only.
func NewIngest(registry *prometheus.Registry, statuses []int) *Ingest {
	r := registrar{promauto.With(registry)}
	m := new(Ingest)
	var codes closedSet
	for _, status := range statuses {
		codes = append(codes, strconv.Itoa(status))
	}
	m.requests = newClosedCounter(r.counters("notifier_ingest_requests_total",
		"Requests for events over HTTP, by the status of the answer.", "code"), codes)
	m.events = r.counters("notifier_ingest_events_total",
		"Events over HTTP that JetStream has acknowledged: stored, or duplicate if it had their ID.", "client", "result")
	m.failures = map[string]*prometheus.CounterVec{
		"limited": r.counters("notifier_ingest_limited_total",
			"Requests for events above the rate of their client, or without memory for their bodies.", "client"),
		"unstored": r.counters("notifier_ingest_unstored_total",
			"Requests whose events NATS did not store, or not all of them.", "client"),
		"refused": r.counters("notifier_ingest_refused_total",
			"Requests of a client that were refused and are not sent again, such as a body that no worker could deliver.", "client"),
	}
	m.bytes = r.counter("notifier_ingest_bytes_total",
		"Bytes of the bodies whose events are stored.")
	m.evicted = r.counter("notifier_ingest_evicted_connections_total",
		"Connections that were closed while they waited for their client, to make room for newer ones.")
	m.connections = r.gauge("notifier_ingest_connections",
		"Open connections for events over HTTP.")
	// From the latency of a local NATS to more than the timeout of a publish.
	m.publishDuration = r.histogram("notifier_ingest_publish_duration_seconds",
		"Duration from publishing the events of a request to their last acknowledgement; of a group of alerts, of its slowest alert.",
		.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
	return m
}

// Request counts a request that was answered.
func (m *Ingest) Request(status int) { m.requests.add(strconv.Itoa(status), 1) }

// Client has the series of a client at zero, so that its first refused request is seen as an increase.
func (m *Ingest) Client(name string) {
	m.clients.add([]string{name})
	for what := range m.failures {
		m.of(name, what)
	}
	m.of(name, "stored")
	m.of(name, "duplicate")
}

// Count counts an event or a request of a client that is known by Client: stored, duplicate, limited, unstored or refused.
func (m *Ingest) Count(client, what string) { m.of(client, what).Inc() }

func (m *Ingest) of(client, what string) prometheus.Counter {
	client = m.clients.label(client)
	if failures := m.failures[what]; failures != nil {
		return failures.WithLabelValues(client)
	}
	return m.events.WithLabelValues(client, what)
}

// Bytes counts n bytes of a body that was stored.
func (m *Ingest) Bytes(n int) { addTo(m.bytes, n) }

// Published records how long the publishes of a request took.
func (m *Ingest) Published(took time.Duration) { m.publishDuration.Observe(took.Seconds()) }

// Connections changes the number of open connections by delta.
func (m *Ingest) Connections(delta int) { m.connections.Add(float64(delta)) }

// Evicted counts a connection that was closed to make room.
func (m *Ingest) Evicted() { m.evicted.Inc() }
