package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// byteOrderMark may stand before a body, put there by editors; it is no part of the text.
const byteOrderMark = "\ufeff"

// Decoder decodes stored messages. It is a plain value and may be used by many goroutines.
type Decoder struct {
	// Prefix is the subject on which, and below which, events come, such as "notify".
	Prefix string
	// MaxBytes is the size of the largest body that is decoded; 0 is no limit.
	MaxBytes int
}

// CategoryOf returns the category that subject names, in lower case, without need of the body.
// On the bare prefix, where the body has the word, it returns "" and bare is true. The error is
// a *Fault with ReasonBadCategory. Nothing is allocated for a subject in lower case.
func (d Decoder) CategoryOf(subject string) (category string, bare bool, err error) {
	rest, below := strings.CutPrefix(subject, d.Prefix)
	if below && rest == "" {
		return "", true, nil
	}
	if !below || rest[0] != '.' {
		detail := fmt.Sprintf("subject %s is not %s or below it", excerpt(subject), excerpt(d.Prefix))
		return "", false, NewFault(ReasonBadCategory, detail, nil)
	}
	category, err = parseCategory(rest[1:])
	return category, false, err
}

// Decode reads one message. How it takes the body:
//
//   - By a Content-Type of application/cloudevents+json, or a specversion member, a CloudEvent in
//     structured mode; by ce- headers, one in binary mode. Its data is taken as JSON or as text by
//     the content type it declares, else as follows.
//   - A body whose first byte after blanks and byte order marks is '{' is a JSON object, or a fault.
//   - Any other body is plain text.
//
// An object with a member alerts that is an array of objects is a group of alerts, as Alertmanager
// and Grafana send it to a webhook, and Decode gives the event of the first; Parts splits a group of
// several. What it makes of an alert stands at readAlert.
//
// Members that an Event does not know are ignored; a member that is null or an empty string
// counts as absent; of duplicate members the last counts. The ID is that of Message.Room, else of the
// header Nats-Msg-Id, of the CloudEvent, of the body, else where the message is stored. No header
// Notifier-* is read: producers can write them.
// An ID or key that is longer than MaxIDBytes, holds a control character or invalid UTF-8, or begins or
// ends with a blank, which a header would lose, is replaced by "sha256:" and the first 40 hexadecimal digits of its SHA-256.
//
// The error is always a *Fault, the first that applies of: too_large, bad_category by the subject,
// bad_utf8, bad_json and bad_cloudevent, bad_category by the body, bad_field, empty. The Event then
// has its ID, and its Category unless that is unknown or the fault, as far as they could be read.
func (d Decoder) Decode(m Message) (Event, error) {
	e, err := d.decode(m)
	m.Room.impose(&e)
	return e, err
}

func (d Decoder) decode(m Message) (Event, error) {
	e, c, err := d.open(m)
	if err != nil {
		return e, err
	}
	bare := e.Category == ""
	g, err := e.readGroup(c.members, d.MaxBytes)
	if err != nil {
		return e, err
	}
	if len(g.alerts) > 0 {
		if g.alerts[0].bad {
			return e, g.fault()
		}
		if c.members, err = splitObject(g.alerts[0].data); err != nil {
			return e, err
		}
	}
	if err := e.read(c.members, bare); err != nil {
		return e, err
	}
	if !visible(e.Title) && !visible(e.Text) {
		return e, nothingToShow()
	}
	return e, nil
}

// impose has an event be the one that workers noted.
func (r *RoomIdentity) impose(e *Event) {
	if r != nil && r.ID != "" {
		e.ID, e.Derived, e.Part = stableID(r.ID), r.Derived, r.Part
	}
}

