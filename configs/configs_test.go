// Package configs_test loads the samples for NATS and Redis with real servers. The module tests/configs reads the others.
package configs_test

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each file has a test that reads it. Each pattern has a file.
func TestEveryFileIsRead(t *testing.T) {
	t.Parallel()
	patterns := []string{
		"*.go", "slack-*.tmpl", // the compiler, and the tests of sink
		"redis/redis.conf", "redis/users.acl", "nats/notifier.conf", "compose/nats.conf",
		// tests/configs
		"prometheus/prometheus.yml", "prometheus/rules/*.yml", "grafana/provisioning/*/*.yml", "grafana/dashboards/*.json",
		"kubernetes/*.yaml", "helm/*.yaml", "helm/values.schema.json", "helm/templates/*", "helm/files/*", "helm/.helmignore", "compose/*.env", "compose/ingest-tokens",
		"notifier.env", "examples/*.env",
	}
	used := make(map[string]bool)
	err := fs.WalkDir(os.DirFS("."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		i := slices.IndexFunc(patterns, func(pattern string) bool { matched, _ := path.Match(pattern, file); return matched })
		if i < 0 {
			t.Errorf("%s: no test reads this file", file)
			return nil
		}
		used[patterns[i]] = true
		return nil
	})
	testkit.Check(t, err == nil && len(used) == len(patterns), "used patterns = %v, %v, want each of %q", used, err, patterns)
}
