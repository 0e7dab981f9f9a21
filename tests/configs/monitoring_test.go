package configs_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// metric has the labels of a metric, and the values of those that are closed sets; nil takes any value.
type metric map[string][]string

// knownMetrics has what the notifier exports, read from its own registry, and what comes from elsewhere.
func knownMetrics(t *testing.T) map[string]metric {
	t.Helper()
	levels := []string{"global", "category"}
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{
		MaxCategories: 1, Levels: levels, Policy: "local", Version: "v", Revision: "r",
	})
	// A gauge is there once its value is known.
	metrics.Levels(levels, levels)
	metrics.Degraded(false)
	metrics.LimitUsed("global", 0)
	metrics.LimitSize("global", 0)
	metrics.AckPending(0)
	for _, reason := range telemetry.RoomReasons() {
		metrics.RoomPending(reason, 0)
	}
	families, err := metrics.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]metric{
		"up": {},
		// NATS's exporter
		"jetstream_consumer_num_pending":     {"stream_name": nil, "consumer_name": nil},
		"jetstream_consumer_num_ack_pending": {"stream_name": nil, "consumer_name": nil},
	}
	for _, family := range families {
		m := make(metric)
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				m[label.GetName()] = append(m[label.GetName()], label.GetValue())
			}
		}
		name := family.GetName()
		known[name] = m
		if family.GetType() == dto.MetricType_HISTOGRAM {
			known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = maps.Clone(m), maps.Clone(m), maps.Clone(m)
			known[name+"_bucket"]["le"] = nil
		}
	}
	for _, m := range known {
		m["instance"], m["job"] = nil, nil
	}
	// The tests of configs/ compare the page with the registry.
	for _, row := range regexp.MustCompile("(?m)^\\| `(notifier_\\w+)`").FindAllStringSubmatch(string(read(t, "../../docs/metrics.md")), -1) {
		if known[row[1]] == nil {
			t.Errorf("%s has no series here", row[1])
		}
	}
	return known
}

// inspect finds the metrics of a query, and faults in their names and labels. Values in label matchers must be among
// those that the metric has, where the set is closed.
func inspect(known map[string]metric, query string) (used, faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, []string{err.Error()}
	}
	has := make(metric)
	var grouped []string
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
			}
		case *parser.VectorSelector:
			m, exists := known[n.Name]
			if !exists {
				fault("no metric is called %q", n.Name)
				return nil
			}
			used = append(used, n.Name)
			maps.Copy(has, m)
			for _, matcher := range n.LabelMatchers {
				values, exists := m[matcher.Name]
				if matcher.Name == model.MetricNameLabel {
					continue
				}
				if !exists {
					fault("%s has no label %q", n.Name, matcher.Name)
				}
				wanted := []string{matcher.Value}
				if alternatives := matcher.SetMatches(); len(alternatives) > 0 {
					wanted = alternatives
				}
				for _, value := range wanted {
					if values != nil && !slices.Contains(values, value) {
						fault("the label %s of %s is never %q", matcher.Name, n.Name, value)
					}
				}
			}
		}
		return nil
	})
	if len(used) == 0 {
		fault("no metric in it")
	}
	for _, label := range grouped {
		if _, exists := has[label]; !exists {
			fault("no metric in it has the label %q", label)
		}
	}
	return used, faults
}

func checkQuery(t *testing.T, known map[string]metric, query string) (used []string) {
	t.Helper()
	used, faults := inspect(known, query)
	for _, fault := range faults {
		t.Errorf("%s: %s", query, fault)
	}
	return used
}

// The inspection itself must find what is wrong.
func TestInspectFindsFaults(t *testing.T) {
	t.Parallel()
	known := knownMetrics(t)
	for _, query := range []string{
		`rate(notifier_event_total[5m])`,
		`rate(notifier_events_total{result="sent"}[5m])`,
		`rate(notifier_events_total{outcome="lost"}[5m])`,
		`rate(notifier_events_total{outcome=~"sent|lost"}[5m])`,
		`sum by (channel) (notifier_inflight)`,
		`notifier_inflight + on (channel) notifier_inflight`,
		`sum(notifier_inflight`,
		`vector(1)`,
	} {
		if _, faults := inspect(known, query); len(faults) == 0 {
			t.Errorf("%s: no fault found", query)
		}
	}
}

// Every rule is an alert with a name of its own about metrics that exist, and says what is the matter and what to do.
func TestAlerts(t *testing.T) {
	t.Parallel()
	known := knownMetrics(t)
	names := make(map[string]bool)
	for _, file := range glob(t, samples+"prometheus/rules/*.yml") {
		rules, errs := rulefmt.ParseFile(file, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, group := range rules.Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" || names[rule.Alert] {
					t.Errorf("alert %q has no name, or one that is taken", rule.Alert)
				}
				names[rule.Alert] = true
				checkQuery(t, known, rule.Expr)
				if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
					t.Errorf("%s: severity %q", rule.Alert, rule.Labels["severity"])
				}
				if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
					t.Errorf("%s says neither what is the matter nor what to do", rule.Alert)
				}
			}
		}
	}
	if len(names) == 0 {
		t.Error("no alert")
	}
}

type dashboard struct {
	UID, Title  string
	Templating  struct{ List []struct{ Name string } }
	Annotations struct{ List []struct{ Expr string } }
	Panels      []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr string }
	}
}

func TestDashboards(t *testing.T) {
	t.Parallel()
	known := knownMetrics(t)
	used := make(map[string]bool)
	check := func(query string) {
		// Grafana puts durations in the place of its own variables.
		for _, name := range checkQuery(t, known, strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(query)) {
			used[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
		}
	}
	for _, file := range glob(t, samples+"grafana/dashboards/*.json") {
		var d dashboard
		text := read(t, file)
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		if d.UID == "" || d.Title == "" || len(d.Panels) == 0 {
			t.Fatalf("a dashboard without a UID, a title or panels: %q, %q, %d", d.UID, d.Title, len(d.Panels))
		}
		for _, name := range regexp.MustCompile(`\$\{?([a-z]+)`).FindAllSubmatch(text, -1) {
			if !slices.ContainsFunc(d.Templating.List, func(v struct{ Name string }) bool { return v.Name == string(name[1]) }) {
				t.Errorf("no variable is called %q", name[1])
			}
		}
		checkLayout(t, d)
		for _, panel := range d.Panels {
			if panel.Type != "row" && (panel.Description == "" || len(panel.Targets) == 0) {
				t.Errorf("panel %q has no description or no query", panel.Title)
			}
			for _, target := range panel.Targets {
				check(target.Expr)
			}
		}
		for _, annotation := range d.Annotations.List {
			checkQuery(t, known, annotation.Expr)
		}
	}
	for name := range known {
		family := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "notifier_") && !used[family] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// checkLayout finds panels that share a number, a title or a place.
func checkLayout(t *testing.T, d dashboard) {
	t.Helper()
	taken := make(map[any]bool)
	take := func(what any, panel string) {
		if taken[what] {
			t.Errorf("panel %q: %v is taken", panel, what)
		}
		taken[what] = true
	}
	for _, panel := range d.Panels {
		take(panel.ID, panel.Title)
		take(panel.Title, panel.Title)
		at := panel.GridPos
		if at.X+at.W > 24 {
			t.Errorf("panel %q lies beyond the edge", panel.Title)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				take([2]int{x, y}, panel.Title)
			}
		}
	}
}
