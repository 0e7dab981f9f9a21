package event

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds that keep all parts of a group together a small multiple of its own size: each part
// repeats the group's source.
const (
	maxAlerts      = 1000
	maxSourceBytes = 1000
)

// Part is one alert of a group, as a message to store in its place. It is no CloudEvent: the headers of
// the group's message do not belong to it.
type Part struct {
	Subject string
	ID      string // of the group
	Derived bool   // the group's ID is derived
	Name    string // what tells the part from the others of its group; the same at each redelivery of the group
	Data    []byte // a JSON object in the notifier's own form
}

// Room is the part's identity, to be noted where the part is stored.
func (p Part) Room() *RoomIdentity { return &RoomIdentity{ID: p.ID, Derived: p.Derived, Part: p.Name} }

// Parts splits a body that holds a group of several alerts into one message for each, in their
// order. Each decodes, with its Room, to the event that a group of that alert alone would give, but that
// its identity is the group's ID and the part's name: the alert's fingerprint, as a rule. Where the group
// has no category the parts of alerts that name one are on its subject.
//
// Alerts that would not decode are left out, and bad tells of all of them at once: how many, and what is wrong
// with the first few. Its reason is that of the first.
//
// For every other message, for one that Decode finds a fault in as a whole, and where all alerts are bad (the
// fault is then that of Decode) it returns nothing. That costs no more than a search, unless the body may hold a group.
func (d Decoder) Parts(m Message) (parts []Part, bad *Fault) {
	if !looksLikeObject(m.Data) || !mayHold(m.Data, `"alerts"`) {
		return nil, nil
	}
	e, g, ok := d.openGroup(m)
	if !ok || len(g.alerts) < 2 || g.bad == len(g.alerts) {
		return nil, nil
	}
	m.Room.impose(&e)
	parts = make([]Part, 0, len(g.alerts)-g.bad)
	taken := make(map[string]bool, len(g.alerts))
	for i, a := range g.alerts {
		if a.bad {
			continue
		}
		name := a.name(i, taken)
		taken[name] = true
		part := Part{Subject: m.Subject, ID: e.ID, Derived: e.Derived, Name: name, Data: a.data}
		if e.Category == "" && a.Category != "" {
			part.Subject = d.Prefix + "." + a.Category
		}
		parts = append(parts, part)
	}
	return parts, g.fault()
}

// openGroup reads the alerts of a message; ok is false if it has a fault as a whole, which Decode tells.
func (d Decoder) openGroup(m Message) (e Event, g group, ok bool) {
	e, c, err := d.open(m)
	if err == nil {
		g, err = e.readGroup(c.members, d.MaxBytes)
	}
	return e, g, err == nil
}

// group is the alerts of a body, those included of which there will be no event.
type group struct {
	alerts []groupAlert
	bad    int
	faults []*Fault // of the first bad alerts
}

type groupAlert struct {
	alert
	data []byte
	bad  bool
}

// Bounds of what a fault tells of the alerts of a group: how many of them, how much of each.
const (
	toldAlerts        = 2
	maxToldAlertBytes = 72
)

// refuse notes that an alert is bad. Only of the first ones it says why, behind the alert's place: a small body holds many.
func (g *group) refuse(i int, joint string, err func() error) {
	g.alerts[i].bad = true
	if g.bad++; len(g.faults) < toldAlerts {
		g.faults = append(g.faults, within(fmt.Sprintf("alerts[%d]%s", i, joint), err()))
	}
}

// fault tells of all bad alerts at once; nil if there are none.
func (g *group) fault() *Fault {
	if g.bad == 0 {
		return nil
	}
	first := g.faults[0]
	if g.bad == 1 {
		return first
	}
	var detail strings.Builder
	fmt.Fprintf(&detail, "%d of %d alerts are bad: ", g.bad, len(g.alerts))
	for i, fault := range g.faults {
		if i > 0 {
			detail.WriteString("; ")
		}
		told := cut(fault.Detail, maxToldAlertBytes)
		if detail.WriteString(told); len(told) < len(fault.Detail) {
			detail.WriteString(mark)
		}
	}
	if more := g.bad - len(g.faults); more > 0 {
		fmt.Fprintf(&detail, "; and %d more", more)
	}
	return NewFault(first.Reason, detail.String(), first.Err)
}

