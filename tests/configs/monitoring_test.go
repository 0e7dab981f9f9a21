package configs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/seed-4578ace9/notifier/internal/ingest"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/doctest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// metric maps each label of a metric to its values. nil allows any value.
type metric map[string][]string

// exported reads the metrics of the notifier from its registry.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	levels := []string{"global", "category"}
	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 1, Levels: levels, Policy: "local", Version: "v", Revision: "r"})
	// The registry lists a gauge once its value is known.
	metrics.Decisions.Levels(levels, levels)
	metrics.Decisions.PolicyInactive()
	metrics.SettingsMismatch(0)
	metrics.Decisions.LimitUsed("global", 0)
	metrics.Decisions.LimitSize("global", 0)
	metrics.Waiting.AckPending(0, nil)
	for _, reason := range telemetry.RoomReasons() {
		metrics.Waiting.RoomPending(reason, 0, nil)
	}
	for _, budget := range telemetry.PaceBudgets() {
		metrics.Waiting.PaceUsed(budget, 0, 0)
	}
	telemetry.RegisterReady(metrics.Registry(), func() error { return nil })
	front := telemetry.NewIngest(metrics.Registry(), ingest.Answered())
	front.Client("client")
	exported := make(map[string]metric)
	for _, family := range testkit.Must(metrics.Registry().Gather())(t) {
		m := make(metric)
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				m[label.GetName()] = append(m[label.GetName()], label.GetValue())
			}
		}
		exported[family.GetName()] = m
	}
	return exported
}

// known adds the series of histograms, the labels of Prometheus, and the metrics of other exporters.
func known(t *testing.T) map[string]metric {
	t.Helper()
	known := exported(t)
	for _, name := range slices.Collect(maps.Keys(known)) {
		if strings.HasSuffix(name, "_seconds") {
			known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = metric{"le": nil}, metric{}, metric{}
		}
	}
	known["up"] = metric{}
	for _, name := range []string{"jetstream_consumer_num_pending", "jetstream_consumer_num_ack_pending"} {
		known[name] = metric{"stream_name": nil, "consumer_name": nil}
	}
	for _, m := range known {
		m["instance"], m["job"] = nil, nil
	}
	return known
}

