package event

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// byteOrderMark is a mark that some editors write before a body; it is not part of the text.
const byteOrderMark = "\ufeff"

// MaxLine is the longest line of a text with an event in each line: the largest body that a setting allows, and a line feed.
const MaxLine = 64<<20 + 1

// Decoder decodes stored messages. It is a plain value and may be used by many goroutines.
type Decoder struct {
	// Prefix is the subject of events; events with a category are published below it. Example: "notify".
	Prefix string
	// MaxBytes is the size of the largest decodable body; 0 means no bound.
	MaxBytes int
}

// CategoryOf returns the category of a subject in lower case, without the body. For the bare prefix, where the body names the category, it
// returns "" and bare is true. The fault has ReasonBadCategory. CategoryOf allocates nothing for a subject in lower case.
func (d Decoder) CategoryOf(subject string) (category string, bare bool, fault *Fault) {
	rest, below := strings.CutPrefix(subject, d.Prefix)
	if below && rest == "" {
		return "", true, nil
	}
	if !below || rest[0] != '.' {
		detail := fmt.Sprintf("subject %s is not %s or below it", excerpt(subject), excerpt(d.Prefix))
		return "", false, NewFault(ReasonBadCategory, detail)
	}
	category, fault = parseCategory(rest[1:])
	return category, false, fault
}

// Decode reads one message. It interprets the body as follows:
//
//   - A Content-Type of application/cloudevents+json or a member specversion marks a CloudEvent in structured mode, ce- headers a
//     CloudEvent in binary mode. The declared content type decides whether its data is JSON or text; without one, the following rules
//     apply.
//   - A body that begins with '{' after blanks and byte order marks is a JSON object. Anything else in it is a fault.
//   - Any other body is plain text.
//
// An object with a member alerts that is an array of objects is a group of alerts, the webhook body of Alertmanager and Grafana. Decode
// returns the event of its first alert; Parts splits a group of several alerts. See readAlert for the fields of an alert.
//
// Decode ignores unknown members. A member that is null or an empty string counts as absent, and the last duplicate counts. The ID comes
// from Message.Room, a single alert, the header Nats-Msg-Id, the CloudEvent, the body, or the position in the stream, in this order.
// Headers Notifier-* are ignored, because producers can write them. "sha256:" and the first 40 hexadecimal digits of its SHA-256 replace an
// ID or key that is longer than MaxIDBytes or that a reader cannot copy: see isCopyable.
//
// The error is always a *Fault, the first of: too_large, bad_category of the subject, bad_utf8, bad_json and bad_cloudevent, bad_category
// of the body, bad_field, empty. The Event then has its ID and its Category if they could be read.
func (d Decoder) Decode(m Message) (Event, error) {
	e, fault := d.decode(m)
	m.Room.impose(&e)
	if fault != nil {
		return e, fault
	}
	return e, nil
}

func (d Decoder) decode(m Message) (Event, *Fault) {
	e, c, fault := d.open(m)
	if fault != nil {
		return e, fault
	}
	g, fault := e.readGroup(c.members, d.MaxBytes)
	if fault != nil {
		return e, fault
	}
	if len(g.alerts) > 0 {
		if g.alerts[0].data == nil {
			return e, g.fault()
		}
		c.members = splitObject(g.alerts[0].data)
		if id := g.alerts[0].id; id != "" && len(g.alerts) == 1 {
			e.ID, e.Derived = id, false
		}
	}
	if fault := e.read(c.members); fault != nil {
		return e, fault
	}
	if !visible(e.Title) && !visible(e.Text) {
		return e, nothingToShow
	}
	return e, nil
}

// impose replaces the identity of an event by the identity in the room.
func (r *RoomIdentity) impose(e *Event) {
	if r != nil && r.ID != "" {
		e.ID, e.Derived, e.Part = stableID(r.ID), r.Derived, r.Part
	}
}

