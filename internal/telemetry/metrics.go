package telemetry

import (
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// MetricsOptions is what the metrics need to know before they start.
type MetricsOptions struct {
	MaxCategories     int      // values of the category label beside "other"
	Categories        []string // configured categories: they get a label value before all other categories
	Levels            []string // every rule's label: "global", "category", and each pattern as configured
	Policy            string   // the failure policy that is set
	Version, Revision string   // of the build
}

// Metrics counts what the notifier does, in a registry of its own. Every value of a closed label of a counter is there from the
// start, at 0, so that a rate sees the first occurrence. A gauge of external state is exported while the
// worker has a value. A count of n adds nothing if n is below 1.
type Metrics struct {
	Events    *Events
	Decisions *Decisions
	Posts     *Posts
	Waiting   *Waiting
	Losses    *Losses

	registry *prometheus.Registry
	mismatch *prometheus.GaugeVec
}

// NewMetrics registers every metric of the notifier, of the Go runtime and of the process.
func NewMetrics(o MetricsOptions) *Metrics {
	registry := NewRegistry(o.Version, o.Revision)
	r, levels := registrar{promauto.With(registry)}, &growingSet{values: slices.Clone(o.Levels)}
	events := newEvents(r, newCategories(o.MaxCategories, o.Categories), levels)
	return &Metrics{
		Events: events, Decisions: newDecisions(r, events, levels, o.Policy), Posts: newPosts(r), Waiting: newWaiting(r), Losses: newLosses(r),
		registry: registry,
		mismatch: r.gauges("notifier_settings_mismatch",
			"1 while another worker of the deployment has other settings that all workers need alike, else 0."),
	}
}

// Registry returns the registry, for scraping and for metrics of the embedding program.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// SettingsMismatch notes how many workers have other settings than this worker.
func (m *Metrics) SettingsMismatch(workers int) {
	m.mismatch.WithLabelValues().Set(float64(min(workers, 1)))
}

// NewRegistry returns a registry with the metrics of the Go runtime, of the process and of the build.
func NewRegistry(version, revision string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registrar{promauto.With(registry)}.gauges("notifier_build_info",
		"Always 1; the labels name the running build.", "version", "revision", "goversion").
		WithLabelValues(version, revision, runtime.Version()).Set(1)
	return registry
}

// Events counts events.
type Events struct {
	categories           *categories
	events, dropped      perCategory
	delayed              *prometheus.CounterVec // by level
	redeliveries, splits prometheus.Counter
	resolved             closedCounter
	age                  prometheus.Histogram
}

func newEvents(r registrar, categories *categories, levels *growingSet) *Events {
	m := &Events{
		categories: categories,
		events: perCategory{r.counters("notifier_events_total",
			"Outcomes of events. Each event is counted once in the whole deployment, by the worker that settled it. "+
				"The call that newly records a delivery counts sent. When NATS is killed, it may forget the acknowledgements "+
				"of its last sync_interval: events that were not sent are then decided and counted again.",
			"category", "outcome"), categories, outcomes},
		dropped: perCategory{r.counters("notifier_dropped_total",
			"Dropped events, by the rule that denied them. In shadow mode, limits drop no event.", "category", "level"), categories, levels},
		delayed: r.counters("notifier_delayed_total",
			"Events that began to wait for a slot, by the rule of that slot.", "level"),
		redeliveries: r.counter("notifier_redeliveries_total",
			"Messages that JetStream delivered again."),
		splits: r.counter("notifier_split_total",
			"Messages with several alerts that were split into one event for each alert."),
		resolved: newClosedCounter(r.counters("notifier_resolved_total",
			"Resolved events: paired if their firing event was sent, else unpaired.", "result"), pairings),
		// From an event passed on at once to one that waited for the default greatest age.
		age: r.histogram("notifier_event_age_seconds",
			"Age of an event when it was sent, since JetStream stored it.",
			.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3600),
	}
	categories.begin = func(category string) {
		for _, outcome := range outcomes {
			m.events.vec.WithLabelValues(category, outcome)
		}
	}
	categories.begin(other)
	m.from(categories.all(), levels.all())
	return m
}

// from has the events of categories, and the events that the rules of levels deny, counted from 0.
func (m *Events) from(categories, levels []string) {
	for _, category := range categories {
		m.categories.begin(category)
	}
	for _, level := range levels {
		m.dropped.add("", level, 0)
		m.delayed.WithLabelValues(level)
	}
}

// Event counts n events of a category that reached an outcome.
func (m *Events) Event(category, outcome string, n int) { m.events.add(category, outcome, n) }

// Dropped counts n events of a category that the rule of a level denied. The trace belongs to one of them; "" for none.
func (m *Events) Dropped(category, level string, n int, trace string) {
	m.dropped.addExample(category, level, n, trace)
}

// Delayed counts one event that the rule of a level denied and that was stored to wait for a slot.
func (m *Events) Delayed(_, level string) {
	m.delayed.WithLabelValues(m.dropped.values.label(level)).Inc()
}

// EventAge records how long ago an event was stored that is sent now. The clocks of two machines may differ, so an age below 0
// counts as 0. The trace belongs to the event; "" for none.
func (m *Events) EventAge(d time.Duration, trace string) {
	age := max(d, 0).Seconds()
	if example, observes := m.age.(prometheus.ExemplarObserver); observes && trace != "" {
		example.ObserveWithExemplar(age, exemplar(trace))
		return
	}
	m.age.Observe(age)
}

// Redelivered counts n messages that JetStream delivered again.
func (m *Events) Redelivered(n int) { addTo(m.redeliveries, n) }

// Split counts one message that was split into an event for each of its alerts.
func (m *Events) Split() { m.splits.Inc() }

// Resolved counts one resolved event. The result is "paired" if the firing event was sent, otherwise "unpaired".
func (m *Events) Resolved(result string) { m.resolved.add(result, 1) }

// Decisions counts decisions, and has the state of limits and of the failure policy.
type Decisions struct {
	events         *Events // with the series of the rules in force
	levels, shadow *growingSet

	decisions            map[string]closedCounter // by verdict
	shadowed             *prometheus.CounterVec
	refunds              prometheus.Counter
	limitUsed, limitSize *prometheus.GaugeVec
	degraded             *prometheus.GaugeVec // by a policy that never changes
	duration             prometheus.Histogram
}

func newDecisions(r registrar, events *Events, levels *growingSet, policy string) *Decisions {
	return &Decisions{
		events: events, levels: levels, shadow: &growingSet{},
		decisions: decisionCounters(r.counters("notifier_decisions_total",
			"Decisions about events, by verdict and by what decided.", "verdict", "source")),
		shadowed: r.counters("notifier_shadow_decisions_total",
			"Decisions of the shadow limits, by the rule that would have denied the event, or none if it would be admitted.",
			"level", "verdict"),
		refunds: r.counter("notifier_refunds_total",
			"Admitted events whose slots were returned because the events could not be delivered."),
		limitUsed: r.gauges("notifier_limit_used",
			"Slots of a limit that are taken; of a rule for many paths, those of its fullest path.", "level"),
		limitSize: r.gauges("notifier_limit_size",
			"Slots that a limit has.", "level"),
		degraded: r.gauges("notifier_degraded",
			"1 while Redis is unavailable and the failure policy acts, else 0.", "policy").MustCurryWith(prometheus.Labels{"policy": policy}),
		// From the latency of a local Redis to more than the default timeout of a call.
		duration: r.histogram("notifier_decision_duration_seconds",
			"Duration of one call for decisions.",
			.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5),
	}
}

// Decision counts n events that source evaluated alike.
func (m *Decisions) Decision(verdict, source string, n int) {
	m.decisions[verdicts.label(verdict)].add(source, n)
}

// DecisionDuration records the duration of one call for decisions.
func (m *Decisions) DecisionDuration(d time.Duration) { m.duration.Observe(d.Seconds()) }

// Refunded counts n events whose slots were returned.
func (m *Decisions) Refunded(n int) { addTo(m.refunds, n) }

// PolicyActs records that the failure policy is in effect.
func (m *Decisions) PolicyActs() { m.degraded.WithLabelValues().Set(1) }

// PolicyInactive records that the failure policy is not in effect.
func (m *Decisions) PolicyInactive() { m.degraded.WithLabelValues().Set(0) }

// LimitUsed sets the number of used slots of a level's limit.
func (m *Decisions) LimitUsed(level string, used int64) {
	m.limitUsed.WithLabelValues(m.levels.label(level)).Set(float64(used))
}

// LimitsUnread removes the numbers of used slots until they are set again.
func (m *Decisions) LimitsUnread() { m.limitUsed.Reset() }

// LimitSize sets how many slots a level's limit has.
func (m *Decisions) LimitSize(level string, size int64) {
	m.limitSize.WithLabelValues(m.levels.label(level)).Set(float64(size))
}

// Levels names the rules in force and the rules of the shadow limits. The slot series of all remaining rules end. A rule of a single
// category configures that category.
func (m *Decisions) Levels(inForce, shadow []string) {
	m.events.from(m.events.categories.configure(exactPaths(inForce)), m.levels.add(inForce))
	m.events.from(m.events.categories.configure(exactPaths(shadow)), nil)
	for _, level := range m.levels.all() {
		if !slices.Contains(inForce, level) {
			m.limitUsed.DeleteLabelValues(level)
			m.limitSize.DeleteLabelValues(level)
		}
	}
	if len(shadow) == 0 {
		return
	}
	for _, level := range m.shadow.add(shadow) {
		m.shadowed.WithLabelValues(level, "denied")
	}
	m.shadow.add([]string{none})
	m.shadowed.WithLabelValues(none, "admitted")
}

// none is the level of events that no rule of the shadow limits denied.
const none = "none"

// ShadowDecision counts n events that the shadow limits evaluated alike.
func (m *Decisions) ShadowDecision(level, verdict string, n int) {
	addTo(m.shadowed.WithLabelValues(m.shadow.label(level), verdict), n)
}

// Posts counts posts and updates of sinks, and digests.
type Posts struct {
	requests, summaries closedCounter
	duration            prometheus.Histogram
}

func newPosts(r registrar) *Posts {
	return &Posts{
		requests: newClosedCounter(r.counters("notifier_sink_requests_total",
			"Posts and updates sent to Slack, by result.", "result"), results),
		summaries: newClosedCounter(r.counters("notifier_summaries_total",
			"Digests of dropped events, by result.", "result"), summaryResults),
		// To more than the default timeout of a request.
		duration: r.histogram("notifier_sink_request_duration_seconds",
			"Duration of one post or update sent to Slack.",
			.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
	}
}

// SinkRequest counts one post or update sent to Slack and records the time it took.
func (m *Posts) SinkRequest(result string, took time.Duration) {
	m.requests.add(result, 1)
	m.duration.Observe(took.Seconds())
}

// Summary counts one digest of dropped events: "sent" or "given_up".
func (m *Posts) Summary(result string) { m.summaries.add(result, 1) }

// Waiting counts events that have no outcome yet.
type Waiting struct {
	ackPending, roomPending *prometheus.GaugeVec
	roomRefused             closedCounter
	held, inFlight          prometheus.Gauge
	paceUsed, paceWaiting   *prometheus.GaugeVec
}

func newWaiting(r registrar) *Waiting {
	return &Waiting{
		ackPending: r.gauges("notifier_ack_pending",
			"Messages of the producers' stream that are delivered and not acknowledged, of the whole deployment."),
		roomPending: r.gauges("notifier_room_pending",
			"Events of the whole deployment that wait in the room, by what they wait for.", "reason"),
		roomRefused: newClosedCounter(r.counters("notifier_room_refused_total",
			"Events dropped and updates refused because too many of their first-level category wait in the room, by what they would have waited for.", "reason"), refusals),
		held: r.gauge("notifier_held",
			"Deliveries of this worker that wait for their channel."),
		inFlight: r.gauge("notifier_inflight",
			"Events that this worker has received and that have no outcome yet."),
		paceUsed: r.gauges("notifier_pace_used",
			"Use of a budget of requests to Slack that all workers share: the number of channels that are at their pace for channels, requests of the last window for the other budgets.", "budget"),
		paceWaiting: r.gauges("notifier_pace_waiting",
			"What waits for a budget that all workers share: channels for their own pace (channels) or for the workspace, reserved updates for the updates, reserved look-ups for the look-ups of posts.", "budget"),
	}
}

// AckPending sets how many messages of the producers' consumer wait for an acknowledgement. Each instance reports the messages of all
// instances. With an error the number cannot be read, and the gauge is removed: an old value would look like a fresh one.
func (m *Waiting) AckPending(n int, err error) {
	if err != nil {
		m.ackPending.Reset()
		return
	}
	m.ackPending.WithLabelValues().Set(float64(n))
}

// RoomPending sets how many events wait in the room for a reason. Each instance reports the events of all instances. The error is that of
// AckPending.
func (m *Waiting) RoomPending(reason string, n int, err error) {
	label := waits.label(reason)
	if err != nil {
		m.roomPending.DeleteLabelValues(label)
		return
	}
	m.roomPending.WithLabelValues(label).Set(float64(n))
}

// RoomRefused counts n events that the room did not take for a reason, because too many of their category wait.
func (m *Waiting) RoomRefused(reason string, n int) { m.roomRefused.add(reason, n) }

// Held changes the number of deliveries that wait for their channel by delta. The gauge has no label for the channel.
func (m *Waiting) Held(_ string, delta int) { m.held.Add(float64(delta)) }

// PaceUsed sets the use of a budget, and what waits for it. Each instance reports the use of all instances.
func (m *Waiting) PaceUsed(budget string, used, waiting int) {
	label := paceBudgets.label(budget)
	m.paceUsed.WithLabelValues(label).Set(float64(used))
	m.paceWaiting.WithLabelValues(label).Set(float64(waiting))
}

// InFlight changes the number of events received that have no outcome yet by delta.
func (m *Waiting) InFlight(delta int) { m.inFlight.Add(float64(delta)) }

// Losses counts what was lost, removed or refused for good.
type Losses struct {
	deadLetters, forged                         closedCounter
	discarded, vanished, journalLost, spansLost prometheus.Counter
}

func newLosses(r registrar) *Losses {
	return &Losses{
		deadLetters: newClosedCounter(r.counters("notifier_dead_letters_total",
			"Events stored as dead letters, by reason.", "reason"), reasons),
		discarded: r.counter("notifier_dead_letters_discarded_total",
			"Dead letters that newer ones pushed out, at least."),
		vanished: r.counter("notifier_vanished_total",
			"Messages that left the producers' stream without a worker, at least: deleted, purged, rolled up or above the stream's bounds."),
		journalLost: r.counter("notifier_journal_lost_total",
			"Entries that this worker could not write to the journal."),
		forged: newClosedCounter(r.counters("notifier_forged_messages_total",
			"Messages that this worker ignored or removed since neither a worker nor an operator wrote them, by the place.", "place"), places),
		spansLost: r.counter("notifier_spans_lost_total",
			"Spans of this worker that no collector took."),
	}
}

// DeadLetter counts one event stored as a dead letter.
func (m *Losses) DeadLetter(reason string) { m.deadLetters.add(reason, 1) }

// DeadLettersDiscarded counts dead letters that newer ones pushed out.
func (m *Losses) DeadLettersDiscarded(n int) { addTo(m.discarded, n) }

// Vanished counts n stored events that left their stream without a worker's doing.
func (m *Losses) Vanished(n int) { addTo(m.vanished, n) }

// Forged counts n messages in a place that neither a worker nor an operator wrote.
func (m *Losses) Forged(place string, n int) { m.forged.add(place, n) }

// JournalLost counts n entries that could not be written to the journal.
func (m *Losses) JournalLost(n int) { addTo(m.journalLost, n) }

// SpansLost counts n spans that were not sent.
func (m *Losses) SpansLost(n int) { addTo(m.spansLost, n) }

func addTo(counter prometheus.Counter, n int) {
	if n > 0 {
		counter.Add(float64(n))
	}
}

// exemplar names the trace of an event that was counted.
func exemplar(trace string) prometheus.Labels { return prometheus.Labels{"trace_id": trace} }

// decisionCounters returns a counter by source for each verdict. A verdict outside the closed set has one too, but no series
// until it occurs.
func decisionCounters(vec *prometheus.CounterVec) map[string]closedCounter {
	counters := make(map[string]closedCounter, len(verdicts)+1)
	for _, verdict := range verdicts {
		counters[verdict] = newClosedCounter(vec.MustCurryWith(prometheus.Labels{"verdict": verdict}), sources)
	}
	counters[other] = closedCounter{vec.MustCurryWith(prometheus.Labels{"verdict": other}), sources}
	return counters
}

type registrar struct{ promauto.Factory }

func (r registrar) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return r.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (r registrar) counter(name, help string) prometheus.Counter {
	return r.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (r registrar) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return r.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (r registrar) gauge(name, help string) prometheus.Gauge {
	return r.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (r registrar) histogram(name, help string, buckets ...float64) prometheus.Histogram {
	return r.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}