// inspect returns the metrics of a query, and faults in their names, labels and label values.
func inspect(known map[string]metric, query string) (used []string, err error) {
	fault := func(format string, args ...any) {
		err = errors.Join(err, fmt.Errorf("%s: %s", query, fmt.Sprintf(format, args...)))
	}
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, err
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
			}
			used = append(used, n.Name)
			maps.Copy(has, m)
			for _, matcher := range n.LabelMatchers {
				values, exists := m[matcher.Name]
				if !exists && matcher.Name != model.MetricNameLabel {
					fault("%s has no label %q", n.Name, matcher.Name)
				}
				wanted := matcher.SetMatches() // empty unless a regular expression lists values
				if len(wanted) == 0 {
					wanted = []string{matcher.Value}
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
	return used, err
}

func TestInspectFindsFaults(t *testing.T) {
	t.Parallel()
	for _, query := range []string{
		`rate(notifier_event_total[5m])`, `rate(notifier_events_total{result="sent"}[5m])`, `rate(notifier_events_total{outcome="lost"}[5m])`,
		`rate(notifier_events_total{outcome=~"sent|lost"}[5m])`, `sum by (channel) (notifier_inflight)`,
		`notifier_inflight + on (channel) notifier_inflight`, `sum(notifier_inflight`, `vector(1)`,
	} {
		_, err := inspect(known(t), query)
		testkit.Fails(t, query, err, nil)
	}
}

// rules reads the rules of all files for Prometheus.
func rules(t *testing.T) (all []rulefmt.Rule) {
	t.Helper()
	for _, file := range glob(t, "prometheus/rules/*.yml") {
		groups, errs := rulefmt.ParseFile(file, false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		testkit.NoError(t, errors.Join(errs...))
		for _, group := range groups.Groups {
			all = append(all, group.Rules...)
		}
	}
	return all
}

// ofDeployment matches a metric of the notifier in an expression, with the matcher of its job if there is one.
var ofDeployment = regexp.MustCompile(`notifier_[a-z_]+(\{job="notifier(?:-ingest)?")?`)

// TestAlerts wants each rule to be an alert with its own name, about metrics that exist, with a summary and a description.
func TestAlerts(t *testing.T) {
	t.Parallel()
	metrics := known(t)
	names := make(map[string]bool)
	for _, rule := range rules(t) {
		testkit.Check(t, rule.Alert != "" && !names[rule.Alert], "got the alert %q, want a name that no other alert has", rule.Alert)
		names[rule.Alert] = true
		for _, selected := range ofDeployment.FindAllStringSubmatch(rule.Expr, -1) {
			if selected[1] == "" {
				t.Errorf("%s: %s is of every deployment, want a matcher of its job", rule.Alert, selected[0])
			}
		}
		testkit.Must(inspect(metrics, rule.Expr))(t)
		if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
			t.Errorf("%s: got severity %q, want critical, warning or info", rule.Alert, rule.Labels["severity"])
		}
		testkit.Check(t, rule.Annotations["summary"] != "" && rule.Annotations["description"] != "",
			"%s: got annotations %v, want a summary and a description", rule.Alert, rule.Annotations)
	}
}

// TestAlertsHaveRunbooks wants a section of docs/operations.md for each alert, with three parts, and the alert's link to lead there.
// No other section has a name of that form.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/seed-4578ace9/notifier/blob/main/docs/operations.md#"
	sections := make(map[string]string)
	for _, section := range strings.Split(string(read(t, "../../docs/operations.md")), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		sections[title] = text
	}
	for _, rule := range rules(t) {
		testkit.Equal(t, rule.Annotations["runbook_url"], page+strings.ToLower(rule.Alert), "link of %s", rule.Alert)
		for _, part := range []string{"\n**Meaning.** ", "\n**Look at.**", "\n**Do.** "} {
			testkit.Equal(t, strings.Count(sections[rule.Alert], part), 1, "parts %q of the section %s", part, rule.Alert)
		}
		delete(sections, rule.Alert)
	}
	for title := range sections {
		testkit.Check(t, !strings.HasPrefix(title, "Notifier"), "the section %s is of no alert", title)
	}
}

type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Query string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Panels      []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ Expr string }
	}
}

