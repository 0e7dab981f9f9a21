package selfreport

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// Comparison logs when the shared settings of the workers begin and cease to differ.
type Comparison struct {
	Conn       *nats.Conn
	Deployment string
	Gauge      func(differing int) // set at each comparison
	Logger     *slog.Logger

	logged string // the variables and values of the last warning; "" if no settings differ
	asked  int    // number of unanswered questions to other workers
}

// unanswered is how many questions may stay without an answer before the log reports unknown differences.
const unanswered = 3

// Compare logs once which settings differ, if a number of other workers announces other hashes of its settings. If no worker answers, the
// settings are not compared.
func (c *Comparison) Compare(ctx context.Context, answering, differing int) {
	c.Gauge(differing)
	if answering == 0 {
		return
	}
	if differing == 0 {
		if c.logged != "" {
			c.Logger.Info("settings of the workers are equal again")
		}
		c.logged, c.asked = "", 0
		return
	}
	reports, _ := status.Workers(ctx, c.Conn, c.Deployment) // without an answer, no worker is known to differ
	found := inspect.Mismatches(reports)
	values := "" // without the names of workers, which come and go
	for _, m := range found {
		values += fmt.Sprint(m.Variable, slices.Sorted(maps.Keys(m.Values)))
	}
	if len(found) == 0 {
		if c.asked++; c.asked != unanswered || c.logged != "" {
			return
		}
		values = "not known"
	}
	if values == c.logged {
		return
	}
	c.logged = values
	c.Logger.Warn("settings of the workers differ",
		"differences", cmp.Or(inspect.DescribeMismatches(found), "not known: no other worker answers on "+fleet.StatusSubject))
}
