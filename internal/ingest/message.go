package ingest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Headers of requests and of messages.
const (
	headerContentType = "Content-Type"
	headerKey         = "Idempotency-Key"
	headerMessageID   = nats.MsgIdHdr
)

const maxBatch = 1000

const (
	cloudEvent      = "application/cloudevents+json"
	cloudEventBatch = "application/cloudevents-batch+json"
)

// form is the interpretation of a request's body.
type form int

const (
	plainForm      form = iota // a JSON object, text or a CloudEvent in structured mode without its content type
	structuredForm             // a CloudEvent that Content-Type announces
	binaryForm                 // a CloudEvent with its attributes in headers ce-*
	batchForm                  // an array of CloudEvents
)

// formOf returns the form of a request according to its headers.
func formOf(header http.Header) (form, *problem) {
	if encoding := first(header, "Content-Encoding"); encoding != "" && encoding != "identity" {
		return 0, newProblem(http.StatusUnsupportedMediaType, "the body must not be compressed")
	}
	switch media := mediaType(header); {
	case media == cloudEvent:
		return structuredForm, nil
	case media == cloudEventBatch:
		return batchForm, nil
	case !isTextual(media):
		return 0, newProblem(http.StatusUnsupportedMediaType, "Content-Type must be that of JSON, of text, or "+cloudEvent+" or "+cloudEventBatch)
	case first(header, "Ce-Specversion") != "" || first(header, "Ce-Id") != "":
		return binaryForm, nil
	}
	return plainForm, nil
}

