package event_test

import (
	"strings"
	"testing"
	"unicode"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestIdentity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		e    event.Event
		want string
	}{
		{event.Event{Category: "payments.refunds", ID: "order 1"}, "payments.refunds order 1"},
		{event.Event{ID: "order"}, " order"},
		{event.Event{Category: "payments", ID: "S:1", Part: "abc"}, "payments#ba7816bf8f01cfea S:1"}, // the well-known SHA-256 of "abc"
		{event.Event{Category: "payments", ID: "ba7816bf8f01cfea S:1"}, "payments ba7816bf8f01cfea S:1"},
		{event.Event{ID: "S:1", Part: "abc"}, "#ba7816bf8f01cfea S:1"},
	} {
		testkit.Equal(t, test.e.Identity(), test.want, "%+v: identity", test.e)
	}
}

func TestPair(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		e        event.Event
		pair     string
		resolves bool
	}{
		{event.Event{Category: "a", Key: "k", Status: event.StatusFiring}, "a\nk", false},
		{event.Event{Category: "a", Key: "k", Status: event.StatusResolved}, "a\nk", true},
		{event.Event{Category: "a.b", Key: "k", Status: event.StatusResolved}, "a.b\nk", true},
		{event.Event{Category: "a", Key: "k"}, "", false},
		{event.Event{Category: "a", Status: event.StatusResolved}, "", false},
	} {
		testkit.Equal(t, test.e.Pair(), test.pair, "%+v: pair", test.e)
		testkit.Equal(t, test.e.Resolves(), test.resolves, "%+v: it resolves", test.e)
	}
}

// An ID that a reader copies from a page, a terminal or Slack is the ID of the event: what package plain does not show is in no ID.
func TestIDIsShownAsItIs(t *testing.T) {
	t.Parallel()
	for r := range rune(unicode.MaxRune + 1) {
		if id := "a" + string(r) + "b"; event.StableID(id) == id && plain.Line(id) != id {
			t.Errorf("the ID %q is shown as %q", id, plain.Line(id))
		}
	}
}

func TestDecodeID(t *testing.T) {
	t.Parallel()
	const body = `{"text":"x","id":"in-body"}`
	const inEnvelope = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + body + `}`
	hash := event.StableID
	long := strings.Repeat("i", 65)
	for _, test := range []struct {
		name    string
		m       event.Message
		want    string
		derived bool
	}{
		{"none", message("x"), "NOTIFICATIONS:7", true},
		{"body", message(body), "in-body", false},
		{"header over body", withHeader(message(body), "Nats-Msg-Id", "h"), "h", false},
		{"header in lower case", withHeader(message(body), "nats-msg-id", "h"), "h", false},
		{"the canonical header wins", withHeader(message(body), "NATS-MSG-ID", "a", "nats-msg-id", "b", "Nats-Msg-Id", "h"), "h", false},
		{"else the first in byte order", withHeader(message(body), "nats-msg-id", "b", "NATS-MSG-ID", "h"), "h", false},
		{"the first value wins", withHeader(message(body), "Nats-Msg-Id", "h", "Nats-Msg-Id", "i"), "h", false},
		{"an empty header is absent", withHeader(message(body), "Nats-Msg-Id", ""), "in-body", false},
		{"an empty body id is absent", message(`{"text":"x","id":""}`), "NOTIFICATIONS:7", true},
		{"envelope over body", message(inEnvelope), "/s/1", false},
		{"header over envelope", withHeader(message(inEnvelope), "Nats-Msg-Id", "h"), "h", false},
		{"the notifier's headers are a producer's", withHeader(message(body), "Notifier-Id", "n", "Notifier-Derived", "true"), "in-body", false},
		{"the notifier's headers alone", withHeader(message("x"), "Notifier-Id", "n", "notifier-id", "n"), "NOTIFICATIONS:7", true},
		{"the room over all", inRoom(withHeader(message(inEnvelope), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "r"}), "r", false},
		{"a derived ID in the room", inRoom(withHeader(message(body), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "S:9", Derived: true}), "S:9", true},
		{"no ID in the room", inRoom(message(body), event.RoomIdentity{Derived: true}), "in-body", false},
		{"a long ID in the room", inRoom(message(body), event.RoomIdentity{ID: long}), hash(long), false},
		{"64 bytes", message(`{"text":"x","id":"` + long[:64] + `"}`), long[:64], false},
		{"65 bytes", message(`{"text":"x","id":"` + long + `"}`), hash(long), false},
		{"line feed", message(`{"text":"x","id":"a\nb"}`), hash("a\nb"), false},
		{"tab", message(`{"text":"x","id":"a\tb"}`), hash("a\tb"), false},
		{"outer blanks", message(`{"text":"x","id":" a "}`), hash(" a "), false},
		{"a blank", message(`{"text":"x","id":"a b"}`), "a b", false},
		{"two blanks", message(`{"text":"x","id":"a  b"}`), hash("a  b"), false},
		{"a wide blank", message(`{"text":"x","id":"a\u3000b"}`), hash("a\u3000b"), false},
		{"a mark that turns the direction", message(`{"text":"x","id":"a\u202eb"}`), hash("a\u202eb"), false},
		{"64 bytes that end in a whole character", message(`{"text":"x","id":"` + long[:62] + `é"}`), long[:62] + "é", false},
		{"65 bytes, a character across the bound", message(`{"text":"x","id":"` + long[:63] + `é"}`), hash(long[:63] + "é"), false},
		{"C1 control", message(`{"text":"x","id":"a\u0085"}`), hash("a\u0085"), false},
		{"invalid UTF-8 in the header", withHeader(message("x"), "Nats-Msg-Id", "a\xff"), hash("a\xff"), false},
		{"not ASCII", message(`{"text":"x","id":"é🔥"}`), "é🔥", false},
		{"long stream name", event.Message{Subject: "notify.a", Data: []byte("x"), Stream: long, Sequence: 1}, hash(long + ":1"), true},
	} {
		got, err := decoder().Decode(test.m)
		testkit.Check(t, err == nil && got.ID == test.want && got.Derived == test.derived,
			"%s: got ID %q, derived %t, %v, want %q, %t", test.name, got.ID, got.Derived, err, test.want, test.derived)
	}
	testkit.Equal(t, hash("a\nb"), "sha256:7e18f737311b2dc3b2f269dd78396b0351f14fb6", "hash of an ID")
}

