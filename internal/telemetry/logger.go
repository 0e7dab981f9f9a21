package telemetry

import (
	"io"
	"log/slog"
)

// NewLogger returns a logger that writes one line to w for each record at or above level: key=value pairs for people if the format is
// "text", JSON otherwise. The logger guards w with its own lock. It does not look for secrets: they need a type that masks them.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