// open takes the body out of its envelope. The event has what subject, headers and envelope say; its
// category is empty on the bare subject. The error is a *Fault.
func (d Decoder) open(m Message) (Event, content, error) {
	e := Event{
		ID:       m.derivedID(),
		Derived:  true,
		Severity: SeverityInfo,
		Cost:     1,
	}
	binary := headerAttributes(m.Header)
	e.identify(headerValue(m.Header, "Nats-Msg-Id"))
	e.identify(binary.id())

	category, _, err := d.CategoryOf(m.Subject)
	e.Category = category
	if d.MaxBytes > 0 && len(m.Data) > d.MaxBytes {
		return e, content{}, tooLarge(len(m.Data), d.MaxBytes)
	}
	if err != nil {
		return e, content{}, err
	}
	if err := checkUTF8(m.Data); err != nil {
		return e, content{}, err
	}

	env, c, err := unwrap(headerValue(m.Header, "Content-Type"), binary, m.Data)
	e.identify(env.id)
	if err != nil {
		return e, content{}, err
	}
	e.Source, e.Time, e.Text = env.source, env.time, c.text
	return e, c, nil
}

func tooLarge(size, allowed int) *Fault {
	return NewFault(ReasonTooLarge, fmt.Sprintf("the body has %d bytes; at most %d are allowed", size, allowed), nil)
}

func nothingToShow() *Fault {
	return NewFault(ReasonEmpty, "neither title nor text holds anything to show", nil)
}

// derivedID is the ID of an event whose producer gave none: where the message is stored.
func (m Message) derivedID() string {
	return stableID(m.Stream + ":" + strconv.FormatUint(m.Sequence, 10))
}

// content is what a body, or the data of a CloudEvent, holds: an object, or plain text.
type content struct {
	members object
	text    string
}

// unwrap takes the body out of the CloudEvent around it, if there is one. The error is a *Fault;
// the id of the envelope is set even then, as far as it is known.
func unwrap(contentType string, binary attributes, body []byte) (envelope, content, error) {
	const cloudEvent = "application/cloudevents"
	media := mediaType(contentType)
	if format, ok := strings.CutPrefix(media, cloudEvent); ok {
		switch {
		case strings.HasPrefix(format, "-batch"):
			return envelope{}, content{}, badCloudEvent("batches are not supported; publish each event by itself", nil)
		case format != "" && format != "+json":
			return envelope{}, content{}, badCloudEvent("content type must be "+cloudEvent+"+json, not "+excerpt(media), nil)
		case !looksLikeObject(body):
			return envelope{}, content{}, badCloudEvent("the body must be a JSON object in structured mode", nil)
		}
		o, err := parseObject(trimStart(body))
		if err != nil {
			return envelope{}, content{}, err
		}
		return structured(o)
	}
	if binary != nil {
		env, err := binary.open()
		if err != nil {
			return env, content{}, err
		}
		if env.contentType == "" {
			env.contentType = contentType
		}
		c, err := typedContent(body, env.contentType)
		return env, c, err
	}
	c, err := typedContent(body, "")
	if err == nil && c.members.get("specversion") != nil {
		return structured(c.members)
	}
	return envelope{}, c, err
}

// typedContent reads data by its declared content type, or by its first byte if there is none.
// The error is a *Fault.
func typedContent(data []byte, contentType string) (content, error) {
	if err := checkUTF8(data); err != nil {
		return content{}, err
	}
	media := mediaType(contentType)
	isJSON := media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
	switch trimmed := trimStart(data); {
	case isJSON && len(trimmed) > 0:
		if err := checkJSON(trimmed); err != nil {
			return content{}, err
		}
		return jsonContent(trimmed)
	case media == "" && looksLikeObject(trimmed):
		o, err := parseObject(trimmed)
		return content{members: o}, err
	default:
		return content{text: strings.TrimPrefix(string(data), byteOrderMark)}, nil
	}
}

// jsonContent reads a valid JSON value: an object, the text that a string holds, nothing from
// null, and any other value as it is written. The error is a *Fault.
func jsonContent(value []byte) (content, error) {
	switch value = bytes.TrimSpace(value); value[0] {
	case '{':
		o, err := splitObject(value)
		return content{members: o}, err
	case '"':
		return content{text: unquote(value)}, nil
	case 'n':
		return content{}, nil
	default:
		return content{text: string(value)}, nil
	}
}

// trimStart drops blanks and byte order marks before the first byte that decides what data is.
func trimStart(data []byte) []byte {
	return bytes.TrimLeft(data, " \t\r\n"+byteOrderMark)
}

