package event

import (
	"cmp"
	"fmt"
	"slices"
)

// AlertsID names what a body tells of its alerts, so that a repeated body has the same name. For one alert the name is made of its
// fingerprint, its status and its start; for several alerts it is a hash of these, in any order. An alert without a fingerprint has a hash
// of its labels instead. It is not ok if the body is no group of alerts, or an empty one.
func AlertsID(data []byte) (id string, ok bool) {
	if !looksLikeObject(data) || !mayHold(data, `"alerts"`) {
		return "", false
	}
	elements, ok := alertsOf(splitObject(trimStart(data)))
	if !ok || len(elements) == 0 {
		return "", false
	}
	names := make([]string, len(elements))
	for i, element := range elements {
		names[i] = alertName(element)
	}
	if len(names) == 1 {
		return stableID(names[0]), true
	}
	slices.Sort(names)
	var all []byte
	for _, name := range names {
		all = fmt.Appendf(all, "%d:%s", len(name), name) // lengths keep different groups apart
	}
	return hashed(all), true
}

// alertName is the fingerprint, the status and the start of an alert; all of an alert that has no such texts.
func alertName(data []byte) string {
	r := reader{members: splitObject(data)}
	labels := r.textMap("labels")
	name := cmp.Or(r.text("fingerprint"), hashOf(labels)) + " " + r.text("status") + " " + r.text("startsAt")
	if r.fault != nil {
		return string(data)
	}
	return name
}
