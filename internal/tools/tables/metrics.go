package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// advice says of each metric what its values are good for, and what to do about them.
var advice = map[string]string{
	"notifier_events_total":                     "See who sends how much. Where `dropped` grows, look at `notifier_dropped_total`; `dead`: `notifier dlq list`; `expired`: [NotifierExpired](operations.md#notifierexpired).",
	"notifier_dropped_total":                    "Find the loud category and the limit that denies it. `mute`, `unpaired`, `room`, `operator` and `closed` stand for drops without a limit: [a mute](limits.md#mutes), nothing to resolve, [NotifierRoomRefuses](operations.md#notifierroomrefuses), `notifier delayed drop`, `NOTIFIER_REDIS_FAILURE=closed`. Raise the limit or mend the producer: [NotifierDropsMostEvents](operations.md#notifierdropsmostevents).",
	"notifier_decisions_total":                  "Compare `cache` with `redis`: in a flood nearly all comes from the cache. `local` grows only while Redis is unavailable. [Verdicts](#verdicts) explains the values.",
	"notifier_decision_duration_seconds":        "Above a quarter of a second: [NotifierRedisSlow](operations.md#notifierredisslow).",
	"notifier_shadow_decisions_total":           "Compare a limit to try with the limits in force before you set it. `verdict` is `admitted`, `denied` or `exceeds_capacity`. Absent without shadow limits.",
	"notifier_limit_size":                       "Draw it beside `notifier_limit_used`. Take the `max` over the workers.",
	"notifier_limit_used":                       "At `notifier_limit_size` the limit is full. For the global one: [NotifierGlobalLimitFull](operations.md#notifiergloballimitfull). Take the `max` over the workers.",
	"notifier_dead_letters_total":               "Any growth: [NotifierDeadLetters](operations.md#notifierdeadletters).",
	"notifier_dead_letters_discarded_total":     "Any growth: [NotifierDeadLettersDiscarded](operations.md#notifierdeadlettersdiscarded).",
	"notifier_sink_requests_total":              "`misconfigured`: [NotifierMisconfigured](operations.md#notifiermisconfigured). `rate_limited`, `transient`, `unknown`: [NotifierSinkFailing](operations.md#notifiersinkfailing). `rejected`: look at the dead letters.",
	"notifier_sink_request_duration_seconds":    "Near `NOTIFIER_SLACK_TIMEOUT` posts fail and are repeated: look at the way to Slack.",
	"notifier_event_age_seconds":                "Above five minutes: [NotifierSlow](operations.md#notifierslow). Events that waited for a slot do not count.",
	"notifier_summaries_total":                  "`given_up`: [NotifierSummariesGivenUp](operations.md#notifiersummariesgivenup).",
	"notifier_resolved_total":                   "Many `unpaired` ones: their firing events were dropped, or the key of both differs.",
	"notifier_split_total":                      "None. It says how many bodies of Alertmanager and Grafana came with several alerts.",
	"notifier_delayed_total":                    "Growth without end: more events come than that limit admits, [NotifierDelayedPiledUp](operations.md#notifierdelayedpiledup).",
	"notifier_room_pending":                     "Above 5,000: [NotifierRoomFilling](operations.md#notifierroomfilling). Take the `max` over the workers.",
	"notifier_room_refused_total":               "Any growth: [NotifierRoomRefuses](operations.md#notifierroomrefuses).",
	"notifier_inflight":                         "High for long: [NotifierStuck](operations.md#notifierstuck).",
	"notifier_held":                             "High for long: a channel takes `NOTIFIER_SLACK_RATE`, and all channels take `NOTIFIER_SLACK_WORKSPACE_RATE`, whatever the number of workers.",
	"notifier_pace_used":                        "At the count of `NOTIFIER_SLACK_WORKSPACE_RATE`, `NOTIFIER_SLACK_UPDATE_RATE` or `NOTIFIER_SLACK_LOOKUP_RATE` for long: that budget bounds the deployment. `channels` above 0 for long: `NOTIFIER_SLACK_RATE` bounds that many channels, which `notifier status` names. Take the `max` over the workers.",
	"notifier_pace_waiting":                     "`workspace` high for long: channels share the workspace's posts: lower limits or the number of channels. `channels` high for long: route categories to separate channels, or lower their limits. `lookups`: events in doubt wait to be [looked up](delivery.md#posted-once). Take the `max` over the workers.",
	"notifier_ack_pending":                      "Above 15,000: [NotifierAckPending](operations.md#notifierackpending). Take the `max` over the workers.",
	"notifier_forged_messages_total":            "Any growth: [NotifierForgedMessages](operations.md#notifierforgedmessages).",
	"notifier_vanished_total":                   "Any growth: [NotifierVanished](operations.md#notifiervanished).",
	"notifier_journal_lost_total":               "Any growth: `notifier why` may not know some events. Look at the log and at the stream of [the journal](delivery.md#the-journal).",
	"notifier_spans_lost_total":                 "Any growth: the collector of [traces](operations.md#traces) is slow or unavailable. Events are not affected.",
	"notifier_redeliveries_total":               "A few after a restart are normal. Steady growth: deliveries take longer than `NOTIFIER_NATS_ACK_WAIT`.",
	"notifier_refunds_total":                    "Events that were admitted and not delivered: `dead`, `expired`, muted or refused by the room.",
	"notifier_ready":                            "0: [NotifierNotReady](operations.md#notifiernotready). `/readyz` has the reason.",
	"notifier_degraded":                         "1: [NotifierDegraded](operations.md#notifierdegraded).",
	"notifier_settings_mismatch":                "1: [NotifierSettingsDiffer](operations.md#notifiersettingsdiffer).",
	"notifier_ingest_requests_total":            "429: see which client it is by `notifier_ingest_limited_total`; 503: by this metric or `notifier_ingest_unstored_total`; 401: [NotifierIngestRefusesTokens](operations.md#notifieringestrefusestokens); the other 4xx: by `notifier_ingest_refused_total`.",
	"notifier_ingest_events_total":              "See who sends how much. `result` is `stored` or `duplicate`. Many `duplicate`: a client repeats what was stored.",
	"notifier_ingest_limited_total":             "Growth: raise `NOTIFIER_INGEST_RATE`, or mend the client. Alertmanager loses what is answered 429 until its next flush.",
	"notifier_ingest_unstored_total":            "Growth: [NotifierIngestRefuses](operations.md#notifieringestrefuses).",
	"notifier_ingest_refused_total":             "Growth: [NotifierIngestRefusesClient](operations.md#notifieringestrefusesclient).",
	"notifier_ingest_bytes_total":               "None. Divide it by the events to know their size.",
	"notifier_ingest_publish_duration_seconds":  "Above a tenth of a second: NATS is slow, or too far away.",
	"notifier_ingest_connections":               "Near 4096: clients keep connections that they do not use. More instances share them.",
	"notifier_ingest_evicted_connections_total": "Growth: more clients than one instance takes, or clients that send nothing.",
	"notifier_build_info":                       "See which versions run.",
}