func looksLikeObject(data []byte) bool {
	return bytes.HasPrefix(trimStart(data), []byte("{"))
}

func checkUTF8(data []byte) error {
	if utf8.Valid(data) {
		return nil
	}
	at := 0
	for rest := data; len(rest) > 0; rest = data[at:] {
		r, size := utf8.DecodeRune(rest)
		if r == utf8.RuneError && size == 1 {
			break
		}
		at += size
	}
	return NewFault(ReasonBadUTF8, fmt.Sprintf("the body is not valid UTF-8 at byte %d", at+1), nil)
}

// read takes over the members of a body. The error is a *Fault.
func (e *Event) read(o object, bare bool) error {
	if bare {
		category, err := bodyCategory(o)
		if err != nil {
			return err
		}
		e.Category = category
	}
	id, err := text(o, "id")
	if err != nil {
		return err
	}
	e.identify(id)
	for _, target := range []struct {
		name  string
		value *string
	}{
		{"title", &e.Title}, {"text", &e.Text}, {"source", &e.Source},
	} {
		value, err := text(o, target.name)
		if err != nil {
			return err
		}
		if value != "" {
			*target.value = value
		}
	}
	if err := e.readSeverity(o); err != nil {
		return err
	}
	if err := e.readStatus(o); err != nil {
		return err
	}
	if err := e.readLink(o); err != nil {
		return err
	}
	if err := e.readFields(o); err != nil {
		return err
	}
	if err := e.readTime(o); err != nil {
		return err
	}
	return e.readCost(o)
}

// identify sets the ID unless id is empty or the producer gave one of higher rank before.
func (e *Event) identify(id string) {
	if e.Derived && id != "" {
		e.ID, e.Derived = stableID(id), false
	}
}

func (e *Event) readSeverity(o object) error {
	value, err := text(o, "severity")
	if err != nil || value == "" {
		return err
	}
	switch s := Severity(value); s {
	case SeverityInfo, SeverityWarning, SeverityError, SeverityCritical:
		e.Severity = s
		return nil
	default:
		return badField("severity", "one of info, warning, error and critical", excerpt(value), nil)
	}
}

func (e *Event) readStatus(o object) error {
	status, err := statusOf(o)
	if err != nil {
		return err
	}
	key, err := text(o, "key")
	if err != nil {
		return err
	}
	e.Status, e.Key = status, stableID(key)
	return nil
}

// statusOf returns the status that a body or an alert has, "" if it has none. The error is a *Fault.
func statusOf(o object) (Status, error) {
	value, err := text(o, "status")
	if err != nil || value == "" {
		return "", err
	}
	if s := Status(value); s == StatusFiring || s == StatusResolved {
		return s, nil
	}
	return "", badField("status", "firing or resolved", excerpt(value), nil)
}

func (e *Event) readLink(o object) error {
	value, err := text(o, "link")
	if err != nil || value == "" {
		return err
	}
	if ok, err := isLink(value); !ok {
		return badField("link", "an absolute http or https URL", excerpt(value), err)
	}
	e.Link = value
	return nil
}

// isLink reports whether s is an absolute http or https URL; where it is no URL at all, err says why.
func isLink(s string) (ok bool, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return false, fmt.Errorf("parsing a link: %w", err)
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "", nil
}

func (e *Event) readFields(o object) error {
	fields, err := texts(o, "fields")
	e.Fields = fields
	return err
}

// readTime keeps the time of the envelope where the body has none.
func (e *Event) readTime(o object) error {
	t, err := timeOf(o, "time")
	if !t.IsZero() {
		e.Time = t
	}
	return err
}

// readCost takes any notation of a whole number, so that 10, 10.0 and 1e1 are the same.
func (e *Event) readCost(o object) error {
	value := o.get("cost")
	if value == nil {
		return nil
	}
	cost, err := strconv.ParseFloat(string(value), 64)
	if err != nil || cost < 1 || cost > MaxCost || cost != float64(int(cost)) {
		return badField("cost", fmt.Sprintf("a whole number from 1 to %d", MaxCost), show(value), err)
	}
	e.Cost = int(cost)
	return nil
}

