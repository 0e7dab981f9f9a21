package configs_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/configs"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// loadMessageTemplate holds the default template to what it is a pattern for: an operator's own.
func loadMessageTemplate(t *testing.T, file string) {
	t.Helper()
	if read(t, file) != configs.SlackMessage {
		t.Error("it is not what is built in")
	}
	if _, err := sink.ParseTemplate(configs.SlackMessage); err != nil {
		t.Error(err)
	}
}

// loadSummaryTemplate is for the template that nobody replaces; a sink parses it with its first summary.
func loadSummaryTemplate(t *testing.T, file string) {
	t.Helper()
	if read(t, file) != configs.SlackSummary {
		t.Error("it is not what is built in")
	}
	if line := sink.SummaryLine(sink.Summary{Channel: "#alerts", Dropped: 12}); line == "" {
		t.Error("a summary is empty")
	}
}
