package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Headers of a dead letter.
const (
	HeaderReason     = "Notifier-Reason"
	HeaderError      = "Notifier-Error"
	HeaderSubject    = "Notifier-Subject"
	HeaderSequence   = "Notifier-Sequence"
	HeaderDeliveries = "Notifier-Deliveries"
	HeaderMessageID  = "Notifier-Msg-Id" // the producer's Nats-Msg-Id
)

// serverPrefix is what the headers start with that command the server.
const serverPrefix = "Nats-"

// bury stores a dead letter, then calls stored, and then terminates the message. If it cannot be stored, the message is
// given back for later. It tells which.
func (w *Worker) bury(ctx context.Context, m *message, fault *event.Fault, stored func()) bool {
	err := w.storeDeadLetter(ctx, m, fault)
	if w.o.Provision && errors.Is(err, jetstream.ErrNoStreamResponse) { // the stream was deleted
		if err = ensureStream(ctx, w.js, w.names.DeadLetterConfig(), w.logger); err == nil {
			err = w.storeDeadLetter(ctx, m, fault)
		}
	}
	w.trouble.deadLettersStored(err)
	if err != nil {
		w.giveBack(m, jitter(misconfiguredBackoff))
		return false
	}
	w.metrics.DeadLetter(string(fault.Reason))
	stored()
	w.terminate(m, string(fault.Reason)+": "+oneLine(fault.Detail))
	return true
}

// storeDeadLetter publishes the untouched body with as many headers as the server takes: all, then without the
// producer's, then none; the subject still tells the reason.
func (w *Worker) storeDeadLetter(ctx context.Context, m *message, fault *event.Fault) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	e, _ := m.decode(w.o.Decoder) // it has its ID whatever is wrong with it
	own := nats.Header{}
	own.Set(event.HeaderID, e.ID)
	own.Set(HeaderReason, string(fault.Reason))
	own.Set(HeaderError, oneLine(fault.Detail))
	own.Set(HeaderSubject, oneLine(m.Subject()))
	own.Set(HeaderSequence, strconv.FormatUint(m.sequence, 10))
	own.Set(HeaderDeliveries, strconv.FormatUint(m.delivered, 10))

	err := nats.ErrMaxPayload
	for _, header := range []nats.Header{ownHeader(m.Headers(), own), own, nil} {
		letter := &nats.Msg{Subject: w.names.DeadLetterSubject + "." + string(fault.Reason), Header: header, Data: m.Data()}
		var options []jetstream.PublishOpt
		if header != nil {
			// The time tells the message from one of the same number in a stream that was made anew.
			id := fmt.Sprintf("dlq-%s-%d-%d", m.stream, m.sequence, m.stored.UnixMilli())
			options = append(options, jetstream.WithMsgID(id))
		}
		if _, err = w.js.PublishMsg(ctx, letter, options...); !tooMuch(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("storing a dead letter: %w", err)
	}
	return nil
}

// errMessageSize is how a stream with a bound of its own answers a message that is larger.
const errMessageSize = jetstream.ErrorCode(10054)

func tooMuch(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || refused && refusal.ErrorCode == errMessageSize
}

// ownHeader is the producer's headers, those kept out that command the server, and ours over them.
func ownHeader(producer, own nats.Header) nats.Header {
	header := make(nats.Header, len(producer)+len(own))
	for name, values := range producer {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case canonical == nats.MsgIdHdr && len(values) > 0:
			header.Set(HeaderMessageID, values[0])
		case strings.HasPrefix(canonical, serverPrefix), canonical == HeaderMessageID, own[canonical] != nil:
		default:
			header[name] = values
		}
	}
	maps.Copy(header, own)
	return header
}

// oneLine makes a text fit for a header: a line feed in it would start another one.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}
