package configs_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// metric is a name that a query may use, its labels, and the values of those that are closed sets.
type metric map[string][]string

// targetLabels are on everything that Prometheus scrapes; a nil list of values takes any.
var targetLabels = []string{"instance", "job"}

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
	for _, name := range described(metrics.Registry()) {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }) {
			t.Errorf("%s has no series here", name)
		}
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
			bucket := maps.Clone(m)
			bucket["le"] = nil
			known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = bucket, m, m
		}
	}
	for _, m := range known {
		for _, label := range targetLabels {
			m[label] = nil
		}
	}
	return known
}

// described lists the notifier's metrics, those without series too.
func described(registry *prometheus.Registry) (names []string) {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		registry.Describe(descriptions)
	}()
	fullName := regexp.MustCompile(`fqName: "(notifier_[^"]*)"`)
	for description := range descriptions {
		if name := fullName.FindStringSubmatch(description.String()); name != nil {
			names = append(names, name[1])
		}
	}
	return names
}

var (
	// selector is a metric's name with its matchers; a function's name has a parenthesis behind it.
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\}|\(?)`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	ranges   = regexp.MustCompile(`\[[^\]]*\]`)
	operator = []string{"and", "or", "unless", "bool"}
)

// inspect finds the metrics of a query, and faults in their names and labels. Values in label matchers must be among
// those that the metric has, where the set is closed.
func inspect(known map[string]metric, query string) (used, faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if strings.Count(query, "(") != strings.Count(query, ")") || strings.Count(query, "{") != strings.Count(query, "}") {
		fault("brackets do not match")
	}
	labels := make(map[string]bool)
	rest := ranges.ReplaceAllString(grouping.ReplaceAllString(query, " "), " ")
	for _, found := range selector.FindAllStringSubmatch(rest, -1) {
		name, behind := found[1], found[2]
		if behind == "(" || slices.Contains(operator, name) {
			continue
		}
		m, exists := known[name]
		if !exists {
			fault("no metric is called %q", name)
			continue
		}
		used = append(used, name)
		for label := range m {
			labels[label] = true
		}
		for _, match := range matcher.FindAllStringSubmatch(behind, -1) {
			values, exists := m[match[1]]
			if !exists {
				fault("%s has no label %q", name, match[1])
			}
			for value := range strings.SplitSeq(match[3], "|") {
				if values != nil && !slices.Contains(values, value) {
					fault("the label %s of %s is never %q", match[1], name, value)
				}
			}
		}
	}
	if len(used) == 0 {
		fault("no metric in it")
	}
	for _, group := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			if !labels[strings.TrimSpace(label)] {
				fault("no metric in it has the label %q", label)
			}
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

// The page of the documentation has every metric with its labels, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "../docs/metrics.md")
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(notifier_[a-z_]+)` \\| ([^|]*)\\|").FindAllStringSubmatch(page, -1) {
		documented[row[1]] = strings.TrimSpace(row[2])
	}
	for name, m := range knownMetrics(t) {
		if !strings.HasPrefix(name, "notifier_") || strings.HasSuffix(name, "_bucket") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") {
			continue
		}
		labels, exists := documented[name]
		if !exists {
			t.Errorf("%s is not documented", name)
		}
		delete(documented, name)
		for label := range m {
			if !slices.Contains(targetLabels, label) && !strings.Contains(labels, "`"+label+"`") {
				t.Errorf("%s: its label %s is not documented", name, label)
			}
		}
		if got := strings.Count(labels, "`") / 2; got != len(m)-len(targetLabels) {
			t.Errorf("%s: %d labels are documented, it has %d", name, got, len(m)-len(targetLabels))
		}
	}
	for name := range documented {
		t.Errorf("%s is documented, and does not exist", name)
	}
}

// The inspection itself must find what is wrong.
func TestInspectFindsFaults(t *testing.T) {
	t.Parallel()
	known := knownMetrics(t)
	for _, query := range []string{
		`rate(notifier_event_total[5m])`,
		`rate(notifier_events_total{result="sent"}[5m])`,
		`rate(notifier_events_total{outcome="lost"}[5m])`,
		`sum by (channel) (notifier_inflight)`,
		`sum(notifier_inflight`,
		`vector(1)`,
	} {
		if _, faults := inspect(known, query); len(faults) == 0 {
			t.Errorf("%s: no fault found", query)
		}
	}
}

type prometheusConfiguration struct {
	Global struct {
		ScrapeInterval     string `yaml:"scrape_interval"`
		EvaluationInterval string `yaml:"evaluation_interval"`
	}
	RuleFiles     []string `yaml:"rule_files"`
	ScrapeConfigs []struct {
		JobName      string `yaml:"job_name"`
		DNSSDConfigs []struct {
			Names           []string
			Type            string
			Port            int
			RefreshInterval string `yaml:"refresh_interval"`
		} `yaml:"dns_sd_configs"`
	} `yaml:"scrape_configs"`
}