// alert is one alert of a group in the notifier's own form, which Decode reads. The order of its
// fields is that of their names.
type alert struct {
	Title    string            `json:"title,omitempty"`
	Text     string            `json:"text,omitempty"`
	Severity Severity          `json:"severity"`
	Status   Status            `json:"status,omitempty"`
	Key      string            `json:"key,omitempty"`
	Category string            `json:"category,omitempty"`
	Source   string            `json:"source,omitempty"`
	Link     string            `json:"link,omitempty"`
	Time     time.Time         `json:"time,omitzero"`
	Fields   map[string]string `json:"fields,omitempty"`
}

// name returns what tells the alert at place i from the others of its group, whose names are taken.
func (a alert) name(i int, taken map[string]bool) string {
	place := strconv.Itoa(i)
	name := cmp.Or(a.Key, place)
	for taken[name] {
		name += "/" + place
	}
	return name
}

// encoded returns the alert as a JSON object, without the escapes for HTML that would make it longer.
func (a alert) encoded() []byte {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(a) // cannot fail: strings, and a time that has been read from RFC 3339
	return bytes.TrimSpace(data.Bytes())
}

// readGroup returns the alerts of a group, none if o is no group, and takes over the group's ID. An alert is bad if
// the message that it would be split into would not decode, with at most maxBytes (0: no limit). The error is
// a *Fault of the group as a whole.
func (e *Event) readGroup(o object, maxBytes int) (group, error) {
	elements, ok := alertsOf(o)
	if !ok {
		return group{}, nil
	}
	id, err := text(o, "id")
	if err != nil {
		return group{}, err
	}
	e.identify(id)
	switch count := len(elements); {
	case count == 0:
		return group{}, NewFault(ReasonEmpty, "alerts is an empty array", nil)
	case count > maxAlerts:
		return group{}, badField("alerts", fmt.Sprintf("an array of at most %d alerts", maxAlerts), fmt.Sprintf("of %d", count), nil)
	}
	external, err := text(o, "externalURL")
	if err != nil {
		return group{}, err
	}
	receiver, err := text(o, "receiver")
	if err != nil {
		return group{}, err
	}
	source := cut(cmp.Or(external, receiver, e.Source), maxSourceBytes)
	g := group{alerts: make([]groupAlert, len(elements))}
	for i, element := range elements {
		a, err := readAlert(element)
		if err != nil {
			g.refuse(i, ".", func() error { return err })
			continue
		}
		a.Source = source
		if !a.shows() && len(elements) > 1 && a.surelyFits(len(element), maxBytes) {
			g.refuse(i, ": ", func() error { return nothingToShow() })
			continue // most of what it costs to read it lies ahead
		}
		if a.Time.IsZero() {
			a.Time = e.Time
		}
		g.alerts[i].alert, g.alerts[i].data = a, a.encoded()
		if len(elements) == 1 {
			break // it is not split, but decoded on the spot
		}
		if fault := a.fault(len(g.alerts[i].data), maxBytes); fault != nil {
			g.refuse(i, ": ", func() error { return fault })
		}
	}
	return g, nil
}

// fault is why an alert that could be read is no event by itself; nil: it is one.
func (a alert) fault(size, maxBytes int) *Fault {
	switch {
	case maxBytes > 0 && size > maxBytes:
		return tooLarge(size, maxBytes)
	case !a.shows():
		return nothingToShow()
	}
	return nil
}

func (a alert) shows() bool { return visible(a.Title) || visible(a.Text) }

// surelyFits tells that an alert that was read from so many bytes does not exceed a limit, without encoding it: no byte takes more
// than six then, and the names of all members and two times less than frame.
func (a alert) surelyFits(size, maxBytes int) bool {
	const longestEscape, frame = 6, 512
	return maxBytes == 0 || longestEscape*(size+len(a.Source))+frame <= maxBytes
}

// alertsOf returns the elements of the member alerts if it is an array of objects. Any other is a
// member that an Event does not know.
func alertsOf(o object) (elements [][]byte, ok bool) {
	value := o.get("alerts")
	if value == nil || value[0] != '[' {
		return nil, false
	}
	elements = splitArray(value)
	for _, element := range elements {
		if element[0] != '{' {
			return nil, false
		}
	}
	return elements, true
}

