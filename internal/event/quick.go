package event

import (
	"bytes"
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// Hints are what a search of a body finds out about its event without decoding it. A hint that is false is certain; where it is true, only
// Decode knows.
type Hints struct {
	Resolves bool // the event has StatusResolved
	Fires    bool // the event has StatusFiring
	Group    bool // the body is a group of alerts, which Parts splits
}

// HintsOf searches a body. It allocates nothing.
func HintsOf(data []byte) Hints {
	if !looksLikeObject(data) {
		return Hints{}
	}
	hidden := hidesText(data)
	return Hints{
		Resolves: hidden || bytes.Contains(data, []byte(`"resolved"`)),
		Fires:    hidden || bytes.Contains(data, []byte(`"firing"`)),
		Group:    hidden || bytes.Contains(data, []byte(`"alerts"`)),
	}
}

// Identify returns the event of m with only its identity, its cost and the category of the subject. It reads the envelope and a single
// alert, and only if they may contain an ID or a cost. It does not check whether the body is valid JSON, which would take most of the time:
// for an invalid body, it may return an ID that Decode does not read.
func (d Decoder) Identify(m Message) Event {
	category, _, _ := d.CategoryOf(m.Subject)
	if e, ok := d.QuickIdentity(m, category); ok && !mayHold(m.Data, `"cost"`) {
		e.Cost = 1
		return e
	}
	e, members := d.quickOpen(m, category)
	e.identify((&reader{members: members}).text("id"))
	alert, alerts := firstAlert(members)
	if e.Cost = 1; alerts == 0 {
		e.Cost = cmp.Or((&reader{members: members}).cost(), 1)
	}
	if id := onlyAlertID(alert, alerts); id != "" {
		e.ID, e.Derived = id, false
	}
	m.Room.impose(&e)
	return e
}

// QuickCategory returns the category of m, at the cost of Identify. For an invalid body on the bare subject, it may return a category that
// Decode does not read. It does not read the labels of alerts.
func (d Decoder) QuickCategory(m Message) string {
	category, bare, _ := d.CategoryOf(m.Subject)
	if bare {
		_, members := d.quickOpen(m, "")
		category = cmp.Or((&reader{members: members}).category(), Default)
	}
	return category
}

// quickOpen returns the members of the body, and the event of the subject, the headers and the envelope.
func (d Decoder) quickOpen(m Message, category string) (Event, object) {
	e, members, plain := d.quickMembers(m, category)
	if !plain {
		var c content
		var fault *Fault
		if e, c, fault = d.open(m); fault == nil {
			members = c.members
		}
	}
	return e, members
}

// quickMembers splits a body that is an object and no CloudEvent, with the event of the subject and the header. The result is not plain for
// another body: it has to be opened.
func (d Decoder) quickMembers(m Message, category string) (e Event, members object, plain bool) {
	if headerAttributes(m.Header) != nil || headerValue(m.Header, "Content-Type") != "" || !looksLikeObject(m.Data) ||
		d.MaxBytes > 0 && len(m.Data) > d.MaxBytes || !utf8.Valid(m.Data) {
		return Event{}, nil, false
	}
	e = Event{ID: m.derivedID(), Derived: true, Category: category}
	e.identify(MessageID(m.Header))
	members = splitObject(TrimStart(m.Data))
	return e, members, members.get("specversion") == nil
}

// QuickIdentity returns the event of m with only the given category and its identity, at the cost of a search. It is not ok if the body or
// its envelope may contain an ID or alerts, and for a message of the room: then only Decode knows.
func (d Decoder) QuickIdentity(m Message, category string) (e Event, ok bool) {
	e = Event{Derived: true, Category: category}
	e.identify(MessageID(m.Header))
	if m.Room != nil || mayHold(m.Data, `"alerts"`) || e.Derived && (headerAttributes(m.Header) != nil || mayHold(m.Data, `"id"`)) {
		return Event{}, false
	}
	if e.Derived {
		e.ID = m.derivedID()
	}
	return e, true
}

// mayHold reports whether the string quoted may stand in a JSON document, or in one within it.
func mayHold(data []byte, quoted string) bool {
	return bytes.Contains(data, []byte(quoted)) || hidesText(data)
}

// hidesText reports whether a JSON document may hold strings that a search does not find: written with escapes, or in base64.
func hidesText(data []byte) bool {
	const encoded = `_base64"` // the end of data_base64: a search is fast that begins with a rare byte
	return bytes.Contains(data, []byte(encoded)) || holdsEscapedWord(data)
}

// holdsEscapedWord reports whether data may contain an escaped ASCII letter, digit or underscore. Encoders escape many characters
// needlessly, but never these.
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

// QuickTitle returns the title of the event in data without decoding it: the title or the first visible line of the text. For a group of
// alerts, it is the title of the first alert. The result is "" if the title is unknown. QuickTitle ignores headers, although a header may
// declare an object to be text. For an invalid body, it returns any text that looks like a title.
func QuickTitle(data []byte) string {
	var title string
	if body := TrimStart(data); bytes.HasPrefix(body, []byte("{")) {
		if o := splitObject(body); o.get("specversion") != nil { // a CloudEvent
			title = dataTitle(o.get("data"))
		} else {
			title = objectTitle(o)
		}
	} else {
		title = firstLine(string(bytes.TrimPrefix(data, []byte(byteOrderMark))))
	}
	return strings.ToValidUTF8(title, string(utf8.RuneError))
}

func objectTitle(o object) string {
	if alert, alerts := firstAlert(o); alerts > 0 {
		return alertTitle(alert)
	}
	if s := stringValue(o.get("title")); visible(s) {
		return strings.TrimSpace(s)
	}
	return textTitle(o.get("text"))
}

// firstAlert returns the first alert of a group and the number of its alerts, 0 for any other object. It allocates nothing.
func firstAlert(o object) (first []byte, alerts int) {
	value := o.get("alerts")
	if value == nil || value[0] != '[' {
		return nil, 0
	}
	parse(value).ForEach(func(_, element gjson.Result) bool {
		if value[element.Index] != '{' {
			first, alerts = nil, 0
			return false
		}
		if alerts++; alerts == 1 {
			first = value[element.Index : element.Index+len(element.Raw)]
		}
		return true
	})
	return first, alerts
}

// onlyAlertID returns the identity of the first alert if the group has no other alert, "" for any other group.
func onlyAlertID(first []byte, alerts int) string {
	if alerts != 1 || checkJSON(first) != nil {
		return ""
	}
	a, fault := readAlert(first)
	if fault != nil {
		return ""
	}
	return a.id
}

// dataTitle returns the title in the data of a CloudEvent.
func dataTitle(value []byte) string {
	switch {
	case absent(value):
		return ""
	case value[0] == '{':
		return objectTitle(splitObject(value))
	case value[0] == '"':
		return textTitle(value)
	default:
		return firstLine(string(value))
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

// textTitle returns the first visible line of a JSON string.
func textTitle(value []byte) string { return firstLine(stringValue(value)) }

// stringValue returns the value of a JSON string, "" for any other value.
func stringValue(value []byte) string {
	if absent(value) || value[0] != '"' {
		return ""
	}
	return unquote(value)
}

// absent reports whether a member is missing or null.
func absent(value []byte) bool { return len(value) == 0 || value[0] == 'n' }
