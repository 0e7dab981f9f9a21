package render

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every readable receipt can be rendered.
func FuzzReceipt(f *testing.F) {
	for _, text := range []string{"", "{}", `{"v":1}`, `{"v":1,"ts":"1.1","channel":"C00"}`, `{"v":1,"title":"` + strings.Repeat("x", 500) + `"}`, `{"v":1,"fields":[null]}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d := sink.Delivery{Event: event.Event{ID: "e-2", Title: "t", Status: event.StatusResolved}, Opened: text}
		for _, rewrite := range []bool{false, true} {
			v := NewView(d, sink.OpenedBy(d))
			v.Rewrite = rewrite
			_, err := (*Template)(nil).Event(v)
			testkit.Check(t, err == nil, "%q: %v", text, err)
		}
	})
}
