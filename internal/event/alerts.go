package event

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds for the total size of all parts of a group, because each part repeats the group's source.
const (
	maxAlerts      = 1000
	maxSourceBytes = 1000
)

// Part is one alert of a group, as a message that replaces it. It is not a CloudEvent, and the headers of the group's message do not apply
// to it.
type Part struct {
	Subject string
	Room    RoomIdentity // the identity to store with the part; equal at each redelivery of the group
	Data    []byte       // a JSON object in the notifier's own form
}

// Parts splits a body with several alerts into one message for each alert, in their order. Each message, with its Room, decodes to the
// event of a group with that alert alone. An alert without its own identity gets the group's ID and a name within the group. An alert that
// occurs twice is one part. On the bare prefix, a part is on the subject of the body's category or, without one, of the alert's label.
//
// Parts omits invalid alerts, and bad describes all of them: their number and the first few errors. Its reason is the reason of the first.
//
// Parts returns nothing for every other message, for a body that Decode rejects as a whole, and for a group with only invalid alerts:
// Decode returns their fault. For a body that cannot contain a group, this costs one search.
func (d Decoder) Parts(m Message) (parts []Part, bad *Fault) {
	if !HintsOf(m.Data).Group {
		return nil, nil
	}
	e, c, fault := d.open(m)
	if fault != nil {
		return nil, nil //nolint:nilerr // Decode returns this fault
	}
	g, fault := e.readGroup(c.members, d.MaxBytes)
	if fault != nil || len(g.alerts) < 2 || g.bad == len(g.alerts) {
		return nil, nil //nolint:nilerr // Decode returns this fault
	}
	m.Room.impose(&e)
	parts = make([]Part, 0, len(g.alerts)-g.bad)
	taken := make(map[string]bool, len(g.alerts)) // names within the group, and identities with their subjects
	for i, a := range g.alerts {
		if a.data == nil {
			continue
		}
		part := Part{Subject: m.Subject, Room: RoomIdentity{ID: a.id}, Data: a.data}
		if category := cmp.Or(e.Category, a.Category); m.Subject == d.Prefix && category != "" {
			part.Subject = d.Prefix + "." + category
		}
		name := part.Subject + " " + a.id
		switch {
		case a.id == "":
			name = a.name(i, taken)
			part.Room = RoomIdentity{ID: e.ID, Derived: e.Derived, Part: name}
		case taken[name]:
			continue
		}
		taken[name] = true
		parts = append(parts, part)
	}
	return parts, g.fault()
}

// MessagesOf returns the messages that a decoder makes events of: one for each part of a body with several alerts, and otherwise the message
// itself. It returns the fault of [Decoder.Parts].
func MessagesOf(d Decoder, m Message) (messages []Message, bad *Fault) {
	parts, bad := d.Parts(m)
	if parts == nil {
		return []Message{m}, nil
	}
	for _, part := range parts {
		messages = append(messages, Message{Subject: part.Subject, Data: part.Data, Stream: m.Stream, Sequence: m.Sequence, Room: &part.Room})
	}
	return messages, bad
}

// Bounds for the description of invalid alerts: the number of alerts, the size of each.
const (
	toldAlerts    = 2
	maxFaultBytes = 72
)

// group has all alerts of a body, including the invalid ones.
type group struct {
	alerts []alert
	bad    int
	faults []*Fault // of the first bad alerts
}

// refuse counts an invalid alert. It stores only the first faults, because a small body may have many.
func (g *group) refuse(i int, joint string, fault *Fault) {
	if g.bad++; len(g.faults) < toldAlerts {
		detail := fmt.Sprintf("alerts[%d]%s%s", i, joint, fault.Detail)
		g.faults = append(g.faults, NewFault(fault.Reason, detail))
	}
}

// fault describes all invalid alerts; nil if there are none.
func (g *group) fault() *Fault {
	if g.bad == 0 {
		return nil
	}
	first := g.faults[0]
	if g.bad == 1 {
		return first
	}
	var faults []string
	for _, fault := range g.faults {
		faults = append(faults, shortened(fault.Detail, maxFaultBytes))
	}
	detail := fmt.Sprintf("%d of %d alerts are bad: %s", g.bad, len(g.alerts), strings.Join(faults, "; "))
	if more := g.bad - len(g.faults); more > 0 {
		detail += fmt.Sprintf("; and %d more", more)
	}
	return NewFault(first.Reason, detail)
}

