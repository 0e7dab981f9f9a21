package consume

import (
	"context"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// countingRecords hands out copies of the delivery record that name themselves.
type countingRecords struct {
	Throttle
	copies  int
	unknown bool
}

func (c *countingRecords) Records(context.Context) throttle.Recorded {
	c.copies++
	if c.unknown {
		return nil
	}
	return func(throttle.Request) bool { return true }
}

// A copy of the delivery record serves the messages that were received before it was begun, and no later ones.
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
				if (recorded == nil) != unknown {
					t.Errorf("%s: the record is known: %t", step.name, recorded != nil)
				}
				if records.copies != step.copies {
					t.Errorf("%s: %d copies, want %d", step.name, records.copies, step.copies)
				}
			}
		})
	}
}