func bodyCategory(o object) (string, error) {
	value := o.get("category")
	switch {
	case value == nil, string(value) == `""`:
		return Default, nil
	case value[0] != '"':
		return "", NewFault(ReasonBadCategory, "category must be a string, not "+show(value), nil)
	default:
		return parseCategory(unquote(value))
	}
}

// parseCategory returns path in lower case if it is a category then. The error is a *Fault.
func parseCategory(path string) (string, error) {
	category := lowerASCII(path)
	if err := ValidatePath(category); err != nil {
		return "", NewFault(ReasonBadCategory, err.Error(), err)
	}
	return category, nil
}

// text returns the string that a member holds, "" if it is absent. The error is a *Fault.
func text(o object, name string) (string, error) {
	value := o.get(name)
	if value == nil {
		return "", nil
	}
	if value[0] != '"' {
		return "", badField(name, "a string", show(value), nil)
	}
	return unquote(value), nil
}

// texts returns the strings that a member, an object, holds: in the body's order; of duplicates
// the last one, at its place. The error is a *Fault.
func texts(o object, name string) ([]Field, error) {
	value := o.get(name)
	if value == nil {
		return nil, nil
	}
	if value[0] != '{' {
		return nil, badField(name, "an object of strings", show(value), nil)
	}
	members, err := splitObject(value)
	if err != nil {
		return nil, err
	}
	last := make(map[string]int, len(members))
	for i, m := range members {
		last[m.name] = i
	}
	var fields []Field
	for i, m := range members {
		if last[m.name] != i {
			continue
		}
		if m.value[0] != '"' {
			return nil, badField(name+"."+m.name, "a string", show(m.value), nil)
		}
		fields = append(fields, Field{m.name, unquote(m.value)})
	}
	return fields, nil
}

// timeOf returns the time that a member holds, zero if it is absent. The error is a *Fault.
func timeOf(o object, name string) (time.Time, error) {
	value, err := text(o, name)
	if err != nil || value == "" {
		return time.Time{}, err
	}
	t, err := parseTime(value)
	if err != nil {
		return time.Time{}, badField(name, "a time as in RFC 3339", excerpt(value), err)
	}
	return t, nil
}

func badField(name, expected, found string, err error) error {
	if shown := cut(name, maxExcerptBytes); len(shown) < len(name) {
		name = shown + mark
	}
	return NewFault(ReasonBadField, fmt.Sprintf("%s must be %s, not %s", name, expected, found), err)
}

// parseTime reads an RFC 3339 time, whose letters may be in either case and which must be one in
// UTC too: a zone may take it out of the four digits of the year.
func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, strings.ToUpper(s))
	if err != nil {
		return time.Time{}, fmt.Errorf("parsing a time: %w", err)
	}
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}, fmt.Errorf("parsing a time: year %d in UTC", t.Year())
	}
	return t, nil
}

// stableID returns id if it may stand in keys, logs and headers as it is, else a hash of it.
// 40 hexadecimal digits, 160 bits, leave no chance of a collision.
func stableID(id string) string {
	if len(id) <= MaxIDBytes && utf8.ValidString(id) && !strings.ContainsFunc(id, unicode.IsControl) && strings.TrimSpace(id) == id {
		return id
	}
	return hashed([]byte(id))
}

func hashed(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:20])
}

// headerValue returns the first value of a header, matched in any letter case. Among several
// spellings the one asked for wins, then the first in byte order, so that every redelivery reads
// the same.
func headerValue(header map[string][]string, name string) string {
	if values := header[name]; len(values) > 0 && values[0] != "" {
		return values[0]
	}
	var found, value string
	for key, values := range header {
		if len(key) == len(name) && strings.EqualFold(key, name) && len(values) > 0 && values[0] != "" &&
			(found == "" || key < found) {
			found, value = key, values[0]
		}
	}
	return value
}

// mediaType returns the media type of a Content-Type in lower case, without its parameters.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}
