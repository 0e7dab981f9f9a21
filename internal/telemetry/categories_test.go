package telemetry

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// countLabels returns how many of the categories have a label value of their own.
func countLabels(c *categories, format string, n int) (labelled int) {
	for i := range n {
		if c.label(fmt.Sprintf(format, i)) != other {
			labelled++
		}
	}
	return labelled
}

func TestFirstLevelTakesAtMostItsShare(t *testing.T) {
	t.Parallel()
	c := newCategories(52, []string{"errors", "security.logins"})
	testkit.Equal(t, countLabels(c, "payments.junk-%d", 10_000), 25, "labels of one first level, want half of the unconfigured ones")
	testkit.Equal(t, countLabels(c, "payments.junk-%d", 10_000), 25, "labels of the same first level later")
	testkit.Equal(t, countLabels(c, "basket.%d", 8), 8, "labels of another first level")
	testkit.Equal(t, countLabels(c, "junk-%d", 1000), 17, "labels that were left")
	testkit.Equal(t, c.label("errors"), "errors", "a configured category")
	testkit.Equal(t, c.label("payments.junk-24"), "payments.junk-24", "a category that came in time")
	testkit.Equal(t, c.label("late"), other, "a category that came late")
}

func BenchmarkJunk(b *testing.B) {
	for name, format := range map[string]string{"below one category": "payments.%d", "at the first level": "junk-%d"} {
		b.Run(name, func(b *testing.B) {
			junk := make([]string, 10_000)
			for i := range junk {
				junk[i] = fmt.Sprintf(format, i)
			}
			c := newCategories(50, nil)
			for i := 0; b.Loop(); i++ {
				c.label(junk[i%len(junk)])
			}
		})
	}
}

// TestCountersKeepNoMessage counts by texts that are parts of a message. The labels do not keep the message in memory.
func TestCountersKeepNoMessage(t *testing.T) {
	t.Parallel()
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "events"}, []string{"category", "outcome"})
	p := perCategory{vec, newCategories(10, nil), closedSet{"sent"}}
	category := "payments and the rest of a message"[:8]
	p.add(category, "sent", 1)
	p.add(category, "unknown", 1) // the category is known by now
	registry := prometheus.NewRegistry()
	registry.MustRegister(vec)
	kept := 0
	for _, counter := range testkit.Must(registry.Gather())(t)[0].GetMetric() {
		if label := counter.GetLabel()[0].GetValue(); label == category {
			kept++
			testkit.Equal(t, unsafe.StringData(label) == unsafe.StringData(category), false, "%v is part of the message", label)
		}
	}
	testkit.Equal(t, kept, 2, "counters of the category")
}