// TestDashboards wants the panels to show every metric, and to use only metrics and variables that exist.
func TestDashboards(t *testing.T) {
	t.Parallel()
	metrics := known(t)
	used := make(map[string]bool)
	for _, file := range glob(t, "grafana/dashboards/*.json") {
		var d dashboard
		text := read(t, file)
		testkit.NoError(t, json.Unmarshal(text, &d))
		testkit.Check(t, d.UID != "" && d.Title != "", "a dashboard without a UID or a title: %q, %q", d.UID, d.Title)
		for _, name := range regexp.MustCompile(`\$\{?([a-z]+)`).FindAllSubmatch(text, -1) {
			if !slices.ContainsFunc(d.Templating.List, func(v struct{ Name, Query string }) bool { return v.Name == string(name[1]) }) {
				t.Errorf("no variable is called %q", name[1])
			}
		}
		checkLayout(t, d)
		for _, panel := range d.Panels {
			if panel.Type != "row" && (panel.Description == "" || len(panel.Targets) == 0) {
				t.Errorf("panel %q has no description or no query", panel.Title)
			}
			for _, target := range panel.Targets {
				// Grafana replaces its own variables by durations.
				query := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(target.Expr)
				for _, name := range testkit.Must(inspect(metrics, query))(t) {
					used[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
				}
			}
		}
		for _, annotation := range d.Annotations.List {
			testkit.Must(inspect(metrics, annotation.Expr))(t)
		}
	}
	for name := range exported(t) {
		if strings.HasPrefix(name, "notifier_") && !used[name] {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// theDashboard reads the dashboard of the notifier.
func theDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	testkit.NoError(t, json.Unmarshal(read(t, glob(t, "grafana/dashboards/notifier.json")[0]), &d))
	return d
}

// firstEvents are what a worker counted before its first scrape.
var firstEvents = []scraped{
	counter("notifier_dead_letters_total", "reason", "malformed", 115, steady(3, 5)...),
	counter("notifier_dropped_total", "level", "room", 115, steady(3, 5)...),
	counter("notifier_events_total", "outcome", "dropped", 115, steady(3, 5)...),
	counter("notifier_events_total", "outcome", "expired", 115, steady(3, 5)...),
	counter("notifier_events_total", "outcome", "sent", 115, steady(3, 5)...),
}

// wantFirstEvents evaluates a query, and wants each of its results to count the first events.
func wantFirstEvents(t *testing.T, name, query string, results int) {
	t.Helper()
	shown := evaluated(t, query, firstEvents)
	testkit.Check(t, len(shown) == results && !slices.ContainsFunc(shown, func(s promql.Sample) bool { return s.F != 3 }),
		"%s: got %v, want %d results of 3", name, shown, results)
}

// TestDashboardCountsTheFirstEvents wants the panels with numbers of events to count what a worker counted before its first scrape.
func TestDashboardCountsTheFirstEvents(t *testing.T) {
	t.Parallel()
	results := map[string]int{"Dead letters": 1, "Expired": 1, "Sent": 1, "Dropped": 1, "Loudest categories": 3}
	for _, panel := range theDashboard(t).Panels {
		if panel.Type == "stat" && strings.Contains(panel.Targets[0].Expr, "increase(") || panel.Title == "Loudest categories" {
			query := strings.NewReplacer("$__range", "1h", "$job", "notifier").Replace(panel.Targets[0].Expr)
			wantFirstEvents(t, panel.Title, query, results[panel.Title])
			delete(results, panel.Title)
		}
	}
	testkit.Equal(t, len(results), 0, "numbers without a panel")
}

// TestRunbookQueries wants the queries of the runbooks to count what a worker counted before its first scrape.
func TestRunbookQueries(t *testing.T) {
	t.Parallel()
	queries := 0
	for _, block := range testkit.Must(doctest.Blocks(string(read(t, "../../docs/operations.md"))))(t) {
		if strings.HasPrefix(block.NotRun, "a query") {
			queries++
			wantFirstEvents(t, block.Text, block.Text, 1)
		}
	}
	testkit.AtMost(t, 1, queries, "least number of queries")
}

// TestJobsOfWorkers wants the dashboard to take the jobs of workers from a metric that notifier ingest does not export.
func TestJobsOfWorkers(t *testing.T) {
	t.Parallel()
	ofIngest := telemetry.NewRegistry("v", "r")
	telemetry.NewIngest(ofIngest, ingest.Answered())
	telemetry.RegisterReady(ofIngest, func() error { return nil })
	for _, variable := range theDashboard(t).Templating.List {
		if variable.Name == "job" {
			metric := strings.TrimSuffix(strings.TrimPrefix(variable.Query, "label_values("), ", job)")
			testkit.Equal(t, exported(t)[metric] != nil, true, "workers export %s", metric)
			for _, family := range testkit.Must(ofIngest.Gather())(t) {
				testkit.Check(t, family.GetName() != metric, "notifier ingest exports %s too", metric)
			}
		}
	}
}

// checkLayout checks that no two panels share an ID, a title or a place, and that none lies beyond the edge.
func checkLayout(t *testing.T, d dashboard) {
	t.Helper()
	taken := make(map[any]bool)
	for _, panel := range d.Panels {
		needs, at := []any{panel.ID, panel.Title}, panel.GridPos
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				needs = append(needs, [2]int{x, y})
			}
		}
		for _, need := range needs {
			testkit.Check(t, !taken[need] && at.X+at.W <= 24, "panel %q: %v is taken, or beyond the edge", panel.Title, need)
			taken[need] = true
		}
	}
}
