// Package configs_test reads the samples of configs/ with the libraries of the programs that they are for, and checks what
// the samples say of each other and of the notifier. It is a module of its own, so that none of these libraries is a
// dependency of the notifier. The samples that the notifier, NATS or Redis reads have their tests in configs/.
//
// The cache of test results does not see the samples, as they are outside of this module: run the tests with -count=1.
package configs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/seed-4578ace9/notifier/internal/config"
)

const samples = "../../configs/"

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// decode reads the one document of a file. A field that the target does not have is a fault.
func decode[T any](t *testing.T, file string) (target T) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(read(t, file)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&target); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := decoder.Decode(new(any)); err == nil {
		t.Fatalf("%s: a second document, which no test would see", file)
	}
	return target
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no file, %v", pattern, err)
	}
	return files
}

// load reads settings as a worker does, with nothing else in its environment.
func load(t *testing.T, variables map[string]string) config.Config {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NOTIFIER_") {
			t.Setenv(name, "") // counts as not set
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
	settings, warnings, err := config.Load(config.Options{CheckTemplate: func(string) error { return nil }})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("settings: %v, warnings: %v", err, warnings)
	}
	return settings
}
