package journal

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

// BenchmarkEncode compares appendLine with encoding/json. A worker encodes entries beside a flood of events.
func BenchmarkEncode(b *testing.B) {
	now := time.Date(2026, 11, 22, 9, 0, 0, 1000, time.UTC)
	e := Entry{
		ID: "payments/7f3c2a", Stream: "NOTIFICATIONS", Sequence: 123_456, Category: "payments.failed", Title: "Payment failed",
		Result: Dropped, Level: "category", Path: "payments.failed", Limit: "10/30m", Used: 10, Size: 10, Next: now,
		Revision: "1:2", Stored: now, Decided: now, Channel: "#payments", Round: 42,
	}
	b.Run("appendLine", func(b *testing.B) {
		b.ReportAllocs()
		var line []byte
		for b.Loop() {
			line = appendLine(line[:0], &e)
		}
	})
	b.Run("encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		for b.Loop() {
			line.Reset()
			if err := encoder.Encode(&e); err != nil {
				b.Fatal(err)
			}
		}
	})
}