// open unwraps the body. The event has the values of the subject, the headers and the envelope; its category is empty on the bare subject.
func (d Decoder) open(m Message) (Event, content, *Fault) {
	e := Event{ID: m.derivedID(), Derived: true, Severity: SeverityInfo, Cost: 1}
	binary := headerAttributes(m.Header)
	e.identify(MessageID(m.Header))
	e.identify(binary.id())

	category, _, badCategory := d.CategoryOf(m.Subject)
	e.Category = category
	if d.MaxBytes > 0 && len(m.Data) > d.MaxBytes {
		return e, content{}, tooLarge(len(m.Data), d.MaxBytes)
	}
	if fault := cmp.Or(badCategory, checkUTF8(m.Data)); fault != nil {
		return e, content{}, fault
	}

	env, fault := unwrap(headerValue(m.Header, "Content-Type"), binary, m.Data)
	e.identify(env.id)
	if fault != nil {
		return e, content{}, fault
	}
	e.Source, e.Time, e.Text = env.source, env.time, env.text
	return e, env.content, nil
}

func tooLarge(size, allowed int) *Fault {
	return NewFault(ReasonTooLarge, fmt.Sprintf("the body has %d bytes; at most %d are allowed", size, allowed))
}

var nothingToShow = NewFault(ReasonEmpty, "neither title nor text holds anything to show")

// derivedID returns the ID of an event whose producer set none: the position of its message.
func (m Message) derivedID() string {
	id := make([]byte, 0, MaxIDBytes)
	id = append(append(id, m.Stream...), ':')
	return stableID(string(strconv.AppendUint(id, m.Sequence, 10)))
}

// content is the content of a body or of a CloudEvent's data: an object or plain text.
type content struct {
	members object
	text    string
}

// unwrap opens the CloudEvent around a body, if there is one. If it returns a fault, the envelope has the event's ID where it could be
// read.
func unwrap(contentType string, binary attributes, body []byte) (envelope, *Fault) {
	const cloudEvent = "application/cloudevents"
	media := mediaType(contentType)
	format, isStructured := strings.CutPrefix(media, cloudEvent)
	switch {
	case !isStructured && binary != nil:
		env, fault := binary.open()
		if fault == nil {
			env.content, fault = typedContent(body, cmp.Or(env.contentType, contentType))
		}
		return env, fault
	case !isStructured:
	case strings.HasPrefix(format, "-batch"):
		return envelope{}, badCloudEvent("batches are not supported; publish each event by itself")
	case format != "" && format != "+json":
		return envelope{}, badCloudEvent("content type must be " + cloudEvent + "+json, not " + excerpt(media))
	case !looksLikeObject(body):
		return envelope{}, badCloudEvent("the body must be a JSON object in structured mode")
	}
	c, fault := typedContent(body, "")
	if fault != nil || !isStructured && c.members.get("specversion") == nil {
		return envelope{content: c}, fault
	}
	return structured(c.members)
}

// typedContent reads data, which is valid UTF-8, according to its content type. Without a content type, the first byte decides.
func typedContent(data []byte, contentType string) (content, *Fault) {
	media := mediaType(contentType)
	isJSON := media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
	trimmed := TrimStart(data)
	if isJSON && len(trimmed) > 0 || media == "" && looksLikeObject(trimmed) {
		if fault := checkJSON(trimmed); fault != nil {
			return content{}, fault
		}
		return jsonContent(trimmed), nil
	}
	return content{text: strings.TrimPrefix(string(data), byteOrderMark)}, nil
}

// jsonContent reads a valid JSON value: an object, the text of a string, nothing for null, and the literal text of any other value.
func jsonContent(value []byte) content {
	switch value = bytes.TrimSpace(value); value[0] {
	case '{':
		return content{members: splitObject(value)}
	case '"':
		return content{text: unquote(value)}
	case 'n':
		return content{}
	default:
		return content{text: string(value)}
	}
}

// TrimStart removes blanks and byte order marks before the first significant byte of a body.
func TrimStart(data []byte) []byte {
	return bytes.TrimLeft(data, " \t\r\n"+byteOrderMark)
}

func looksLikeObject(data []byte) bool {
	return bytes.HasPrefix(TrimStart(data), []byte("{"))
}

