package event

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// Alert is one alert of a webhook body of Alertmanager or Grafana, as a separate message.
type Alert struct {
	// ID is the alert's identity within its category, in any body; Decode sets it for the alert's event. It is empty for an alert without a
	// start or with neither fingerprint nor labels: the event of such an alert has the ID of its message.
	ID   string
	Data []byte // the body of a message: a group of this alert alone
}

// ReadAlert reads one element of the array alerts of a body, as a json.Decoder returns it. The source is the body's externalURL or receiver;
// it may be empty. The fault explains why Decode would reject Alert.Data; its detail begins with the member of the alert.
func (d Decoder) ReadAlert(element []byte, source string) (Alert, *Fault) {
	if fault := checkUTF8(element); fault != nil {
		return Alert{}, fault
	}
	if !looksLikeObject(element) {
		return Alert{}, NewFault(ReasonBadField, "an alert must be an object, not "+show(element))
	}
	named, _ := json.Marshal(cut(source, maxSourceBytes)) // cannot fail: a string
	data := slices.Concat([]byte(`{"externalURL":`), named, []byte(`,"alerts":[`), element, []byte(`]}`))
	if fault := checkJSON(data); fault != nil { // of the whole: it is nested deeper than the element
		return Alert{}, fault
	}
	a, fault := readAlert(element)
	switch {
	case fault != nil:
		return Alert{}, fault
	case d.MaxBytes > 0 && len(data) > d.MaxBytes:
		return Alert{}, tooLarge(len(data), d.MaxBytes)
	case !visible(a.Title) && !visible(a.Text):
		return Alert{}, nothingToShow
	}
	return Alert{ID: a.id, Data: data}, nil
}

// AlertID returns the identity of an alert that is alone in a message, also in the data of a CloudEvent: the ID of the message's event,
// whatever its headers and its envelope contain. It is "" for any other message and for an alert without its own identity.
func (d Decoder) AlertID(m Message) string {
	if !HintsOf(m.Data).Group {
		return ""
	}
	_, c, fault := d.open(m)
	if fault != nil {
		return ""
	}
	return onlyAlertID(firstAlert(c.members))
}

// identity returns the alert's identity within its category: key, status and start. It is empty without a key or a start, because another
// occurrence of the alert would have an equal identity.
func (a alert) identity(start time.Time) string {
	if a.Key == "" || start.IsZero() {
		return ""
	}
	words := []string{a.Key, string(a.Status), start.Format(time.RFC3339Nano)}
	return stableID(strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " "))
}

// IsGroup reports whether a body is a group of one or more alerts without a CloudEvent around it.
func IsGroup(data []byte) bool {
	if !looksLikeObject(data) || !mayHold(data, `"alerts"`) {
		return false
	}
	o := splitObject(TrimStart(data))
	elements, ok := alertsOf(o)
	return ok && len(elements) > 0 && o.get("specversion") == nil
}
