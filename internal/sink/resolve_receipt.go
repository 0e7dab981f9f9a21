package sink

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

const (
	receiptVersion = 1
	// maxReceipt bounds a receipt, in bytes.
	maxReceipt = 2 << 10
)

// messageTimestamp is the form of a ts.
var messageTimestamp = regexp.MustCompile(`^[0-9]{1,20}\.[0-9]{1,20}$`)

// receipt is what is kept of the message of a firing event until the event is resolved.
type receipt struct {
	firing
	// Destination is where the message went, as Sink.Destination named it: Slack may know the channel
	// by another name.
	Destination string `json:"to,omitempty"`
}

// newReceipt returns the receipt of a firing event, "" for any other.
func newReceipt(e event.Event, destination string, posted apiAnswer, now time.Time) string {
	if e.Status != event.StatusFiring {
		return ""
	}
	r := receipt{
		firing: firing{
			Version: receiptVersion, ID: e.ShownID(), Category: e.Category, Severity: e.Severity,
			Title: plain.Text(e.Title), Text: plain.Text(e.Text), Source: plain.Text(e.Source), Link: e.Link, Time: e.Time,
		},
		Destination: cut(destination, 100),
	}
	if r.Time.IsZero() {
		r.Time = now.UTC()
	}
	if channelID.MatchString(posted.channel) && len(posted.channel) <= 64 && messageTimestamp.MatchString(posted.ts) {
		r.Channel, r.Timestamp = posted.channel, posted.ts
	}
	for _, field := range e.Fields {
		r.Fields = append(r.Fields, event.Field{Name: plain.Text(field.Name), Value: plain.Text(field.Value)})
	}
	for limit := 800; limit > 20; limit /= 2 {
		if text := r.shortened(limit).encode(); len(text) <= maxReceipt {
			return text
		}
	}
	return r.shortened(0).encode()
}

// shortened returns r with no text longer than limit characters, and with as many fields as that makes sense for.
func (r receipt) shortened(limit int) receipt {
	r.Title, r.Text, r.Source = cut(r.Title, limit/2), cut(r.Text, limit), cut(r.Source, limit/4)
	if !fits(r.Link, limit) {
		r.Link = "" // a part of it leads nowhere
	}
	var fields []event.Field
	for _, field := range r.Fields[:min(len(r.Fields), limit/20)] {
		fields = append(fields, event.Field{Name: cut(field.Name, limit/8), Value: cut(field.Value, limit/4)})
	}
	r.Fields = fields
	return r
}

func (r receipt) encode() string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(r) != nil {
		return "" // no value of these types fails, but for a time beyond the year 9999
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// openedBy returns the receipt of the message that d resolves; nil if it resolves none, or if the receipt cannot be
// read, so that d is a message of its own.
func openedBy(d Delivery) *receipt {
	if d.Event.Status != event.StatusResolved || d.Opened == "" {
		return nil
	}
	r := new(receipt)
	if json.Unmarshal([]byte(d.Opened), r) != nil || r.Version != receiptVersion {
		return nil
	}
	if !channelID.MatchString(r.Channel) || !messageTimestamp.MatchString(r.Timestamp) {
		r.Channel, r.Timestamp = "", ""
	}
	return r
}

// repliable reports whether the message can be updated and replied to.
func (r *receipt) repliable() bool { return r != nil && r.Timestamp != "" }
