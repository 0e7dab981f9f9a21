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

// Part is one alert of a group, as a message to publish in its place. It is no CloudEvent: the
// headers of the group's message do not belong to it.
type Part struct {
	Subject string
	ID      string // for the header Nats-Msg-Id; the same at each redelivery of the group
	Data    []byte // a JSON object in the notifier's own form
}

// Parts splits a body that holds a group of several alerts into one message for each, in their
// order. Each decodes to the event that a group of that alert alone would give, but for the ID: the
// group's ID, "/" and the alert's fingerprint. Where the group has no category the parts of alerts
// that name one are on its subject.
//
// It returns nil for every other message, and for one that Decode finds a fault in. That costs no
// more than a search, unless the body may hold a group.
func (d Decoder) Parts(m Message) []Part {
	if !looksLikeObject(m.Data) || !mayHold(m.Data, `"alerts"`) {
		return nil
	}
	e, c, err := d.open(m)
	if err != nil {
		return nil
	}
	alerts, err := e.readAlerts(c.members)
	if err != nil || len(alerts) < 2 {
		return nil
	}
	parts := make([]Part, len(alerts))
	taken := make(map[string]bool, len(alerts))
	for i, a := range alerts {
		name := a.name(i, taken)
		taken[name] = true
		parts[i] = Part{Subject: m.Subject, ID: stableID(e.ID + "/" + name), Data: a.data()}
		if e.Category == "" && a.Category != "" {
			parts[i].Subject = d.Prefix + "." + a.Category
		}
	}
	return parts
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

// data returns the alert as a JSON object, without the escapes for HTML that would make it longer.
func (a alert) data() []byte {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(a) // cannot fail: strings, and a time that has been read from RFC 3339
	return bytes.TrimSpace(data.Bytes())
}

func (a alert) members() (object, error) { return splitObject(a.data()) }

// readAlerts returns the alerts of a group, none if o is no group, and takes over the group's ID. The
// error is a *Fault.
func (e *Event) readAlerts(o object) ([]alert, error) {
	elements, ok, err := alertsOf(o)
	if err != nil || !ok {
		return nil, err
	}
	id, err := text(o, "id")
	if err != nil {
		return nil, err
	}
	e.identify(id)
	switch count := len(elements); {
	case count == 0:
		return nil, NewFault(ReasonEmpty, "alerts is an empty array", nil)
	case count > maxAlerts:
		return nil, badField("alerts", fmt.Sprintf("an array of at most %d alerts", maxAlerts), fmt.Sprintf("of %d", count), nil)
	}
	external, err := text(o, "externalURL")
	if err != nil {
		return nil, err
	}
	receiver, err := text(o, "receiver")
	if err != nil {
		return nil, err
	}
	source := cut(cmp.Or(external, receiver, e.Source), maxSourceBytes)
	alerts := make([]alert, len(elements))
	for i, element := range elements {
		if alerts[i], err = readAlert(element); err != nil {
			return nil, within(fmt.Sprintf("alerts[%d].", i), err)
		}
		alerts[i].Source = source
		if alerts[i].Time.IsZero() {
			alerts[i].Time = e.Time
		}
	}
	return alerts, nil
}

// alertsOf returns the elements of the member alerts if it is an array of objects. Any other is a
// member that an Event does not know.
func alertsOf(o object) (elements [][]byte, ok bool, err error) {
	value := o.get("alerts")
	if value == nil || value[0] != '[' {
		return nil, false, nil
	}
	elements, err = splitArray(value)
	if err != nil {
		return nil, false, err
	}
	for _, element := range elements {
		if element[0] != '{' {
			return nil, false, nil
		}
	}
	return elements, true, nil
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
	o, err := splitObject(data)
	if err != nil {
		return alert{}, err
	}
	var a alert
	if a.Status, err = statusOf(o); err != nil {
		return alert{}, err
	}
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
	if category := lowerASCII(labels["category"]); ValidatePath(category) == nil {
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
		if ok, err := isLink(value); link == "" && ok && err == nil {
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

// within says in a fault's detail, which begins with a member, where that member stands.
func within(place string, err error) error {
	var fault *Fault
	if !errors.As(err, &fault) {
		return err
	}
	return NewFault(fault.Reason, place+fault.Detail, fault.Err)
}
