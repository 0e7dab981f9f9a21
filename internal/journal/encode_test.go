package journal

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// Every field of an entry is written, whatever it holds, and read as it was.
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
		var want Entry // as the package that encodes any value does it
		testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(e))(t), &want))
		want.Instance = "worker-1"
		message := batch{data: compressed(appendLine(appendLine(nil, &e), &e))}.message("notify-journal.x", "worker-1")
		testkit.EqualDeeply(t, testkit.Must(decode(message.Header, message.Data, nil))(t), []Entry{want, want}, "entries")
	}
}

// nowhere takes messages and forgets them.
type nowhere struct{}

func (nowhere) PublishMsg(context.Context, *nats.Msg, ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return &jetstream.PubAck{}, nil
}

// BenchmarkRecord records and publishes events that were sent, each by itself: so many of a category in a second.
func BenchmarkRecord(b *testing.B) {
	now := time.Now().UTC()
	for _, perSecond := range []int{SinglesPerCategory, 10_000} {
		b.Run(fmt.Sprint(perSecond), func(b *testing.B) {
			b.ReportAllocs()
			r := NewRecorder(Options{Publisher: nowhere{}, Names: names, Instance: "worker-1"})
			for i := range b.N {
				r.Record("payments.refunds", Sent, "", 1, func(_ int, inFull bool) Entry {
					e := Entry{ID: "evt-4711", Stream: "NOTIFICATIONS", Sequence: uint64(i), Stored: now}
					if inFull {
						e.Title, e.Revision, e.Decided, e.Channel, e.Receipt = "card declined", "1:2", now, "#payments", "C012345 1792.000100"
					}
					return e
				})
				if i%perSecond == perSecond-1 {
					r.publish(b.Context())
				}
			}
		})
	}
}
