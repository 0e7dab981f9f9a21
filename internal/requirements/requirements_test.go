package requirements_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/requirements"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	redis := requirements.Server{Name: "Redis", Since: "6.2", Needs: "the scripts need it"}
	for version, old := range map[string]bool{
		"5.0.14": true, "6.0.16": true, "6.1": true, "6.2.0": false, "6.2": false, "6.10.1": false, "7.0.15": false, "10.0.0-rc1": false,
		"255.255.255": false, "": false, "unknown": false,
	} {
		err := redis.Check(version, "127.0.0.1:6379")
		testkit.Equal(t, err != nil, old, "%q is too old", version)
	}
	nats := requirements.Server{Name: "nats-server", Since: "2.12.8"}
	for version, old := range map[string]bool{
		"2.11.9": true, "2.12.0": true, "2.12.7": true, "2.12": true, "2.12.8": false, "2.12.10": false, "2.12.8-RC.1": false, "2.14.0": false, "3.0.0": false,
	} {
		testkit.Equal(t, nats.Check(version, "") != nil, old, "%q is too old", version)
	}
	testkit.Equal(t, redis.Check("5.0.14", "127.0.0.1:6379").Error(), "Redis 5.0.14 at 127.0.0.1:6379 is older than 6.2: the scripts need it", "error")
	testkit.Equal(t, redis.Check("5.0.14", "").Error(), "Redis 5.0.14 is older than 6.2: the scripts need it", "error without an address")
}

// least is what a page says of the oldest version of a server.
var least = regexp.MustCompile(`\b(Redis|Valkey|NATS|nats-server)(?: server)? (\d+(?:\.\d+){0,2})(?: (?:or|and) (?:later|newer)| on\b)`)

// Every page names the same versions, and each is named somewhere.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	known := map[string][]string{
		"Redis":  {requirements.Redis().Since, requirements.RedisFunctions().Since},
		"Valkey": {requirements.Valkey().Since},
		"NATS":   {requirements.NATS().Since},
	}
	named := make(map[string]bool)
	pages := []string{"../config/config.go"} // the table of settings is made of it
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../lua/*.md", "../../configs/*.env", "../../configs/examples/*.env"} {
		pages = append(pages, testkit.Must(filepath.Glob(pattern))(t)...)
	}
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		for _, found := range least.FindAllStringSubmatch(string(testkit.Must(os.ReadFile(page))(t)), -1) {
			name, version := found[1], found[2]
			if name == "nats-server" {
				name = "NATS"
			}
			same := func(since string) bool { return since == version || strings.TrimSuffix(since, ".0") == version }
			i := slices.IndexFunc(known[name], same)
			if i < 0 {
				t.Errorf("%s says %q, want one of %q", page, found[0], known[name])
				continue
			}
			named[name+" "+known[name][i]] = true
		}
	}
	for name, versions := range known {
		for _, version := range versions {
			testkit.Equal(t, named[name+" "+version], true, "a page names %s %s", name, version)
		}
	}
}
