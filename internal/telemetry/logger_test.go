package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestLogger(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := func(format string) {
		logger := telemetry.NewLogger(&out, slog.LevelInfo, format)
		logger.Debug("below the level")
		logger.Info("started", "instance", "a", "grace", 5*time.Second)
	}
	log("json")
	var record map[string]any
	if err := json.Unmarshal(out.Bytes(), &record); err != nil {
		t.Fatalf("got %s, want one line of JSON", out.String())
	}
	testkit.Check(t, record["msg"] == "started" && record["level"] == "INFO" && record["instance"] == "a" && record["grace"] == "5s" && record["time"] != nil,
		"got %v, want the time, level, message, instance and the grace as text", record)

	out.Reset()
	log("text")
	if line := out.String(); !strings.HasSuffix(line, "level=INFO msg=started instance=a grace=5s\n") || strings.Count(line, "\n") != 1 {
		t.Errorf("got %s, want one line of text", line)
	}
}

// A text of a producer neither commands the terminal that shows the log nor changes the order of its line. In JSON nothing of it is lost.
func TestLogCommandsNoTerminal(t *testing.T) {
	t.Parallel()
	const hostile = "a\u009b31mb\u202ec\x1b[2Jd\U000e0041e\nfü\u2028"
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		logger := telemetry.NewLogger(&out, slog.LevelInfo, format)
		logger.Warn("refused", "path", hostile, "error", errors.New(hostile), "paths", []string{hostile})
		if line := strings.TrimSuffix(out.String(), "\n"); strings.ContainsFunc(line, func(r rune) bool { return !strconv.IsPrint(r) }) {
			t.Errorf("got %q, want printable characters alone", line)
		}
		if format == "text" {
			continue
		}
		var record struct {
			Path, Error string
			Paths       []string
		}
		testkit.NoError(t, json.Unmarshal(out.Bytes(), &record))
		testkit.EqualSlices(t, append(record.Paths, record.Path, record.Error), []string{hostile, hostile, hostile}, "texts in the record")
	}
}