func loadPrometheusConfiguration(t *testing.T, file string) {
	prometheus := decodeYAML[prometheusConfiguration](t, file)
	for _, pattern := range prometheus.RuleFiles {
		if files, err := filepath.Glob(path.Join(path.Dir(file), pattern)); err != nil || len(files) == 0 {
			t.Errorf("%s matches %d files, %v", pattern, len(files), err)
		}
	}
	if len(prometheus.ScrapeConfigs) != 1 || prometheus.ScrapeConfigs[0].JobName != "notifier" {
		t.Fatalf("jobs = %+v, want the one called notifier, which the alerts name", prometheus.ScrapeConfigs)
	}
	services := decodeYAML[compose](t, composeFile).Services
	for _, discovery := range prometheus.ScrapeConfigs[0].DNSSDConfigs {
		for _, name := range discovery.Names {
			if _, exists := services[name]; !exists {
				t.Errorf("%s has no service %q", composeFile, name)
			}
		}
		if want := httpPort(t); discovery.Port != want {
			t.Errorf("port = %d, want %d", discovery.Port, want)
		}
	}
}

type prometheusRules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func loadPrometheusRules(t *testing.T, file string) {
	known := knownMetrics(t)
	names := make(map[string]bool)
	for _, group := range decodeYAML[prometheusRules](t, file).Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || names[rule.Alert] {
				t.Errorf("alert %q has no name, or one that is taken", rule.Alert)
			}
			names[rule.Alert] = true
			checkQuery(t, known, rule.Expr)
			if rule.For != "" {
				if _, err := time.ParseDuration(rule.For); err != nil {
					t.Errorf("%s: %v", rule.Alert, err)
				}
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
				t.Errorf("%s: severity %q", rule.Alert, rule.Labels["severity"])
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s says neither what is the matter nor what to do", rule.Alert)
			}
		}
	}
	if len(names) == 0 {
		t.Error("no alert")
	}
}

type grafanaDataSources struct {
	APIVersion  int `yaml:"apiVersion"`
	DataSources []struct {
		Name, UID, Type, Access, URL string
		IsDefault                    bool `yaml:"isDefault"`
	} `yaml:"datasources"`
}

func loadGrafanaDataSources(t *testing.T, file string) {
	sources := decodeYAML[grafanaDataSources](t, file).DataSources
	if len(sources) != 1 || sources[0].Type != "prometheus" || !sources[0].IsDefault {
		t.Fatalf("data sources = %+v, want Prometheus as the default", sources)
	}
	requireServiceURL(t, sources[0].URL)
}

type grafanaProviders struct {
	APIVersion int `yaml:"apiVersion"`
	Providers  []struct {
		Name, Type      string
		DisableDeletion bool `yaml:"disableDeletion"`
		Options         struct{ Path string }
	}
}

func loadGrafanaProviders(t *testing.T, file string) {
	for _, provider := range decodeYAML[grafanaProviders](t, file).Providers {
		mounts := decodeYAML[compose](t, composeFile).Services["grafana"].Volumes
		want := "./configs/grafana/dashboards:" + provider.Options.Path + ":ro"
		if provider.Type != "file" || !slices.Contains(mounts, want) {
			t.Errorf("provider %+v: %s does not mount the dashboards there: %v", provider, composeFile, mounts)
		}
	}
}

type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Panels []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Targets                  []struct{ RefID, Expr string }
	}
}

func loadDashboard(t *testing.T, file string) {
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, file)), &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || len(d.Panels) == 0 {
		t.Fatalf("a dashboard without a UID, a title or panels: %q, %q, %d", d.UID, d.Title, len(d.Panels))
	}
	variables := make(map[string]bool)
	for _, variable := range d.Templating.List {
		variables[variable.Name] = true
	}
	for _, name := range regexp.MustCompile(`\$\{?([a-z]+)`).FindAllStringSubmatch(read(t, file), -1) {
		if !variables[name[1]] {
			t.Errorf("no variable is called %q", name[1])
		}
	}

	known := knownMetrics(t)
	// Variables stand for what the test does not know.
	expand := func(query string) string { return strings.ReplaceAll(query, "$__", "") }
	used := make(map[string]bool)
	ids, titles := make(map[int]bool), make(map[string]bool)
	cells := make(map[[2]int]string)
	for _, panel := range d.Panels {
		if ids[panel.ID] || titles[panel.Title] {
			t.Errorf("panel %d, %q: the number or the title is taken", panel.ID, panel.Title)
		}
		ids[panel.ID], titles[panel.Title] = true, true
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("panel %q lies on %q or beyond the edge", panel.Title, other)
				}
				cells[[2]int{x, y}] = panel.Title
			}
		}
		if panel.Type == "row" {
			continue
		}
		if panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %q has no description or no query", panel.Title)
		}
		for _, target := range panel.Targets {
			for _, name := range checkQuery(t, known, expand(target.Expr)) {
				used[name] = true
			}
		}
	}
	for _, annotation := range d.Annotations.List {
		checkQuery(t, known, expand(annotation.Expr))
	}
	for name := range known {
		family := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "notifier_") && !used[name] && !used[family+"_bucket"] && !used[family] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
