package journal

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestLinesHoldEntries writes and reads random entries with all fields.
func TestLinesHoldEntries(t *testing.T) {
	t.Parallel()
	texts := []string{"", "card declined", `"quoted" \ back`, "a<b>&c", "über\u2028\x00\x1b", "\xff", "line\nfeed"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var e Entry
		fields := reflect.ValueOf(&e).Elem()
		for _, field := range fields.Fields() {
			switch field.Kind() {
			case reflect.String:
				field.SetString(texts[random.IntN(len(texts))])
			case reflect.Int, reflect.Int64:
				field.SetInt(random.Int64N(3) * random.Int64N(1<<40))
			case reflect.Uint64:
				field.SetUint(random.Uint64N(3) * random.Uint64())
			case reflect.Bool:
				field.SetBool(random.IntN(2) == 0)
			default:
				if random.IntN(2) == 0 {
					field.Set(reflect.ValueOf(time.Unix(0, random.Int64()).UTC()))
				}
			}
		}
		var want Entry // as encoding/json reads and writes it
		testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(e))(t), &want))
		want.Instance = "worker-1"
		message := pile{lines: appendLine(appendLine(nil, &e), &e)}.message("notify-journal.x", "worker-1", "")
		testkit.EqualDeeply(t, testkit.Must(decode(message.Header, message.Data, nil))(t), []Entry{want, want}, "entries")
	}
}

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
