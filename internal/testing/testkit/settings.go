package testkit

import (
	"os"
	"strings"
	"testing"
)

// SetSettings replaces all settings of the process until the test ends. The names have no prefix.
func SetSettings(t testing.TB, settings map[string]string) {
	t.Helper()
	const prefix = "NOTIFIER_"
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, prefix) {
			t.Setenv(name, "") // restores the variable when the test ends
			NoError(t, os.Unsetenv(name))
		}
	}
	for name, value := range settings {
		t.Setenv(prefix+name, value)
	}
}