// open are the labels whose values are not a closed set, or not one of this program.
var open = []string{"category", "level", "policy", "version", "revision", "goversion"}

// described reads a metric's own description, which the library shows in no other form.
var described = regexp.MustCompile(`^Desc\{fqName: "(notifier_\w+)", help: "(.*)", unit: ".*", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// metrics is the table of all metrics, in the order of their names.
func metrics() (string, error) {
	registry := populated()
	values, err := labelValues(registry)
	if err != nil {
		return "", err
	}
	rows := make(map[string]string)
	for _, description := range descriptions(registry) {
		found := described.FindStringSubmatch(description)
		if found == nil {
			continue // of the Go runtime or the process
		}
		name, help := found[1], strings.ReplaceAll(found[2], `\"`, `"`)
		action, advised := advice[name]
		if !advised {
			return "", fmt.Errorf("internal/tools/tables says nothing about %s", name)
		}
		rows[name] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, labels(found[3], values[name]), help, action)
	}
	for name := range advice {
		if _, exists := rows[name]; !exists {
			return "", fmt.Errorf("there is no metric %s", name)
		}
	}
	var table strings.Builder
	table.WriteString("| metric | labels | what it counts | what to do |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		table.WriteString(rows[name])
	}
	return table.String(), nil
}

// populated has every series that a worker and notifier ingest export without events.
func populated() *prometheus.Registry {
	m := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 1})
	for _, reason := range telemetry.RoomReasons() {
		m.Waiting.RoomPending(reason, 0, nil)
	}
	for _, budget := range telemetry.PaceBudgets() {
		m.Waiting.PaceUsed(budget, 0, 0)
	}
	telemetry.NewIngest(m.Registry(), ingest.Answered())
	telemetry.RegisterReady(m.Registry(), func() error { return nil })
	return m.Registry()
}

func descriptions(registry *prometheus.Registry) (texts []string) {
	metrics := make(chan *prometheus.Desc)
	go func() {
		defer close(metrics)
		registry.Describe(metrics)
	}()
	for metric := range metrics {
		texts = append(texts, metric.String())
	}
	return texts
}

// labelValues lists by metric and label the values that exist from the start.
func labelValues(registry *prometheus.Registry) (map[string]map[string][]string, error) {
	families, err := registry.Gather()
	values := make(map[string]map[string][]string)
	for _, family := range families {
		byLabel := make(map[string][]string)
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if !slices.Contains(byLabel[label.GetName()], label.GetValue()) {
					byLabel[label.GetName()] = append(byLabel[label.GetName()], label.GetValue())
				}
			}
		}
		values[family.GetName()] = byLabel
	}
	return values, err
}

// labels lists labels, and the values of those that are closed sets.
func labels(names string, values map[string][]string) string {
	var list []string
	for name := range strings.FieldsFuncSeq(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		text := "`" + name + "`"
		if !slices.Contains(open, name) && len(values[name]) > 0 {
			text += ": " + strings.Join(values[name], ", ")
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}
