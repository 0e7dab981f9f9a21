package room

import (
	"maps"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Action is what an operator wants to become of an event that waits.
type Action string

// The actions.
const (
	Release Action = "release" // post it without slots
	Drop    Action = "drop"    // end it without a notification
)

// Order is an operator's decision about an event that waits. The event carries the order until it has an outcome.
type Order struct {
	Action Action // "" for no order
	By     string // name of the operator, in one line
}

// String is the order in the form of a header; "" for no order.
func (o Order) String() string {
	if o.Action == "" {
		return ""
	}
	return string(o.Action) + " " + o.By
}

// readOrder reads what String writes. An unknown action is no order.
func readOrder(header nats.Header) Order {
	action, by, _ := strings.Cut(header.Get(HeaderOrder), " ")
	if order := (Order{Action: Action(action), By: by}); order.Action == Release || order.Action == Drop {
		return order
	}
	return Order{}
}

// Advance returns a message that replaces a message schedule and is due at once. The message carries an order, if there is one. The server
// must store it only if the schedule is still the last message on its subject: the event is then in one place, whoever else acts.
func Advance(schedule *jetstream.RawStreamMsg, order Order) *nats.Msg {
	advanced := &nats.Msg{Subject: schedule.Subject, Header: maps.Clone(schedule.Header), Data: schedule.Data}
	advanced.Header.Del(nats.MsgIdHdr) // the server knows the name already
	if order.Action != "" {
		advanced.Header.Set(HeaderOrder, order.String())
	}
	ScheduleAt(advanced, advanced.Header.Get(headerScheduleTarget), schedule.Time) // a past time by the clock of the server
	return advanced
}
