package event

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// envelope has the attributes of a CloudEvent that an Event uses, and its content. The attributes are empty if the message is not a
// CloudEvent.
type envelope struct {
	content
	id          string // "<source>/<id>"
	source      string
	time        time.Time
	contentType string // media type of the data, as declared
}

// attributes are the context attributes of a CloudEvent by their names.
type attributes map[string]string

// attributeNames are the context attributes of CloudEvents 1.0, the required ones first. No field of an Event comes from an extension
// attribute.
var attributeNames = []string{"specversion", "id", "source", "type", "time", "datacontenttype", "subject", "dataschema"}

// requiredAttributes is the number of required attributes.
const requiredAttributes = 4

// inID has the last slash separate the source and the ID: without it, the ID "b/c" of the source "a" would be the ID "c" of the source "a/b".
var inID = strings.NewReplacer("%", "%25", "/", "%2F")

// id returns "<source>/<id>", empty if one of them is missing.
func (a attributes) id() string {
	if a["source"] == "" || a["id"] == "" {
		return ""
	}
	return a["source"] + "/" + inID.Replace(a["id"])
}

// headerAttributes returns the attributes in "ce-" headers, nil if all required ones are missing: the message is then not a CloudEvent in
// binary mode.
func headerAttributes(header map[string][]string) attributes {
	var a attributes
	for i, name := range attributeNames {
		if i == requiredAttributes && a == nil {
			return nil
		}
		value := headerValue(header, "ce-"+name)
		if value == "" {
			continue
		}
		if a == nil {
			a = attributes{}
		}
		a[name] = percentDecoded(value)
	}
	return a
}

// percentDecoded undoes the encoding that the CloudEvents bindings require for header values. Not every producer applies it, so a value
// that does not decode to text is returned unchanged.
func percentDecoded(value string) string {
	if decoded, err := url.PathUnescape(value); err == nil && utf8.ValidString(decoded) {
		return decoded
	}
	return strings.ToValidUTF8(value, string(utf8.RuneError))
}

// memberAttributes returns the string attributes of a CloudEvent in structured mode. The fault names the first attribute that is not a
// string.
func memberAttributes(o object) (attributes, *Fault) {
	a := attributes{}
	var fault *Fault
	for _, name := range attributeNames {
		switch value := o.get(name); {
		case value == nil:
		case value[0] == '"':
			a[name] = unquote(value)
		case fault == nil:
			fault = badCloudEvent(fmt.Sprintf("%s must be a string, not %s", name, show(value)))
		}
	}
	return a, fault
}

// open checks the attributes against CloudEvents 1.0. If it returns a fault, the envelope has the event's ID where it could be read.
func (a attributes) open() (envelope, *Fault) {
	env := envelope{id: a.id(), source: a["source"], contentType: a["datacontenttype"]}
	if version, ok := a["specversion"]; version != "1.0" {
		if !ok {
			return env, badCloudEvent("specversion is missing")
		}
		return env, badCloudEvent("specversion must be \"1.0\", not " + excerpt(version))
	}
	if violations := a.violations(); len(violations) > 0 {
		return env, badCloudEvent(strings.Join(violations, "; "))
	}
	if text := a["time"]; text != "" {
		t, ok := parseTime(text)
		if !ok {
			return env, badCloudEvent("time must be a time as in RFC 3339, not " + excerpt(text))
		}
		env.time = t
	}
	return env, nil
}

// violations lists the violated rules of CloudEvents 1.0, except for specversion and time: "<attribute>: <rule>", ordered by attribute. A
// blank optional attribute counts as absent.
func (a attributes) violations() []string {
	var found []string
	check := func(name, rule string, sound func(value string) bool) {
		if !sound(strings.TrimSpace(a[name])) {
			found = append(found, name+": "+rule)
		}
	}
	isGiven := func(value string) bool { return value != "" }
	check("datacontenttype", "must be a media type as in RFC 2046", func(value string) bool {
		_, _, err := mime.ParseMediaType(value)
		return value == "" || err == nil
	})
	check("dataschema", "must be an absolute URI", func(value string) bool {
		schema, err := url.Parse(value)
		return value == "" || err == nil && schema.IsAbs()
	})
	check("id", "must not be empty", isGiven)
	check("source", "must be a URI reference and not empty", func(value string) bool {
		source, err := url.Parse(a["source"])
		return isGiven(value) && err == nil && source.String() != ""
	})
	check("type", "must not be empty", isGiven)
	return found
}

// structured reads a CloudEvent in structured mode. If it returns a fault, the envelope has the event's ID where it could be read.
func structured(o object) (envelope, *Fault) {
	a, notText := memberAttributes(o)
	env, invalid := a.open()
	fault := cmp.Or(notText, invalid)
	if fault != nil {
		return env, fault
	}
	data, encoded := o.get("data"), o.get("data_base64")
	switch {
	case data != nil && encoded != nil:
		return env, badCloudEvent("data and data_base64 exclude each other")
	case data != nil:
		env.content = jsonContent(data)
	case encoded != nil:
		if encoded[0] != '"' {
			return env, badCloudEvent("data_base64 must be a string, not " + show(encoded))
		}
		decoded, err := base64.StdEncoding.DecodeString(unquote(encoded))
		if err != nil {
			return env, badCloudEvent(fmt.Sprintf("data_base64 is not base64: %v", err))
		}
		if fault := checkUTF8(decoded); fault != nil {
			return env, fault
		}
		env.content, fault = typedContent(decoded, env.contentType)
	}
	return env, fault
}

func badCloudEvent(detail string) *Fault {
	return NewFault(ReasonBadCloudEvent, "CloudEvent: "+detail)
}

// TraceContext returns the producer's W3C trace context: the headers traceparent and tracestate or the extension attributes of a
// CloudEvent. The texts are unchecked, and empty if there are none.
func (m Message) TraceContext() (traceparent, tracestate string) {
	if traceparent = headerValue(m.Header, "traceparent"); traceparent != "" {
		return traceparent, headerValue(m.Header, "tracestate")
	}
	if traceparent = headerValue(m.Header, "ce-traceparent"); traceparent != "" {
		return traceparent, percentDecoded(headerValue(m.Header, "ce-tracestate"))
	}
	if !looksLikeObject(m.Data) || !mayHold(m.Data, `"traceparent"`) {
		return "", ""
	}
	o := splitObject(TrimStart(m.Data))
	if o.get("specversion") == nil {
		return "", ""
	}
	return stringValue(o.get("traceparent")), stringValue(o.get("tracestate"))
}
