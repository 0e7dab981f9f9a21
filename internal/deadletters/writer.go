package deadletters

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/messagesize"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Headers of a dead letter. It also has the headers of a message in the room: the subject, the ID, the part and the origin of its event.
// The writer removes a producer's headers with these names.
const (
	HeaderReason     = "Notifier-Reason"
	HeaderError      = "Notifier-Error"
	HeaderSequence   = "Notifier-Sequence"
	HeaderDeliveries = "Notifier-Deliveries"
	HeaderBodyLength = "Notifier-Body-Length" // the original length of a body that was cut
	HeaderBodySHA256 = "Notifier-Body-SHA256" // of the whole body
	HeaderPushedOut  = "Notifier-Pushed-Out"  // the number of older letters that were removed for this one
)

// Metrics counts what a writer does. Its methods may be called concurrently.
type Metrics interface {
	DeadLetter(reason string)
	DeadLettersDiscarded(n int) // removed to make room for newer letters
}

// WriterOptions configure a [Writer].
type WriterOptions struct {
	Streams *stream.Client
	MaxBody int // bytes of a body that a letter keeps; 0: all
	Metrics Metrics
	Logger  *slog.Logger
}

// Writer stores dead letters for a worker. Its methods may be called concurrently.
type Writer struct {
	o    WriterOptions
	log  *oplog.Repeated[event.Reason] // the newest letter of each reason, and their number
	owed atomic.Int64                  // removed letters that no stored letter has counted in its header yet

	making sync.RWMutex // locked while room is made and taken, read-locked by all other publishes
}

// NewWriter returns a writer. [Writer.Close] writes the rest of its log.
func NewWriter(o WriterOptions) *Writer {
	return &Writer{o: o, log: oplog.NewRepeated(func(reason event.Reason, count int, newest []any) {
		o.Logger.Info("events ended as dead letters", append([]any{"reason", string(reason), "count", count}, newest...)...)
	})}
}

// Dead is an event that cannot be delivered, as a worker received it.
type Dead struct {
	Entry      room.Entry // the identity and the origin of the event
	First      string     // the first level of its category
	Header     nats.Header
	Body       []byte
	Sequence   uint64 // of the message
	Deliveries uint64 // how often a worker received the message
	Fault      *event.Fault
	TraceID    string // "": the event has no trace
}

// Store stores a dead letter, counts it and logs it. It creates the stream again if the stream was deleted and the worker may create streams.
func (w *Writer) Store(ctx context.Context, d Dead) error {
	l := w.letterOf(d)
	err := w.storeShortened(ctx, l)
	if errors.Is(err, jetstream.ErrNoStreamResponse) && w.o.Streams.Restore(ctx, w.o.Streams.Names.DeadLetterConfig()) {
		err = w.storeShortened(ctx, l)
	}
	if err != nil {
		return err
	}
	w.stored(d)
	return nil
}

// stored counts and logs a letter.
func (w *Writer) stored(d Dead) {
	w.o.Metrics.DeadLetter(string(d.Fault.Reason))
	attributes := []any{"subject", plain.Header(d.Entry.Subject), "error", plain.Header(d.Fault.Detail)}
	if d.TraceID != "" {
		attributes = append(attributes, "trace_id", d.TraceID)
	}
	w.log.Add(d.Fault.Reason, 1, attributes...)
}

// Close logs the letters that no line of the log has counted yet.
func (w *Writer) Close() { w.log.Stop() }

// outgoing is a dead letter before it is stored.
type outgoing struct {
	subject  string
	first    string // the first level of its category
	id       string // by which the stream recognises a letter that it already has
	own      nats.Header
	producer nats.Header
	body     []byte
}

