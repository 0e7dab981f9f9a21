package room_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

const subjects = room.Subjects("notify-room")

// stored is the time of a producer's message.
var stored = time.Date(2026, 11, 22, 10, 20, 30, 123456789, time.UTC)

// entry has all fields, as a worker sets them.
func entry() room.Entry {
	return room.Entry{
		Reason: room.Pair, Subject: "notify.payments.cards", ID: "an ID: ü \"x\"", Derived: true, Part: "f1",
		Origin: room.Origin{Stream: "NOTIFICATIONS", Sequence: 7, Stored: stored}, Since: stored.Add(time.Hour).Truncate(time.Millisecond),
		MessageID: "producer's", Until: 9, Behind: 12,
	}
}

// requireRoundTrip writes an entry and reads it.
func requireRoundTrip(t *testing.T, want room.Entry) {
	t.Helper()
	m := want.Message("notify-room.x", nil, []byte("body"))
	got, err := room.Read(m.Header, stored.Add(24*time.Hour))
	testkit.Require(t, err == nil, "%+v: %v", want, err)
	testkit.Check(t, got.Since.Equal(want.Since) && got.Origin.Stored.Equal(want.Origin.Stored) && got.Replayed() == want.Replayed(),
		"times: got %v and %v, want %v and %v", got.Since, got.Origin.Stored, want.Since, want.Origin.Stored)
	got.Since, got.Origin.Stored = want.Since, want.Origin.Stored
	testkit.Equal(t, got, want, "entry")
}

// TestAnyEntryRoundTrip writes and reads random entries.
func TestAnyEntryRoundTrip(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		letters := []rune("aZ0.-_ /:ü\"'{}%*>")
		picked := make([]rune, 1+random.IntN(20))
		for i := range picked {
			picked[i] = letters[random.IntN(len(letters))]
		}
		return "x" + string(picked) + "x" // a header loses the blanks around its value
	}
	reasons := []room.Reason{room.Slot, room.Pair, room.Redis, room.Channel, room.Part, room.Replay}
	for range 2000 {
		e := room.Entry{
			Reason: reasons[random.IntN(len(reasons))], Subject: text(), ID: text(), Derived: random.IntN(2) == 0,
			Origin: room.Origin{Stream: text(), Sequence: random.Uint64(), Stored: time.Unix(0, random.Int64()-random.Int64()).UTC()},
			Until:  random.Uint64() >> random.IntN(65), Behind: random.Uint64() >> random.IntN(65),
		}
		if e.Since = e.Origin.Stored; e.Reason == room.Replay || random.IntN(2) == 0 {
			e.Since = time.UnixMilli(random.Int64N(1 << 42))
		}
		if random.IntN(2) == 0 {
			e.Part, e.MessageID = text(), text()
		}
		requireRoundTrip(t, e)
	}
}

// TestReplayCountsAnew counts the age of a replay from the time when the operator stored it, through later moves too.
func TestReplayCountsAnew(t *testing.T) {
	t.Parallel()
	e := entry()
	e.Reason, e.Since = room.Replay, e.Origin.Stored
	at := stored.Add(48 * time.Hour)
	replay := testkit.Must(room.Read(e.Message("notify-room.replay.payments", nil, nil).Header, at))(t)
	testkit.Check(t, replay.Since.Equal(at.Truncate(time.Millisecond)) && replay.Replayed() && replay.Origin.Stored.Equal(stored),
		"replay: got %+v, want an age from %v and the origin of %v", replay, at, stored)
	replay.Reason = room.Slot
	waiting := testkit.Must(room.Read(replay.Message("notify-room.slot.payments.x", nil, nil).Header, at.Add(time.Hour)))(t)
	testkit.Check(t, waiting.Since.Equal(replay.Since) && waiting.Replayed(), "moved replay: got %+v, want an age from %v", waiting, at)
}

