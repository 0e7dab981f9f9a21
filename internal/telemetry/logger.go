package telemetry

import (
	"io"
	"log/slog"
)

// NewLogger returns a logger that writes one line to w for each record at or above level: key=value pairs for people if the format is
// "text", JSON otherwise. The logger guards w with its own lock. It does not look for secrets: they need a type that masks them.
// Durations are text such as "5s" in both formats.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// readable replaces a duration with its text, because the JSON handler writes nanoseconds.
func readable(_ []string, attribute slog.Attr) slog.Attr {
	if attribute.Value.Kind() == slog.KindDuration {
		attribute.Value = slog.StringValue(attribute.Value.Duration().String())
	}
	return attribute
}
