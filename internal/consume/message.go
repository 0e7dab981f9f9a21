package consume

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// message is a stored message in this worker's hands.
type message struct {
	jetstream.Msg
	stream    string
	sequence  uint64
	stored    time.Time
	delivered uint64 // how often the consumer has delivered it, this time included
	category  string // "" until known, or if it is none
	waited    bool   // it waited for a slot, and has come back

	connection uint64 // how often the connection had been lost when it was asked for

	mu       sync.Mutex
	deadline time.Time // until then it is certainly this worker's
	extended time.Time // when the deadline was last set
}

// newMessage takes over a message that was asked for at `asked`: the server started its acknowledgement wait later.
func newMessage(msg jetstream.Msg, asked time.Time, connection uint64, ackWait time.Duration) (*message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	return &message{
		Msg:        msg,
		stream:     meta.Stream,
		sequence:   meta.Sequence.Stream,
		stored:     meta.Timestamp,
		delivered:  meta.NumDelivered,
		waited:     msg.Headers().Get(headerDeadline) != "",
		connection: connection,
		deadline:   asked.Add(ackWait),
		extended:   asked,
	}, nil
}

// left is how long the message is still this worker's.
func (m *message) left() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.deadline)
}

// sinceExtended is how long ago the lease was last renewed.
func (m *message) sinceExtended() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.extended)
}

func (m *message) extend(asked time.Time, ackWait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deadline, m.extended = asked.Add(ackWait), asked
}

func (m *message) decode(d event.Decoder) (event.Event, error) { return d.Decode(m.asStored()) }

// parts are the events of a body that holds several, nil for any other.
func (m *message) parts(d event.Decoder) []event.Part { return d.Parts(m.asStored()) }

func (m *message) asStored() event.Message {
	return event.Message{Subject: m.Subject(), Header: m.Headers(), Data: m.Data(), Stream: m.stream, Sequence: m.sequence}
}