// alert is one alert of a group in the notifier's own form, which Decode reads. Its fields are in the order of their names.
type alert struct {
	Title    string            `json:"title,omitempty"`
	Text     string            `json:"text,omitempty"`
	Severity Severity          `json:"severity"`
	Status   Status            `json:"status,omitempty"`
	Key      string            `json:"key,omitempty"`
	Category string            `json:"category,omitempty"`
	Source   string            `json:"source,omitempty"`
	Link     string            `json:"link,omitempty"`
	Links    alertLinks        `json:"links,omitzero"`
	Time     time.Time         `json:"time,omitzero"`
	Fields   map[string]string `json:"fields,omitempty"`

	id   string // its identity within its category; empty if it has none
	data []byte // the alert as a JSON object; nil if the alert is invalid
}

// alertLinks are the links of an alert, in the order of their importance.
type alertLinks struct {
	Runbook   string `json:"Runbook,omitempty"`
	Dashboard string `json:"Dashboard,omitempty"`
	Panel     string `json:"Panel,omitempty"`
	Source    string `json:"Source,omitempty"`
	Silence   string `json:"Silence,omitempty"`
}

// name returns a name for the alert at place i that is unique among the taken names of its group.
func (a alert) name(i int, taken map[string]bool) string {
	place := strconv.Itoa(i)
	name := cmp.Or(a.Key, place)
	for taken[name] {
		name += "/" + place
	}
	return name
}

// encoded returns the alert as a JSON object, without HTML escapes, which would make it longer.
func (a alert) encoded() []byte {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(a) // cannot fail: strings, and a time that has been read from RFC 3339
	return bytes.TrimSpace(data.Bytes())
}

// readGroup returns the alerts of a group, none if o is not a group. It sets the group's ID, and its category if the subject names none. An
// alert is invalid if its message would not decode, with at most maxBytes (0: no bound). The fault concerns the group as a whole.
func (e *Event) readGroup(o object, maxBytes int) (group, *Fault) {
	elements, ok := alertsOf(o)
	if !ok {
		return group{}, nil
	}
	r := reader{members: o}
	if e.Category == "" {
		e.Category = r.category()
	}
	e.identify(r.text("id"))
	switch count := len(elements); {
	case r.fault != nil:
	case count == 0:
		r.fault = NewFault(ReasonEmpty, "alerts is an empty array")
	case count > maxAlerts:
		r.refuse("alerts", fmt.Sprintf("an array of at most %d alerts", maxAlerts), fmt.Sprintf("of %d", count))
	}
	external, receiver := r.text("externalURL"), r.text("receiver")
	if r.fault != nil {
		return group{}, r.fault
	}
	source := cut(cmp.Or(external, receiver, e.Source), maxSourceBytes)
	g := group{alerts: make([]alert, len(elements))}
	for i, element := range elements {
		a, fault := readAlert(element)
		if fault != nil {
			g.refuse(i, ".", fault)
			continue
		}
		a.Source = source
		if a.Time.IsZero() {
			a.Time = e.Time
		}
		if len(elements) > 1 {
			a.data, fault = a.message(len(element), maxBytes)
		} else {
			a.data = a.encoded() // the group is not split: Decode says what is wrong with its alert
		}
		if fault != nil {
			g.refuse(i, ": ", fault)
		}
		g.alerts[i] = a
	}
	return g, nil
}

// message returns the body of an alert's message or the reason why it would not decode. The alert was read from size bytes.
func (a alert) message(size, maxBytes int) ([]byte, *Fault) {
	// Encoding an alert without visible text would cost more than reading it, so it is skipped if the alert certainly fits: a byte becomes
	// at most six when encoded, and the names of all members and the time take less than frame.
	const longestEscape, frame = 6, 512
	shows := visible(a.Title) || visible(a.Text)
	if !shows && (maxBytes == 0 || longestEscape*(size+len(a.Source))+frame <= maxBytes) {
		return nil, nothingToShow
	}
	data := a.encoded()
	switch {
	case maxBytes > 0 && len(data) > maxBytes:
		return nil, tooLarge(len(data), maxBytes)
	case !shows:
		return nil, nothingToShow
	}
	return data, nil
}