// readAlert translates one alert. The error is a *Fault whose detail begins with the member.
//
//   - title: the annotation summary, else the label alertname; text: the annotation description,
//     else message.
//   - severity: by the label severity, in the words that are common for it; without one that is
//     known a firing alert is a warning.
//   - status as it is; key: the fingerprint, else a hash of all labels.
//   - category: the label, if it is a category.
//   - time: startsAt; endsAt of a resolved alert.
//   - link: the first of panelURL, dashboardURL and generatorURL that can be one.
//   - fields: the labels but for alertname and severity, and valueString.
func readAlert(data []byte) (alert, error) {
	o := splitObject(data)
	status, err := statusOf(o)
	if err != nil {
		return alert{}, err
	}
	a := alert{Status: status}
	labels, err := textMap(o, "labels")
	if err != nil {
		return alert{}, err
	}
	annotations, err := textMap(o, "annotations")
	if err != nil {
		return alert{}, err
	}
	a.Title = firstVisible(annotations["summary"], labels["alertname"])
	a.Text = firstVisible(annotations["description"], annotations["message"])
	a.Severity = alertSeverity(labels["severity"], a.Status)
	if category := lowerASCII(labels["category"]); category != "" && ValidatePath(category) == nil {
		a.Category = category
	}
	if a.Key, err = alertKey(o, labels); err != nil {
		return alert{}, err
	}
	if a.Time, err = alertTime(o, a.Status); err != nil {
		return alert{}, err
	}
	if a.Link, err = alertLink(o); err != nil {
		return alert{}, err
	}
	value, err := text(o, "valueString")
	if err != nil {
		return alert{}, err
	}
	if value != "" {
		labels["valueString"] = value
	}
	delete(labels, "alertname")
	delete(labels, "severity")
	a.Fields = labels
	return a, nil
}

// alertSeverity maps the words that rules commonly use; none of them is a standard.
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

// alertKey returns the fingerprint, else a hash that is the same for the same labels in any order,
// "" if there are none either.
func alertKey(o object, labels map[string]string) (string, error) {
	fingerprint, err := text(o, "fingerprint")
	if err != nil || fingerprint != "" || len(labels) == 0 {
		return stableID(fingerprint), err
	}
	var all []byte
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		value := labels[name]
		all = fmt.Appendf(all, "%d:%s%d:%s", len(name), name, len(value), value) // lengths keep different labels apart
	}
	return hashed(all), nil
}

// alertTime returns when the alert started, or when it ended if it is over. The other time is read
// too: a fault in it must not show only when the alert ends.
func alertTime(o object, status Status) (time.Time, error) {
	start, err := timeOf(o, "startsAt")
	if err != nil {
		return time.Time{}, err
	}
	end, err := timeOf(o, "endsAt")
	if err != nil {
		return time.Time{}, err
	}
	if status == StatusResolved && !end.IsZero() {
		return end, nil
	}
	return start, nil
}

// alertLink passes over what cannot be linked: rules and templates make such, and the alert matters more.
func alertLink(o object) (string, error) {
	var link string
	for _, name := range []string{"panelURL", "dashboardURL", "generatorURL"} {
		value, err := text(o, name)
		if err != nil {
			return "", err
		}
		if value == "" || link != "" {
			continue
		}
		if ok, err := isLink(value); ok && err == nil {
			link = value
		}
	}
	return link, nil
}

// textMap is texts as a map, never nil.
func textMap(o object, name string) (map[string]string, error) {
	fields, err := texts(o, name)
	m := make(map[string]string, len(fields))
	for _, f := range fields {
		m[f.Name] = f.Value
	}
	return m, err
}

// within says in a fault's detail where the alert stands that it is about.
func within(place string, err error) *Fault {
	var fault *Fault
	if !errors.As(err, &fault) {
		return NewFault(ReasonBadField, place+err.Error(), err) // unreachable: reading an alert returns faults alone
	}
	return NewFault(fault.Reason, place+fault.Detail, fault.Err)
}
