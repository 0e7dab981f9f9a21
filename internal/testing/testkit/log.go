package testkit

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Record is one record of a [Log].
type Record struct {
	Level      slog.Level
	Message    string
	Attributes map[string]string // the attributes of the logger and of the record
	Line       string            // what slog's text handler makes of all of it
}

// Log records what its logger writes, at all levels. A failing test prints it.
type Log struct {
	mu      sync.Mutex
	records []Record
	line    bytes.Buffer
}

// NewLog makes an empty log.
func NewLog(t testing.TB) *Log {
	t.Helper()
	l := &Log{}
	t.Cleanup(func() {
		if text := l.String(); text != "" && t.Failed() {
			t.Logf("log:\n%s", text)
		}
	})
	return l
}

// Logger returns a logger of the log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(handler{Handler: slog.NewTextHandler(&l.line, &slog.HandlerOptions{Level: slog.LevelDebug}), log: l})
}

// Records returns the records so far.
func (l *Log) Records() []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.records)
}

// String returns all lines.
func (l *Log) String() string {
	var text strings.Builder
	for _, r := range l.Records() {
		text.WriteString(r.Line)
	}
	return text.String()
}

// Lines returns the lines that contain a text.
func (l *Log) Lines(containing string) []string {
	var lines []string
	for _, r := range l.Records() {
		if strings.Contains(r.Line, containing) {
			lines = append(lines, r.Line)
		}
	}
	return lines
}

// Count returns the number of lines that contain a text.
func (l *Log) Count(containing string) int { return len(l.Lines(containing)) }

// Want compares all messages so far.
func (l *Log) Want(t testing.TB, messages ...string) {
	t.Helper()
	var got []string
	for _, r := range l.Records() {
		got = append(got, r.Message)
	}
	if !slices.Equal(got, messages) {
		t.Errorf("logged %q, want %q", got, messages)
	}
}

// WantCount compares the number of lines that contain a text.
func (l *Log) WantCount(t testing.TB, want int, containing string) {
	t.Helper()
	if got := l.Count(containing); got != want {
		t.Errorf("%d lines of the log contain %q, want %d", got, containing, want)
	}
}

// handler lets the text handler write the line, and adds the record to the log.
type handler struct {
	slog.Handler
	log        *Log
	attributes []slog.Attr // of the logger
}

// Handle keeps a record.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	h.log.line.Reset()
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	attributes := make(map[string]string)
	for _, a := range h.attributes {
		attributes[a.Key] = a.Value.String()
	}
	r.Attrs(func(a slog.Attr) bool {
		attributes[a.Key] = a.Value.String()
		return true
	})
	h.log.records = append(h.log.records, Record{Level: r.Level, Message: r.Message, Attributes: attributes, Line: h.log.line.String()})
	return nil
}

// WithAttrs returns a handler that adds these attributes to its records.
func (h handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	return handler{Handler: h.Handler.WithAttrs(attributes), log: h.log, attributes: append(slices.Clone(h.attributes), attributes...)}
}

// WithGroup puts later attributes into a group. The group appears in [Record.Line] only.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{Handler: h.Handler.WithGroup(name), log: h.log, attributes: h.attributes}
}
