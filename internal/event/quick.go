package event

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"
)

// MayResolve reports whether data may decode to an event with StatusResolved. Where it is false the
// event certainly has another status; where it is true only Decode knows. It allocates nothing.
func MayResolve(data []byte) bool {
	return looksLikeObject(data) && mayHold(data, `"resolved"`)
}

// MayFire is MayResolve for an event with StatusFiring.
func MayFire(data []byte) bool {
	return looksLikeObject(data) && mayHold(data, `"firing"`)
}

// MayHoldGroup reports whether data may be a group of alerts. Where it is false, Parts returns nothing. It allocates nothing.
func MayHoldGroup(data []byte) bool {
	return looksLikeObject(data) && mayHold(data, `"alerts"`)
}

// Identify returns the event that m decodes to with its identity and, where the subject names it, its category alone. It reads the envelope and a
// single alert, and these only if they may hold an ID.
func (d Decoder) Identify(m Message) Event {
	category, _, _ := d.categoryOf(m.Subject)
	if e, ok := d.QuickIdentity(m, category); ok {
		return e
	}
	e, c, fault := d.open(m)
	if fault == nil {
		e.identify((&reader{members: c.members}).text("id"))
		e.identifyAlert(c.members)
	}
	m.Room.impose(&e)
	return e
}

// identifyAlert gives the event of a single alert the identity of that alert.
func (e *Event) identifyAlert(o object) {
	elements, ok := alertsOf(o)
	if !ok || len(elements) != 1 {
		return
	}
	if a, fault := readAlert(elements[0]); fault == nil && a.id != "" {
		e.ID, e.Derived = a.id, false
	}
}

// QuickIdentity returns the event that m decodes to with its category, as the subject names it, and its identity alone, without
// looking at more of the body than a search does. It is not ok where the body or its envelope may hold an ID or alerts, or for a message
// of the room: only Decode knows then.
func (d Decoder) QuickIdentity(m Message, category string) (e Event, ok bool) {
	e = Event{ID: m.derivedID(), Derived: true, Category: category}
	e.identify(headerValue(m.Header, "Nats-Msg-Id"))
	if m.Room != nil || mayHold(m.Data, `"alerts"`) || e.Derived && (headerAttributes(m.Header) != nil || mayHold(m.Data, `"id"`)) {
		return Event{}, false
	}
	return e, true
}

// mayHold reports whether the string quoted may stand in a JSON document, or in one within it: as it
// is, written with escapes, or in base64.
func mayHold(data []byte, quoted string) bool {
	const encoded = `_base64"` // the end of data_base64: a search is fast that begins with a rare byte
	return bytes.Contains(data, []byte(quoted)) || bytes.Contains(data, []byte(encoded)) || holdsEscapedWord(data)
}

// holdsEscapedWord reports whether a letter or digit of ASCII, or an underscore, may be written as an
// escape. Encoders escape many characters beyond need, but never those.
func holdsEscapedWord(data []byte) bool {
	const prefix = `\u00`
	for {
		i := bytes.Index(data, []byte(prefix))
		if i < 0 || len(data) < i+len(`\u0000`) {
			return false
		}
		data = data[i+len(prefix):]
		switch high, low := data[0], data[1]; {
		case high == '3' && '0' <= low && low <= '9', '4' <= high && high <= '7':
			return true
		}
	}
}

// QuickTitle returns what to call the event that data decodes to, without decoding data: the title of the event, else the
// first line of its text that holds something visible. For a group of alerts, the event is that of the first alert. The
// result is "" where that is not known. QuickTitle does not know the headers: a header may say that an object is to be taken
// as text. Of a body that does not decode, it returns whatever looks like a title.
func QuickTitle(data []byte) string {
	var title string
	if body := trimStart(data); bytes.HasPrefix(body, []byte("{")) {
		title = objectTitle(body, true)
	} else {
		title = plainTitle(bytes.TrimPrefix(data, []byte(byteOrderMark)))
	}
	return strings.ToValidUTF8(title, string(utf8.RuneError))
}

// objectTitle returns the title in an object. As an envelope it may hold the object within a CloudEvent.
func objectTitle(data []byte, envelope bool) string {
	o := splitObject(data)
	if envelope && o.get("specversion") != nil {
		return dataTitle(o.get("data"))
	}
	if alerts, ok := alertsOf(o); ok && len(alerts) > 0 {
		return alertTitle(alerts[0])
	}
	if s := stringValue(o.get("title")); visible(s) {
		return strings.TrimSpace(s)
	}
	return textTitle(o.get("text"))
}

// dataTitle returns the title in the data of a CloudEvent.
func dataTitle(value []byte) string {
	switch {
	case absent(value):
		return ""
	case value[0] == '{':
		return objectTitle(value, false)
	case value[0] == '"':
		return textTitle(value)
	default:
		return plainTitle(value)
	}
}

func alertTitle(data []byte) string {
	alert := splitObject(data)
	labels, annotations := splitObject(alert.get("labels")), splitObject(alert.get("annotations"))
	summary, alertname := annotations.get("summary"), labels.get("alertname")
	if title := firstVisible(stringValue(summary), stringValue(alertname)); title != "" {
		return strings.TrimSpace(title)
	}
	if title := textTitle(annotations.get("description")); title != "" {
		return title
	}
	return textTitle(annotations.get("message"))
}

// plainTitle returns the first visible line of plain text.
func plainTitle(text []byte) string {
	for line := range bytes.Lines(text) {
		if title := firstLine(string(line)); title != "" {
			return title
		}
	}
	return ""
}

// textTitle returns the first visible line of a JSON string. It undoes the escapes of no more than that
// line: texts are long where they have many.
func textTitle(value []byte) string {
	if absent(value) || value[0] != '"' {
		return ""
	}
	for rest := value[1 : len(value)-1]; len(rest) > 0; {
		end, next := lineEnd(rest)
		if title := firstLine(unescaped(rest[:end])); title != "" {
			return title
		}
		rest = rest[next:]
	}
	return ""
}

// lineEnd returns where the first line of a JSON string's inside ends and where the next one starts.
func lineEnd(inside []byte) (end, next int) {
	for i := 0; ; {
		backslash := bytes.IndexByte(inside[i:], '\\')
		if backslash < 0 || i+backslash+1 >= len(inside) {
			return len(inside), len(inside)
		}
		if i += backslash; inside[i+1] == 'n' {
			return i, i + len(`\n`)
		}
		i += len(`\\`)
	}
}

// stringValue returns the string that a value is, "" if it is something else.
func stringValue(value []byte) string {
	if absent(value) || value[0] != '"' {
		return ""
	}
	return unquote(value)
}

// unescaped is unquote for a part of a JSON string.
func unescaped(inside []byte) string {
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside)
	}
	return unquote(slices.Concat([]byte{'"'}, inside, []byte{'"'}))
}

// absent tells of a member that is not there or null.
func absent(value []byte) bool { return len(value) == 0 || value[0] == 'n' }
