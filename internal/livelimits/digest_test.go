package livelimits

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// A digest shows the duration of a limit. The end of a limit has no author.
func TestDigestOfEnds(t *testing.T) {
	t.Parallel()
	at := time.Now()
	change := overrides.Change{Name: overrides.Name{Pattern: "payments"}, Value: "5/1h", By: "ann", Changed: at}
	want := summary.Change{At: at, Limit: "payments", Value: "5/1h", By: "ann"}
	testkit.Equal(t, digestChange(change), want, "without an end")
	change.Until, want.Value = at.Add(2*time.Hour), "5/1h for 2h"
	testkit.Equal(t, digestChange(change), want, "with an end")
	change.Until, change.Ended, want.Value, want.By = time.Time{}, 7, "5/1h again", ""
	testkit.Equal(t, digestChange(change), want, "an end")
	change.Value, want.Value = "", ""
	testkit.Equal(t, digestChange(change), want, "an end after which nothing is set")
}