// mediaType returns the media type of a body in lower case, without its parameters.
func mediaType(header http.Header) string {
	media, _, _ := strings.Cut(first(header, headerContentType), ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// first returns the first value of a header with a canonical name, which is faster than Get.
func first(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// formEncoded is the default of curl. It does not describe the body.
const formEncoded = "application/x-www-form-urlencoded"

// isTextual reports whether a body may be JSON or text.
func isTextual(media string) bool {
	switch {
	case media == "", media == "application/json", media == formEncoded:
		return true
	case strings.HasPrefix(media, "application/cloudevents"):
		return false
	}
	return strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "+json")
}

type maker struct {
	decoder  event.Decoder
	category string
	header   http.Header
}

// messages returns the messages of a body: one, unless it is a batch.
func (m maker) messages(data []byte, asked form) ([]*nats.Msg, *problem) {
	if asked == batchForm {
		return m.batch(data)
	}
	message, refusal := m.message(data, asked, first(m.header, headerKey))
	return []*nats.Msg{message}, refusal
}

// batch returns a message for each event of a batch. It returns none if one is invalid.
func (m maker) batch(data []byte) ([]*nats.Msg, *problem) {
	elements, fault := event.SplitArray(data)
	if fault != nil {
		return nil, refused(event.NewFault(event.ReasonBadJSON, "a batch must be a JSON array of CloudEvents"))
	}
	if len(elements) > maxBatch {
		return nil, newProblem(http.StatusRequestEntityTooLarge, fmt.Sprintf("a batch of %d events; at most %d are allowed", len(elements), maxBatch))
	}
	key := first(m.header, headerKey)
	messages := make([]*nats.Msg, len(elements))
	for i, element := range elements {
		own := key
		if own != "" {
			own += "/" + strconv.Itoa(i)
		}
		message, refusal := m.message(element, structuredForm, own)
		if refusal != nil {
			refusal.Detail = fmt.Sprintf("event %d of the batch: %s; nothing of the batch is stored", i, refusal.Detail)
			return nil, refusal
		}
		messages[i] = message
	}
	return messages, nil
}

// message returns the message of one event. Its ID is the ID of a single alert, the key, or the ID of the CloudEvent or of the body, in this
// order.
func (m maker) message(data []byte, in form, key string) (*nats.Msg, *problem) {
	header := m.forwarded(in)
	asked := event.Message{Subject: m.decoder.Prefix + "." + m.category, Header: header, Data: data}
	decoded, err := m.decoder.Decode(asked)
	fault, _ := errors.AsType[*event.Fault](err)
	switch parts, bad := m.decoder.Parts(asked); {
	case bad != nil:
		return nil, refused(bad)
	case fault != nil && len(parts) == 0:
		return nil, refused(fault)
	}
	id := key
	if id == "" && !decoded.Derived {
		id = decoded.ID
	}
	m.identify(header, m.decoder.AlertID(asked), id)
	return &nats.Msg{Subject: asked.Subject, Header: header, Data: data}, nil
}

// identify sets Nats-Msg-Id, unless the event has no ID. An alert has the same value in any body. A category contains no '/', so the values of
// different categories differ. The ID has the form that a worker reads from a header: a hash replaces a long ID, and an ID that a header cannot
// carry.
func (m maker) identify(header nats.Header, alertID, id string) {
	switch {
	case alertID != "":
		header[headerMessageID] = []string{m.secretMessageID(alertID)}
	case id != "":
		named, _ := event.Decoder{}.QuickIdentity(event.Message{Header: map[string][]string{headerMessageID: {id}}}, m.category)
		header[headerMessageID] = []string{m.category + "/" + named.ID}
	}
}

// secretMessageID returns the value of Nats-Msg-Id for an alert. It depends on the client's token: anyone can guess the ID of an alert, and a
// producer of another category could store a message with that value first, so that JetStream would discard the alert.
func (m maker) secretMessageID(id string) string {
	secret := []byte(first(m.header, "Authorization"))
	if len(secret) == 0 {
		secret = ownSecret[:] // the client has a certificate
	}
	sum := hmac.New(sha256.New, secret)
	_, _ = sum.Write([]byte(m.category + "/" + id)) // it never fails
	return m.category + "/" + hex.EncodeToString(sum.Sum(nil)[:20])
}

// ownSecret takes the place of a token. Other instances have other secrets, so the workers recognise what is repeated to another instance.
var ownSecret = func() (secret [32]byte) {
	_, _ = rand.Read(secret[:]) // it never fails
	return secret
}()

// receipt returns the answer to the event of a stored message.
func (m maker) receipt(stored *nats.Msg, ack *jetstream.PubAck) receipt {
	return receipt{ID: m.idOf(stored, ack), Stream: ack.Stream, Sequence: ack.Sequence, Duplicate: ack.Duplicate}
}

// idOf returns the ID that the worker will give to the event of a stored message or to a body with several alerts.
func (m maker) idOf(stored *nats.Msg, ack *jetstream.PubAck) string {
	message := event.Message{Subject: stored.Subject, Header: stored.Header, Data: stored.Data, Stream: ack.Stream, Sequence: ack.Sequence}
	if named, ok := m.decoder.QuickIdentity(message, m.category); ok {
		return named.ID
	}
	decoded, _ := m.decoder.Decode(message) // it has its ID even if its alerts are invalid
	return decoded.ID
}

// traceParent is the form of W3C Trace Context.
var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$`)

// maxTraceState is the length that every implementation of W3C Trace Context must carry.
const maxTraceState = 512

// forwarded returns the headers of a message that come from its request. A message has no other headers of the client, which would be
// commands to JetStream or to workers.
func (m maker) forwarded(in form) nats.Header {
	header := make(nats.Header, 4)
	switch in {
	case structuredForm:
		header[headerContentType] = []string{cloudEvent}
	case binaryForm:
		if contentType := first(m.header, headerContentType); contentType != "" && mediaType(m.header) != formEncoded {
			header[headerContentType] = []string{contentType}
		}
		for name, values := range m.header {
			if strings.HasPrefix(name, "Ce-") {
				header[strings.ToLower(name)] = values[:1]
			}
		}
	}
	if parent := first(m.header, "Traceparent"); parent != "" && traceParent.MatchString(parent) {
		header["traceparent"] = []string{parent}
		if state := strings.Join(m.header.Values("Tracestate"), ","); state != "" && len(state) <= maxTraceState {
			header["tracestate"] = []string{state}
		}
	}
	return header
}

// refused is the answer to an event that no worker would ever deliver.
func refused(fault *event.Fault) *problem {
	status := http.StatusUnprocessableEntity
	switch fault.Reason {
	case event.ReasonTooLarge:
		status = http.StatusRequestEntityTooLarge
	case event.ReasonBadJSON, event.ReasonBadUTF8, event.ReasonBadCategory:
		status = http.StatusBadRequest
	}
	p := newProblem(status, fault.Detail)
	p.Reason = string(fault.Reason)
	return p
}