func inRoom(m event.Message, identity event.RoomIdentity) event.Message {
	m.Room = &identity
	return m
}

func TestDecodePart(t *testing.T) {
	t.Parallel()
	headers := []string{"Notifier-Part", "p", "Notifier-Id", "i"}
	for _, test := range []struct {
		name string
		m    event.Message
		part string
	}{
		{"a producer's header", withHeader(message("x"), headers...), ""},
		{"the room", inRoom(message("x"), event.RoomIdentity{ID: "i", Part: "fingerprint"}), "fingerprint"},
		{"the room beside headers", inRoom(withHeader(message("x"), headers...), event.RoomIdentity{ID: "i"}), ""},
		{"the room beside a fault", inRoom(message("{"), event.RoomIdentity{ID: "i", Part: "fingerprint"}), "fingerprint"},
	} {
		got, _ := decoder().Decode(test.m)
		testkit.Equal(t, got.Part, test.part, "%s: part", test.name)
	}
}

func TestDecodeIDBesideAFault(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		m    event.Message
		want string
	}{
		{"bad JSON", message("{"), "NOTIFICATIONS:7"},
		{"bad JSON, header", withHeader(message("{"), "Nats-Msg-Id", "h"), "h"},
		{"too large, header", withHeader(message(strings.Repeat("x", maxBytes+1)), "nats-msg-id", "h"), "h"},
		{"too large, binary CloudEvent", withHeader(message(strings.Repeat("x", maxBytes+1)), "ce-id", "1", "ce-source", "/s"), "/s/1"},
		{"bad field", message(`{"text":"x","id":"b","cost":0}`), "b"},
		{"bad id", message(`{"text":"x","id":1}`), "NOTIFICATIONS:7"},
		{"empty", message(`{"id":"b"}`), "b"},
		{"bad envelope", message(`{"specversion":"1.0","id":"1","source":"/s","data":"x"}`), "/s/1"},
		{"bad version", message(`{"specversion":"2.0","id":"1","source":"/s","type":"t","data":"x"}`), "/s/1"},
		{"bad JSON in the room", inRoom(withHeader(message("{"), "Nats-Msg-Id", "h"), event.RoomIdentity{ID: "r"}), "r"},
		{"half an envelope", message(`{"specversion":"1.0","id":"1","type":"t","data":"x"}`), "NOTIFICATIONS:7"},
	} {
		got, err := decoder().Decode(test.m)
		testkit.Check(t, err != nil && got.ID == test.want, "%s: got ID %q, %v, want %q beside a fault", test.name, got.ID, err, test.want)
	}
}