func checkUTF8(data []byte) *Fault {
	if utf8.Valid(data) {
		return nil
	}
	at := 0
	for r, size := utf8.DecodeRune(data); r != utf8.RuneError || size > 1; r, size = utf8.DecodeRune(data[at:]) {
		at += size
	}
	return NewFault(ReasonBadUTF8, fmt.Sprintf("the body is not valid UTF-8 at byte %d", at+1))
}

// stableID returns id if it is safe in keys, logs and headers, and a hash otherwise. 40 hexadecimal digits, 160 bits, make a collision
// impossible in practice.
func stableID(id string) string {
	if len(id) <= MaxIDBytes && isCopyable(id) {
		return id
	}
	return hashed([]byte(id))
}

// isCopyable reports whether a reader who copies an ID from Slack or a terminal gets the same ID. Control characters and invisible
// characters are not shown, and a run of white space is shown as one blank.
func isCopyable(id string) bool {
	before := ' '
	for _, r := range id {
		if ' ' < r && r < unicode.MaxASCII { // visible ASCII
			before = r
			continue
		}
		isSpace := unicode.IsSpace(r) && (r != ' ' || before == ' ')
		if isSpace || isInvisible(r) {
			return false
		}
		before = r
	}
	return id == "" || before != ' ' && utf8.ValidString(id)
}

func hashed(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:20])
}

// headerValue returns the first value of a header in any letter case.
func headerValue(header map[string][]string, name string) string {
	if values := header[name]; len(values) > 0 && values[0] != "" {
		return values[0]
	}
	var found, value string
	for key, values := range header {
		if len(key) == len(name) && strings.EqualFold(key, name) && len(values) > 0 && values[0] != "" && precedes(key, found, name) {
			found, value = key, values[0]
		}
	}
	return value
}

// precedes reports whether key is read instead of another spelling of a header's name; "": there is none. The exact spelling has precedence,
// then the first spelling in byte order, so that every redelivery reads the same value.
func precedes(key, other, name string) bool {
	return other == "" || key == name || other != name && key < other
}

const messageIDHeader = "Nats-Msg-Id"

// MessageID returns the header Nats-Msg-Id, "" for none.
func MessageID(header map[string][]string) string { return headerValue(header, messageIDHeader) }

// headerNames are names of headers.
type headerNames struct {
	byLower           map[string]string // by their spelling in lower case
	shortest, longest int               // in bytes
}

func newHeaderNames(names ...string) headerNames {
	n := headerNames{byLower: make(map[string]string), shortest: len(names[0])}
	for _, name := range names {
		n.byLower[strings.ToLower(name)] = name
		n.shortest, n.longest = min(n.shortest, len(name)), max(n.longest, len(name))
	}
	return n
}

// pick returns the headers with these names that have a value, with the values of headerValue. It reads thousands of headers in one pass.
func (n headerNames) pick(header map[string][]string) map[string][]string {
	spelled := make(map[string]string)
	for key, values := range header {
		if len(key) < n.shortest || len(key) > n.longest || len(values) == 0 || values[0] == "" {
			continue
		}
		name, wanted := n.byLower[strings.ToLower(key)]
		if !wanted || len(key) != len(name) {
			continue
		}
		if precedes(key, spelled[name], name) {
			spelled[name] = key
		}
	}
	picked := make(map[string][]string, len(spelled))
	for name, key := range spelled {
		picked[name] = []string{header[key][0]}
	}
	return picked
}

// The headers that describe an event, and all headers that the notifier reads.
var (
	describing = newHeaderNames(describingNames()...)
	reading    = newHeaderNames(append(describingNames(), messageIDHeader)...)
)

func describingNames() []string {
	names := []string{"Content-Type", "traceparent", "tracestate", "ce-traceparent", "ce-tracestate"}
	for _, name := range attributeNames {
		names = append(names, "ce-"+name)
	}
	return names
}

// Headers returns the headers that describe an event, each once and without empty ones. It leaves out Nats-Msg-Id, which is a command to the
// server, and headers that the notifier does not read.
func Headers(header map[string][]string) map[string][]string { return describing.pick(header) }

// HeadersToRead returns the same headers, and Nats-Msg-Id.
func HeadersToRead(header map[string][]string) map[string][]string { return reading.pick(header) }

// mediaType returns the media type of a Content-Type in lower case, without its parameters.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}
