package telemetry

import (
	"bytes"
	"io"
	"log/slog"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// NewLogger returns a logger that writes one line to w for each record at or above level: key=value pairs for people if the format is
// "text", JSON otherwise. The logger guards w with its own lock. It does not look for secrets: they need a type that masks them.
// Durations are text such as "5s" in both formats. No line contains a character that commands a terminal or changes the order of the text, since
// subjects, paths and errors may have texts of producers.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(escaping{w}, options))
}

// escaping writes lines of JSON and escapes what is not printable. The JSON handler escapes only ASCII, and writes other control characters and
// marks of direction as they are. They occur in strings alone, where JSON has escapes for them.
type escaping struct{ w io.Writer }

func (e escaping) Write(line []byte) (int, error) {
	if !bytes.ContainsFunc(line, isUnprintable) {
		return e.w.Write(line)
	}
	var escaped []byte
	for _, r := range string(line) {
		switch {
		case !isUnprintable(r):
			escaped = utf8.AppendRune(escaped, r)
		case r > maxBasic:
			high, low := utf16.EncodeRune(r)
			escaped = appendEscape(appendEscape(escaped, high), low)
		default:
			escaped = appendEscape(escaped, r)
		}
	}
	if _, err := e.w.Write(escaped); err != nil {
		return 0, err
	}
	return len(line), nil
}

// maxBasic is the last character with a single escape.
const maxBasic = '\uffff'

func isUnprintable(r rune) bool { return r >= utf8.RuneSelf && !strconv.IsPrint(r) }

func appendEscape(line []byte, unit rune) []byte {
	return append(append(line, '\\', 'u'), strconv.FormatInt(0x10000+int64(unit), 16)[1:]...)
}

// readable replaces a duration with its text, because the JSON handler writes nanoseconds.
func readable(_ []string, attribute slog.Attr) slog.Attr {
	if attribute.Value.Kind() == slog.KindDuration {
		attribute.Value = slog.StringValue(attribute.Value.Duration().String())
	}
	return attribute
}
