package configs_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
)

// The page of the documentation has every metric with its labels, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	documented, registered := make(map[string]string), make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(notifier_\\w+)` \\| ([^|]*)\\|").FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		documented[row[1]] = sorted(regexp.MustCompile(`\w+`).FindAllString(row[2], -1))
	}

	metrics := telemetry.NewMetrics(telemetry.MetricsOptions{MaxCategories: 1, Levels: []string{"global"}, Policy: "local", Version: "v", Revision: "r"})
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		metrics.Registry().Describe(descriptions)
	}()
	parts := regexp.MustCompile(`fqName: "(notifier_\w+)".* constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)
	for description := range descriptions {
		if found := parts.FindStringSubmatch(description.String()); found != nil {
			constants := regexp.MustCompile(`="[^"]*"`).ReplaceAllString(found[2], "")
			registered[found[1]] = sorted(strings.FieldsFunc(constants+","+found[3], func(r rune) bool { return r == ',' }))
		}
	}
	if !maps.Equal(documented, registered) {
		t.Errorf("documented are\n%v\nand there are\n%v", documented, registered)
	}
	for _, reason := range telemetry.RoomReasons() {
		if row := fmt.Sprintf("(?m)^\\| `notifier_room_pending` .*`%s`", reason); !regexp.MustCompile(row).MatchString(read(t, "../docs/metrics.md")) {
			t.Errorf("what waits for %q is not documented", reason)
		}
	}
}

func sorted(labels []string) string { return strings.Join(slices.Sorted(slices.Values(labels)), " ") }
