package consume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Headers of a dead letter, beside those that a message of the room has: the subject, the ID, the part and the origin of its
// event. Headers of its producer that have such names are left out.
const (
	HeaderReason     = "Notifier-Reason"
	HeaderError      = "Notifier-Error"
	HeaderSequence   = "Notifier-Sequence"
	HeaderDeliveries = "Notifier-Deliveries"
	HeaderBodyLength = "Notifier-Body-Length" // of a body that was cut: how long it was
	HeaderBodySHA256 = "Notifier-Body-SHA256" // of the whole body
	HeaderPushedOut  = "Notifier-Pushed-Out"  // how many older letters had to go for this one
)

// deadLetter stores a message as a dead letter, calls stored, and terminates the message. If the letter cannot be stored, the message
// gets a nak. It tells which. The event has its ID whatever is wrong with it.
func (w *Worker) deadLetter(ctx context.Context, m *message, e event.Event, fault *event.Fault, stored func()) bool {
	w.trace(m, time.Now(), false)
	err := w.storeDeadLetter(ctx, m, e, fault)
	if w.o.Provision && errors.Is(err, jetstream.ErrNoStreamResponse) { // the stream was deleted
		if _, err = w.names.ensureStream(ctx, w.js, w.names.DeadLetterConfig(), true, w.logger); err == nil {
			err = w.storeDeadLetter(ctx, m, e, fault)
		}
	}
	w.health.deadLetters.note(err)
	if err != nil {
		w.nak(m, jitter(misconfiguredBackoff))
		return false
	}
	w.metrics.DeadLetter(string(fault.Reason))
	w.letterLog.add(m.entry.Subject, fault, m.span.TraceID())
	stored()
	w.terminate(m, fault)
	return true
}

// letter is a dead letter that is to be stored.
type letter struct {
	subject  string
	first    string // the first level of its category
	id       string // from which the stream knows it again
	own      nats.Header
	producer nats.Header
	body     []byte
}

func (w *Worker) letterOf(m *message, e event.Event, fault *event.Fault) letter {
	first := w.firstLevel(m, e)
	entry := m.entryFor(e, "")
	entry.Subject, entry.ID, entry.MessageID = oneLine(entry.Subject), oneLine(entry.ID), oneLine(entry.MessageID)
	own := entry.Message("", nil, nil).Header
	own.Del(room.HeaderReason)
	own.Set(HeaderReason, string(fault.Reason))
	own.Set(HeaderError, oneLine(fault.Detail))
	own.Set(HeaderSequence, strconv.FormatUint(m.sequence, 10))
	own.Set(HeaderDeliveries, strconv.FormatUint(m.delivered, 10))
	return letter{
		subject: w.names.DeadLetterSubject + "." + string(fault.Reason) + "." + first, first: first,
		id:  letterID(entry),
		own: own, producer: room.Producers(m.Headers()), body: m.Data(),
	}
}

// letterID names the letter of an event by the event's origin: the same letter is not stored twice, wherever in the streams the event
// is. The time tells apart messages of the same number in streams of the same name. A replayed event may become a letter again.
func letterID(entry room.Entry) string {
	id := fmt.Sprintf("dlq-%s-%d-%d", entry.Origin.Stream, entry.Origin.Sequence, entry.Origin.Stored.UnixMilli())
	if entry.Part != "" {
		sum := sha256.Sum256([]byte(entry.Part))
		id += "-" + hex.EncodeToString(sum[:8])
	}
	if entry.Replayed() {
		id += fmt.Sprintf("-%d", entry.Since.UnixMilli())
	}
	return id
}

// firstLevel is the first level of an event's category, or of its subject where the category is unknown: a producer of
// notify.payments.> must not push out the letters of others.
func (w *Worker) firstLevel(m *message, e event.Event) string {
	if e.Category != "" {
		return event.FirstLevel(e.Category)
	}
	return w.o.Decoder.FirstLevelOf(m.entry.Subject)
}

// headers say how much of a letter's headers is stored.
type headers int

const (
	markOnly headers = iota // by which readers know that a worker wrote the letter
	ownHeaders
	allHeaders
)