// TestProducersHeadersCommandNothing drops a producer's headers that command the server, the workers or a client of NATS, in any spelling, and
// those that nats.go cannot write.
func TestProducersHeadersCommandNothing(t *testing.T) {
	t.Parallel()
	harmless := nats.Header{"ce-id": {"e"}, "Content-Type": {"text/plain"}, "traceparent": {"t"}}
	producer := maps.Clone(harmless)
	for _, name := range []string{
		"Nats-Rollup", "nats-rollup", "NATS-Schedule", "Nats-Schedule-Target", "nats-schedule-TTL", "Nats-Msg-Id", "Nats-Expected-Stream",
		trusted.Header, "notifier-written-by", room.HeaderOrigin, "notifier-origin", "NOTIFIER-SINCE", room.HeaderPart, room.HeaderDerived, room.HeaderUntil, room.HeaderBehind, "Notifier-Anything",
		"Status", "Description", "Bad Name", "Bad\x1bName", "X-Trace",
	} {
		producer[name] = []string{"hostile"}
	}
	before := maps.Clone(producer)
	e := entry()
	e.Derived, e.Part, e.Until, e.Behind, e.MessageID, e.Since = false, "", 0, 0, "", e.Origin.Stored
	m := e.Message("notify-room.part.payments", producer, []byte("body"))
	for name, values := range m.Header {
		testkit.Check(t, !slices.Contains(values, "hostile"), "header %s: got %q, want none of the producer", name, values)
	}
	for name, want := range harmless {
		testkit.EqualSlices(t, m.Header[name], want, "%s", name)
	}
	got, err := room.Read(m.Header, stored)
	testkit.Check(t, err == nil && !got.Derived && got.Part == "" && got.Until == 0 && got.Behind == 0 && got.MessageID == "" && !got.Replayed(),
		"entry: got %+v (%v), want nothing of the producer", got, err)
	testkit.Equal(t, len(producer), len(before), "producer's headers afterwards")
}

func TestReadNonsense(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(nats.Header){
		"no mark":                    func(h nats.Header) { h.Del(trusted.Header) },
		"no subject":                 func(h nats.Header) { h.Del(room.HeaderSubject) },
		"no ID":                      func(h nats.Header) { h.Del(room.HeaderID) },
		"no origin":                  func(h nats.Header) { h.Del(room.HeaderOrigin) },
		"an origin without stream":   func(h nats.Header) { h.Set(room.HeaderOrigin, "1 2") },
		"an origin, stream empty":    func(h nats.Header) { h.Set(room.HeaderOrigin, "1 2 ") },
		"an origin, time no number":  func(h nats.Header) { h.Set(room.HeaderOrigin, "x 2 S") },
		"an origin, time too large":  func(h nats.Header) { h.Set(room.HeaderOrigin, "9223372036854775808 2 S") },
		"an origin, sequence signed": func(h nats.Header) { h.Set(room.HeaderOrigin, "1 -2 S") },
		"a since that is no number":  func(h nats.Header) { h.Set(room.HeaderSince, "now") },
		"an until that is no number": func(h nats.Header) { h.Set(room.HeaderUntil, "x") },
		"a behind that is negative":  func(h nats.Header) { h.Set(room.HeaderBehind, "-1") },
	} {
		header := entry().Message("x", nil, nil).Header
		change(header)
		if got, err := room.Read(header, stored); err == nil || got != (room.Entry{}) {
			t.Errorf("%s: got %+v, %v, want an error alone", name, got, err)
		}
	}
	_, err := room.Read(nil, stored)
	testkit.Fails(t, "no headers", err, nil)
}

// TestSubjects matches each kind of subject in the room with the filters of the consumers.
func TestSubjects(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, room.Under("notify"), subjects, "the room below notify")
	for _, reason := range []room.Reason{room.Slot, room.Pair, room.Redis} {
		schedule, target := subjects.Schedule(reason, "payments", "some message")
		other, _ := subjects.Schedule(reason, "payments", "another message")
		testkit.Equal(t, other == schedule, false, "two messages have the schedule %s", schedule)
		requireTaken(t, schedule, reason, taken{waiting: true, undecided: reason == room.Redis})
		requireTaken(t, target, reason, taken{ready: true, undecided: reason == room.Redis})
	}
	for _, reason := range []room.Reason{room.Part, room.Replay} {
		requireTaken(t, subjects.Queue(reason, "payments"), reason, taken{waiting: true, ready: true, undecided: true})
	}
	token := room.Token("C1")
	held := subjects.Channel(token, "payments")
	requireTaken(t, held, room.Channel, taken{waiting: true})
	testkit.Check(t, matches(subjects.ChannelFilter(token), held) && !matches(subjects.ChannelFilter(room.Token("C2")), held),
		"channel %s: got wrong filters, want that of C1 alone", held)
	got, ok := subjects.ChannelOf(held)
	testkit.Check(t, ok && got == token, "channel of %s: got %s, %t, want %s", held, got, ok, token)
	for _, subject := range []string{"notify.payments", "notify-room", "notify-roommate.part.payments", "notify-room.part", "notify-room.due.slot", "notify-room.channel." + token} {
		requireFirst(t, subject, "")
	}
	for _, subject := range []string{"notify.payments", subjects.Queue(room.Part, "payments"), "notify-roommate.channel.x.y"} {
		got, ok := subjects.ChannelOf(subject)
		testkit.Check(t, !ok, "channel of %s: got %q, want none", subject, got)
	}
}

// taken says which filters take a subject.
type taken struct{ waiting, ready, undecided bool }

