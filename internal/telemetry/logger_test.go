package telemetry_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/telemetry"
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
	if record["msg"] != "started" || record["level"] != "INFO" || record["instance"] != "a" || record["grace"] != "5s" || record["time"] == nil {
		t.Errorf("got %v, want the time, level, message, instance and the grace as text", record)
	}

	out.Reset()
	log("text")
	if line := out.String(); !strings.HasSuffix(line, "level=INFO msg=started instance=a grace=5s\n") || strings.Count(line, "\n") != 1 {
		t.Errorf("got %s, want one line of text", line)
	}
}