// message is the letter with some of its headers, and with no more of its body than a number of bytes.
func (l letter) message(which headers, most, pushedOut int) *nats.Msg {
	m := &nats.Msg{Subject: l.subject, Data: l.body, Header: make(nats.Header, len(l.own)+len(l.producer)+3)}
	if which == markOnly {
		trusted.Mark(m.Header)
		return m
	}
	if which == allHeaders {
		maps.Copy(m.Header, l.producer)
	}
	maps.Copy(m.Header, l.own)
	m.Header.Set(nats.MsgIdHdr, l.id)
	if len(l.body) > most {
		sum := sha256.Sum256(l.body)
		m.Data = l.body[:most]
		m.Header.Set(HeaderBodyLength, strconv.Itoa(len(l.body)))
		m.Header.Set(HeaderBodySHA256, hex.EncodeToString(sum[:]))
	}
	if pushedOut > 0 {
		m.Header.Set(HeaderPushedOut, strconv.Itoa(pushedOut))
	}
	return m
}

// storeDeadLetter publishes the body, cut to the bound of events, with as many headers as the server takes: all, then only the
// worker's, then only the mark. If that is still too much, the body is cut. A cut body needs the worker's headers, which say so.
func (w *Worker) storeDeadLetter(ctx context.Context, m *message, e event.Event, fault *event.Fault) error {
	l := w.letterOf(m, e, fault)
	most := len(l.body)
	if bound := w.o.Decoder.MaxBytes; bound > 0 {
		most = min(most, bound)
	}
	cut := most < len(l.body)
	for which := allHeaders; ; {
		err := w.storeLetter(ctx, l, which, most)
		switch {
		case !tooMuch(err) || most == 0:
			return err
		case which == markOnly, which == ownHeaders && cut:
			which, cut = ownHeaders, true
			most /= 2
		default:
			which--
		}
	}
}

// storeLetter publishes a letter, and makes room where the stream has no bytes left.
func (w *Worker) storeLetter(ctx context.Context, l letter, which headers, most int) error {
	for range mostRooms {
		rooms := w.letters.rooms()
		size, err := w.publishLetter(ctx, l, which, most)
		switch {
		case err == nil:
			return nil
		case !full(err):
			return fmt.Errorf("storing a dead letter: %w", err)
		}
		gone, err := w.letters.makeRoom(ctx, l.first, size, rooms)
		w.metrics.DeadLettersDiscarded(gone)
		w.letters.owe(gone)
		if err != nil {
			return fmt.Errorf("making room for a dead letter in a full stream: %w", err)
		}
	}
	return fmt.Errorf("storing a dead letter: %w", errStillFull)
}

// publishLetter publishes a letter once, and counts what it pushes out. It returns about what the letter takes in the stream.
func (w *Worker) publishLetter(ctx context.Context, l letter, which headers, most int) (size int, err error) {
	pushed, err := w.letters.begin(ctx, l.subject)
	if err != nil {
		return 0, err
	}
	owed := w.letters.takeOwed()
	m := l.message(which, most, owed+pushed)
	storing, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stored, err := w.js.PublishMsg(storing, m)
	isNew := err == nil && !stored.Duplicate
	w.letters.stored(l.subject, isNew, err)
	if isNew {
		w.metrics.DeadLettersDiscarded(pushed)
	} else {
		pushed = 0
	}
	if !isNew || m.Header == nil {
		w.letters.owe(owed + pushed)
	}
	return storedSize(m.Subject, m.Header, len(m.Data)), err
}

// mostRooms bounds how often room is made for one letter: others take it too.
const mostRooms = 5

var errStillFull = errors.New("others have taken the room that was made for it")

// Error codes of the server.
const (
	errMessageSize = jetstream.ErrorCode(10054) // a stream with a bound of its own was given a larger message
	errStoreFailed = jetstream.ErrorCode(10077) // in words why
)

func tooMuch(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || refused && refusal.ErrorCode == errMessageSize
}

// full tells whether a stream refuses a message since its bytes run out.
func full(err error) bool {
	refusal, refused := errors.AsType[*jetstream.APIError](err)
	return refused && refusal.ErrorCode == errStoreFailed && strings.Contains(refusal.Description, "maximum bytes")
}

// oneLine makes a text fit for a header: a line feed in it would start another one.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}