// requireTaken compares the filters that take a subject of the first level payments.
func requireTaken(t *testing.T, subject string, reason room.Reason, want taken) {
	t.Helper()
	got := taken{
		waiting: matches(subjects.Waiting(reason), subject), ready: matchesAny(subjects.Ready(), subject), undecided: matchesAny(subjects.Undecided(), subject),
	}
	testkit.Equal(t, got, want, "filters that take %s", subject)
	requireFirst(t, subject, "payments")
}

func requireFirst(t *testing.T, subject, want string) {
	t.Helper()
	testkit.Equal(t, subjects.First(subject), want, "the first level of %s", subject)
	if want != "" && !matches(subjects.All(), subject) {
		t.Errorf("%s: got outside of %s, want inside", subject, subjects.All())
	}
}

// TestToken makes tokens of any channel. A token can be a part of a subject or of a consumer's name, and does not show the channel.
func TestToken(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, channel := range []string{"", "C1", "C2", "#a b", "https://hooks.example/services/secret", "*", ">", "a.b", strings.Repeat("x", 10000)} {
		token := room.Token(channel)
		testkit.Check(t, len(token) == 16 && strings.Trim(token, "0123456789abcdef") == "" && token == room.Token(channel),
			"token of %.20q: got %q, want 16 hexadecimal digits", channel, token)
		other, known := seen[token]
		testkit.Check(t, !known, "token of %q: got that of %q, want another one", channel, other)
		seen[token] = channel
	}
}

// TestScheduleAt keeps the nanoseconds of the time.
func TestScheduleAt(t *testing.T) {
	t.Parallel()
	m := entry().Message("notify-room.slot.payments.x", nil, nil)
	room.ScheduleAt(m, "notify-room.due.slot.payments.x", stored.In(time.FixedZone("somewhere", 3600)))
	if due, ok := room.DueAt(m.Header); !ok || !due.Equal(stored) {
		t.Errorf("time of the schedule: got %v, %t, want %v", due, ok, stored)
	}
	if due, ok := room.DueAt(entry().Message("x", nil, nil).Header); ok {
		t.Errorf("time of a message without a schedule: got %v, want none", due)
	}
	at, err := time.Parse(time.RFC3339Nano, strings.TrimPrefix(m.Header.Get("Nats-Schedule"), "@at "))
	testkit.Check(t, err == nil && at.Equal(stored) && m.Header.Get("Nats-Schedule-Target") == "notify-room.due.slot.payments.x",
		"headers of the schedule: got %v (%v), want %v", m.Header, err, stored)
}

// matches reports whether a filter, which may end in ">", takes a subject.
func matches(filter, subject string) bool {
	below, wild := strings.CutSuffix(filter, ">")
	return subject == filter || wild && strings.HasPrefix(subject, below) && len(subject) > len(below)
}

func matchesAny(filters []string, subject string) bool {
	return slices.ContainsFunc(filters, func(filter string) bool { return matches(filter, subject) })
}

// FuzzRead reads any headers. The result is an error, or an entry that survives a round trip.
func FuzzRead(f *testing.F) {
	f.Add("slot", "notify.payments", "e", "true", "f1", "1700000000000000000 7 S", "1700000000000", "12", "m")
	f.Add("replay", "notify", "e", "", "", "0 0 S", "", "", "")
	f.Add("", "", "", "", "", "", "", "", "")
	f.Add("nonsense", "\x00", "é", "TRUE", " x ", "-1 18446744073709551615 a b", "-9223372036854775808", "18446744073709551615", "\n")
	f.Add("part", "notify.x", "e", "false", "p", "9223372036854775807 1 S", "9223372036854775807", "0", "x")
	f.Fuzz(func(t *testing.T, reason, subject, id, derived, part, origin, since, behind, messageID string) {
		header := nats.Header{}
		for name, value := range map[string]string{
			room.HeaderReason: reason, room.HeaderSubject: subject, room.HeaderID: id, room.HeaderDerived: derived, room.HeaderPart: part,
			room.HeaderOrigin: origin, room.HeaderSince: since, room.HeaderUntil: behind, room.HeaderBehind: behind, room.HeaderMessageID: messageID,
		} {
			if value != "" {
				header.Set(name, value)
			}
		}
		first, err := room.Read(header, stored)
		if err != nil {
			testkit.Equal(t, first, (room.Entry{}), "entry beside an error")
			return
		}
		second, err := room.Read(first.Message("x", header, nil).Header, stored)
		testkit.Require(t, err == nil, "second read of %+v: got %v, want no error", first, err)
		for _, e := range []*room.Entry{&first, &second} {
			e.Since = e.Since.UTC()
		}
		testkit.Equal(t, fmt.Sprintf("%+v", second), fmt.Sprintf("%+v", first), "the second read")
	})
}