// alertsOf returns the elements of the member alerts if it is an array of objects. Any other value is an unknown member.
func alertsOf(o object) (elements [][]byte, ok bool) {
	value := o.get("alerts")
	if value == nil || value[0] != '[' {
		return nil, false
	}
	elements = splitArray(value)
	return elements, !slices.ContainsFunc(elements, func(element []byte) bool { return element[0] != '{' })
}

// readAlert translates one alert. The detail of a fault begins with the member.
//
//   - title: the annotation summary or the label alertname; text: the annotation description or message.
//   - severity: the label severity, in its common words; a firing alert with any other word is a warning.
//   - status: unchanged; key: the fingerprint or a hash of all labels.
//   - category: the label, if it is valid. The category of the subject or of the body has precedence.
//   - identity: the key, the status and startsAt.
//   - time: startsAt; endsAt of a resolved alert.
//   - links: the annotation runbook_url, dashboardURL, panelURL, generatorURL as Source, and silenceURL, if they are valid URLs.
//   - link: the first valid URL of panelURL, dashboardURL and generatorURL.
//   - fields: the labels without alertname and severity, and valueString.
func readAlert(data []byte) (alert, *Fault) {
	r := reader{members: splitObject(data)}
	a := alert{Status: r.status()}
	labels, annotations := r.textMap("labels"), r.textMap("annotations")
	a.Title = firstVisible(annotations["summary"], labels["alertname"])
	a.Text = firstVisible(annotations["description"], annotations["message"])
	a.Severity = alertSeverity(labels["severity"], a.Status)
	if category := lowerASCII(labels["category"]); category != "" && ValidatePath(category) == nil {
		a.Category = category
	}
	a.Key = stableID(r.text("fingerprint"))
	if a.Key == "" && len(labels) > 0 {
		a.Key = hashOf(labels)
	}
	// Both times are read, so that a fault in endsAt shows before the alert ends.
	start, end := r.time("startsAt"), r.time("endsAt")
	if a.Time = start; a.Status == StatusResolved && !end.IsZero() {
		a.Time = end
	}
	a.Links = alertLinks{
		Runbook: linkOrNone(annotations["runbook_url"]), Dashboard: linkOrNone(r.text("dashboardURL")), Panel: linkOrNone(r.text("panelURL")),
		Source: linkOrNone(r.text("generatorURL")), Silence: linkOrNone(r.text("silenceURL")),
	}
	a.Link = cmp.Or(a.Links.Panel, a.Links.Dashboard, a.Links.Source)
	if value := r.text("valueString"); value != "" {
		labels["valueString"] = value
	}
	r.checkResolved(a.Status, a.Key)
	a.id = a.identity(start)
	delete(labels, "alertname")
	delete(labels, "severity")
	a.Fields = labels
	return a, r.fault
}

// alertSeverity maps the common words of alert rules; there is no standard.
func alertSeverity(word string, status Status) Severity {
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "critical", "crit", "page", "emergency", "emerg", "fatal", "panic", "disaster":
		return SeverityCritical
	case "error", "err", "high", "major":
		return SeverityError
	case "warning", "warn", "medium", "moderate", "average", "minor":
		return SeverityWarning
	case "info", "information", "informational", "notice", "low", "debug", "none", "ok":
		return SeverityInfo
	}
	if status == StatusFiring {
		return SeverityWarning
	}
	return SeverityInfo
}

// hashOf returns a hash that does not depend on the order of the labels.
func hashOf(labels map[string]string) string {
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		value := labels[name]
		all = fmt.Appendf(all, "%d:%s%d:%s", len(name), name, len(value), value) // lengths keep different labels apart
	}
	return hashed(all)
}

// linkOrNone returns a text if it is a link and "" otherwise: an invalid link of a rule does not invalidate the alert.
func linkOrNone(text string) string {
	if isLink(text) {
		return text
	}
	return ""
}

// textMap is texts as a map, never nil.
func (r *reader) textMap(name string) map[string]string {
	fields := r.texts(name)
	m := make(map[string]string, len(fields))
	for _, f := range fields {
		m[f.Name] = f.Value
	}
	return m
}
