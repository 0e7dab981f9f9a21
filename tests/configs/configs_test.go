// Package configs_test reads the samples of configs/ with the libraries of the programs that use them. It compares the samples with each
// other and with the notifier. The package is a module of its own, so the notifier does not depend on these libraries. Package configs
// tests the samples for NATS and Redis.
//
// The samples are outside of this module, and the cache of test results does not see them: run the tests with -count=1.
package configs_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const samples = "../../configs/"

// TestMain keeps quiet what Helm logs of each link in the chart's folder.
func TestMain(m *testing.M) {
	slog.SetLogLoggerLevel(slog.LevelWarn)
	m.Run()
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	return testkit.Must(os.ReadFile(file))(t)
}

// find returns the first group of an expression, which matches a YAML file of one document exactly once.
func find(t *testing.T, file, expression string) string {
	t.Helper()
	text := read(t, samples+file)
	testkit.NoError(t, yaml.Unmarshal(text, new(map[string]any)))
	found := regexp.MustCompile(expression).FindAllSubmatch(text, -1)
	testkit.Require(t, len(found) == 1 && !bytes.Contains(text, []byte("\n---")),
		"%s: %q matches %d times, or the file has a second document; want one of both", file, expression, len(found))
	return string(found[0][1])
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(samples + pattern)
	testkit.Require(t, err == nil && len(files) != 0, "%s: no file, %v", pattern, err)
	return files
}

// load reads settings as a worker does, from these variables alone.
func load(t *testing.T, variables map[string]string) config.Config {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NOTIFIER_") {
			t.Setenv(name, "") // an empty variable is not set
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
	settings, warnings, err := config.Load(config.Options{CheckTemplate: func(string) error { return nil }})
	testkit.Require(t, err == nil && len(warnings) == 0, "settings: %v, warnings: %v", err, warnings)
	return settings
}

// httpAddr is the default of NOTIFIER_HTTP_ADDR.
const httpAddr = ":8080"

func TestHTTPAddr(t *testing.T) {
	testkit.Equal(t, load(t, map[string]string{"NOTIFIER_SINK": config.SinkConsole}).HTTP.Addr, httpAddr, "default address")
}
