package event_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestIdentify wants the identity and the cost that decoding gives.
func TestIdentify(t *testing.T) {
	t.Parallel()
	messages := []event.Message{
		message(`{"title": "x"}`), message(`{"title": "x", "id": "a"}`), message(`{"title": "x", "cost": 3}`), message(`{"title": "x", "id": "a", "cost": 3}`), message("text"), message(alertmanager), message(grafana),
		message(`{"id": "group", "alerts": [` + "{" + alertX + "}, {" + alertX + `}]}`),
		message(`{"id": "group", "cost": 2, "alerts": [` + "{" + alertX + `}]}`), message(`{"title": "x", "id": "a", "cost": 2, "alerts": [1]}`),
		message(`{"specversion": "1.0", "type": "t", "source": "s", "id": "c", "data": {"title": "x", "cost": 2}}`),
		withHeader(message(`{"title": "x", "id": "a"}`), "Nats-Msg-Id", "header"),
		withHeader(message("x"), "ce-specversion", "1.0", "ce-type", "t", "ce-source", "s", "ce-id", "b"),
	}
	inRoom := message(`{"title": "x", "id": "a"}`)
	inRoom.Room = &event.RoomIdentity{ID: "noted", Part: "p"}
	for _, m := range append(messages, inRoom) {
		got := decoder().Identify(m)
		want := testkit.Must(decoder().Decode(m))(t)
		testkit.Equal(t, got.ShownID(), want.ShownID(), "ID of %s", m.Data)
		testkit.Equal(t, got.Derived, want.Derived, "whether the ID of %s is derived", m.Data)
		testkit.Equal(t, got.Cost, want.Cost, "cost of %s", m.Data)
		testkit.Equal(t, got.Category, want.Category, "category of %s", m.Data)
	}
}
