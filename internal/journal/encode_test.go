package journal

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestLinesHoldEntries writes and reads random entries with all fields.
func TestLinesHoldEntries(t *testing.T) {
	t.Parallel()
	texts := []string{"", "card declined", `"quoted" \ back`, "a<b>&c", "über\u2028\x00\x1b", "\xff", "line\nfeed"}
	random, zone := rand.New(rand.NewPCG(1, 2)), time.FixedZone("", 3600)
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
					field.Set(reflect.ValueOf(time.Unix(0, random.Int64()).In(zone)))
				}
			}
		}
		want := e
		for _, field := range reflect.ValueOf(&want).Elem().Fields() {
			if at, isTime := reflect.TypeAssert[time.Time](field); isTime {
				field.Set(reflect.ValueOf(at.UTC()))
			} else if field.Kind() == reflect.String {
				field.SetString(strings.ToValidUTF8(field.String(), "\ufffd"))
			}
		}
		want.Instance = "worker-1"
		lines := appendLine(appendLine(nil, e), e)
		testkit.Equal(t, bytes.HasPrefix(lines, []byte(`{"result":"`)), true, "it begins with the result: %s;", lines)
		message := newMessage("notify-journal.x", "worker-1", "", lines)
		testkit.EqualDeeply(t, testkit.Must(decode(message.Header, message.Data, nil))(t), []Entry{want, want}, "entries")
	}
}
