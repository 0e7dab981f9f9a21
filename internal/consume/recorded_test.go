package consume

import (
	"context"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// countingRecords counts the copies of the delivery record.
type countingRecords struct {
	Throttle
	copies  int
	unknown bool
}

func (c *countingRecords) Records(context.Context) store.Recorded {
	c.copies++
	if c.unknown {
		return nil
	}
	return func(store.Request) bool { return true }
}

// TestRecordCopiesAreShared has a copy of the delivery record serve all messages that were received before the copy began.
func TestRecordCopiesAreShared(t *testing.T) {
	t.Parallel()
	for name, unknown := range map[string]bool{"known": false, "unknown": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			records := &countingRecords{unknown: unknown}
			w := &Worker{throttle: records}
			receive := func() *message { return &message{copiesBegun: w.copies.begun.Load()} }
			first, second := receive(), receive()
			only := func(m *message) func() *message { return func() *message { return m } }
			for _, step := range []struct {
				name    string
				message func() *message
				copies  int
			}{
				{"the first message", only(first), 1},
				{"the first message again", only(first), 1},
				{"one received before the copy", only(second), 1},
				{"one received after the copy", receive, 2},
				{"one received before both copies", only(second), 2},
			} {
				recorded := w.recordedAfter(t.Context(), step.message())
				testkit.Equal(t, recorded == nil, unknown, "%s: record is unknown", step.name)
				testkit.Equal(t, records.copies, step.copies, "%s: copies", step.name)
			}
		})
	}
}
