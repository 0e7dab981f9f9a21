// Package configs_test loads every sample of this folder with what reads it in earnest: settings with the notifier's own
// code, Redis's users and NATS's configuration with real servers, the rest with a strict parser and the names
// of the metrics, ports and labels that it refers to.
package configs_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// checks says how each file is loaded. The first pattern that matches counts.
var checks = []struct {
	pattern string // of path.Match
	load    func(t *testing.T, file string)
}{
	{"*.go", func(*testing.T, string) {}}, // the compiler loads it
	{"slack-message.tmpl", loadMessageTemplate},
	{"slack-summary.tmpl", loadSummaryTemplate},
	{"notifier.env", loadEnvironment},
	{"examples/*.env", loadEnvironment},
	{"compose/*.env", loadComposeEnvironment},
	{"redis/redis.conf", loadRedisConfiguration},
	{"redis/users.acl", loadRedisUsers},
	{"nats/*.conf", loadNATSConfiguration},
	{"prometheus/prometheus.yml", loadPrometheusConfiguration},
	{"prometheus/rules/*.yml", loadPrometheusRules},
	{"grafana/provisioning/datasources/*.yml", loadGrafanaDataSources},
	{"grafana/provisioning/dashboards/*.yml", loadGrafanaProviders},
	{"grafana/dashboards/*.json", loadDashboard},
	{"kubernetes/*.yaml", loadManifest},
}

func TestEveryFileLoads(t *testing.T) {
	used := make(map[string]bool)
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		for _, check := range checks {
			if matched, err := path.Match(check.pattern, file); err != nil || matched {
				used[check.pattern] = true
				t.Run(file, func(t *testing.T) { check.load(t, file) })
				return err
			}
		}
		t.Errorf("%s: no check loads this file", file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range checks {
		if !used[check.pattern] {
			t.Errorf("%s: no such file", check.pattern)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// decodeYAML reads the one document of a file. A field that the target does not have is a fault.
func decodeYAML[T any](t *testing.T, file string) T {
	t.Helper()
	var target T
	decoder := yaml.NewDecoder(bytes.NewBufferString(read(t, file)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&target); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var more any
	if err := decoder.Decode(&more); err == nil {
		t.Fatalf("%s: a second document, which no test would see", file)
	}
	return target
}

// assignments reads the lines NAME=value of a settings file, and those that are commented out.
func assignments(t *testing.T, file string) (given, commented map[string]string) {
	t.Helper()
	given, commented = make(map[string]string), make(map[string]string)
	for line := range strings.Lines(read(t, file)) {
		line = strings.TrimSuffix(line, "\n")
		target := given
		if strings.HasPrefix(line, "#NOTIFIER_") {
			target, line = commented, line[1:]
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		if !found || strings.TrimSpace(value) != value || strings.ContainsAny(value, `"'`) {
			t.Fatalf("%s: %q is not NAME=value without quotes and blanks, which not every reader takes", file, line)
		}
		if _, twice := target[name]; twice {
			t.Fatalf("%s: %s is there twice", file, name)
		}
		target[name] = value
	}
	return given, commented
}
