package telemetry

import (
	"io"
	"log/slog"
)

// NewLogger returns a logger that writes one line for each record at or above level to w:
// "text" is key=value pairs for people, any other format JSON. It guards w with a lock of its
// own. It does not look for secrets: whoever logs one must wrap it in a type that masks itself.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