func (w *Writer) letterOf(d Dead) outgoing {
	entry := d.Entry
	entry.Subject, entry.ID, entry.MessageID = plain.Header(entry.Subject), plain.Header(entry.ID), plain.Header(entry.MessageID)
	own := entry.Message("", nil, nil).Header
	own.Del(room.HeaderReason)
	own.Set(HeaderReason, string(d.Fault.Reason))
	own.Set(HeaderError, plain.Header(d.Fault.Detail))
	own.Set(HeaderSequence, strconv.FormatUint(d.Sequence, 10))
	own.Set(HeaderDeliveries, strconv.FormatUint(d.Deliveries, 10))
	return outgoing{
		subject: w.o.Streams.Names.DeadLetterSubject + "." + string(d.Fault.Reason) + "." + d.First, first: d.First,
		id:  letterID(entry),
		own: own, producer: event.Headers(d.Header), body: d.Body,
	}
}

// letterID returns the name of an event's letter. It is made from the event's origin, so a letter is stored once, whichever stream holds
// its event. The time distinguishes messages with the same sequence in streams of the same name. A replayed event may become a letter
// again.
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

// headers selects which of a letter's headers are stored.
type headers int

const (
	markOnly headers = iota // the mark that a worker wrote the letter
	ownHeaders
	allHeaders
)

// message returns the letter with some of its headers, and with at most a number of bytes of its body.
func (l outgoing) message(which headers, most int, pushedOut int64) *nats.Msg {
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
		m.Header.Set(HeaderPushedOut, strconv.FormatInt(pushedOut, 10))
	}
	return m
}

// storeShortened stores as much of a letter as the server accepts. If the letter is too large, it first loses its producer's headers, then
// the worker's headers except the mark. If that is not enough, its body is cut, and the worker's headers, which report the cut, stay.
func (w *Writer) storeShortened(ctx context.Context, l outgoing) error {
	most := len(l.body)
	if w.o.MaxBody > 0 {
		most = min(most, w.o.MaxBody)
	}
	cut := most < len(l.body)
	for which := allHeaders; ; {
		err := w.store(ctx, l, which, most)
		switch {
		case !messagesize.IsTooLarge(err) || most == 0:
			return err
		case which == markOnly, which == ownHeaders && cut:
			which, cut = ownHeaders, true
			most /= 2
		default:
			which--
		}
	}
}

// mostRooms bounds how often room is made for one letter: letters of other workers may fill the room again.
const mostRooms = 10

var errStillFull = errors.New("other letters have taken the room that was made for it")

// store publishes a letter. If its subject or the stream is full, store removes older letters and publishes the letter again. Meanwhile this
// worker stores no other letter, which might take the room.
func (w *Writer) store(ctx context.Context, l outgoing, which headers, most int) error {
	w.making.RLock()
	size, err := w.publish(ctx, l, which, most)
	w.making.RUnlock()
	if fullnessOf(err) == notFull {
		return storing(err)
	}
	w.making.Lock()
	defer w.making.Unlock()
	for range mostRooms {
		var gone int
		var failure error
		if fullnessOf(err) == subjectFull {
			gone, failure = w.freeSubject(ctx, l.subject)
		} else {
			gone, failure = w.freeBytes(ctx, l.first, size)
		}
		w.o.Metrics.DeadLettersDiscarded(gone)
		w.owed.Add(int64(gone))
		if failure != nil {
			return fmt.Errorf("making room for a dead letter in a full stream: %w", failure)
		}
		if size, err = w.publish(ctx, l, which, most); fullnessOf(err) == notFull {
			return storing(err)
		}
	}
	return storing(errStillFull)
}

func storing(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("storing a dead letter: %w", err)
}

// publish publishes a letter once, and returns the letter's size in the stream.
func (w *Writer) publish(ctx context.Context, l outgoing, which headers, most int) (size int, err error) {
	owed := w.owed.Swap(0)
	m := l.message(which, most, owed)
	storing, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	stored, err := w.o.Streams.JetStream.PublishMsg(storing, m)
	if err != nil || stored.Duplicate || which == markOnly {
		w.owed.Add(owed)
	}
	return messagesize.Of(m.Subject, m.Header, len(m.Data)), err
}
