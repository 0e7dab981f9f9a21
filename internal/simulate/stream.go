package simulate

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
)

// ReadStream reads the present events of a stream, with the times when JetStream stored them. It removes, acknowledges and redelivers no
// message. Messages outside the decoder's subjects are skipped. Progress is in messages.
func ReadStream(
	ctx context.Context, js jetstream.JetStream, name string, decoder event.Decoder, progress Progress,
) (*History, error) {
	messages, err := streamscan.Read(ctx, js, name, func(m *jetstream.RawStreamMsg) (streamMessage, bool) {
		if m.Subject != decoder.Prefix && !strings.HasPrefix(m.Subject, decoder.Prefix+".") {
			return streamMessage{}, false
		}
		events, err := eventsOf(event.Message{
			Subject: m.Subject, Header: m.Header, Data: m.Data, Stream: name, Sequence: m.Sequence,
		}, decoder)
		for i := range events {
			events[i].At = m.Time
		}
		return streamMessage{sequence: m.Sequence, events: events, err: err}, true
	}, progress)
	if err != nil {
		return nil, err
	}
	h := &History{}
	for _, m := range messages {
		h.add(m.sequence, m.events, m.err)
	}
	return h, nil
}

// streamMessage is what a replay needs of a message.
type streamMessage struct {
	sequence uint64
	events   []Event
	err      error // its fault
}
