package sink

import (
	"encoding/json"
	"regexp"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

const (
	receiptVersion = 1
	maxReceipt     = 2 << 10 // bytes
)

// messageTimestamp is the form of a ts.
var messageTimestamp = regexp.MustCompile(`^[0-9]{1,20}\.[0-9]{1,20}$`)

// receipt tells of the message of a firing event: where it is, and enough of the event to render it again. Texts may be cut.
type receipt struct {
	Version   int            `json:"v"`
	Channel   string         `json:"channel,omitempty"` // as Slack's answer names it
	Timestamp string         `json:"ts,omitempty"`      // of the message; empty where none can be updated
	ID        string         `json:"id,omitempty"`
	Category  string         `json:"category,omitempty"`
	Title     string         `json:"title,omitempty"`
	Text      string         `json:"text,omitempty"`
	Severity  event.Severity `json:"severity,omitempty"`
	Source    string         `json:"source,omitempty"`
	Link      string         `json:"link,omitempty"`
	Links     []event.Field  `json:"links,omitempty"`
	Fields    []event.Field  `json:"fields,omitempty"`
	Time      time.Time      `json:"time,omitzero"` // of the event, else of the post
	// Destination is where the message went, as Sink.Destination named it: Slack may know the channel by another name.
	Destination string `json:"to,omitempty"`
}

// newReceipt returns the receipt of a firing event, "" for any other.
func newReceipt(e event.Event, destination string, posted apiAnswer, now time.Time) string {
	if e.Status != event.StatusFiring {
		return ""
	}
	r := receipt{
		Version: receiptVersion, ID: e.ShownID(), Category: e.Category, Severity: e.Severity,
		Title: plain.Text(e.Title), Text: plain.Text(e.Text), Source: plain.Text(e.Source), Link: e.Link, Time: e.Time,
		Destination: cut(destination, 100),
	}
	if r.Time.IsZero() {
		r.Time = now.UTC()
	}
	if channelID.MatchString(posted.channel) && len(posted.channel) <= 64 && messageTimestamp.MatchString(posted.ts) {
		r.Channel, r.Timestamp = posted.channel, posted.ts
	}
	for _, l := range e.Links {
		r.Links = append(r.Links, event.Field{Name: plain.Text(l.Name), Value: l.Value})
	}
	for _, field := range e.Fields {
		r.Fields = append(r.Fields, event.Field{Name: plain.Text(field.Name), Value: plain.Text(field.Value)})
	}
	for limit := 800; limit > 20; limit /= 2 {
		if text := encodeReadably(r.shortened(limit)); len(text) <= maxReceipt {
			return text
		}
	}
	return encodeReadably(r.shortened(0))
}

// shortened returns r with no text longer than limit characters, and with fewer fields the lower the limit is.
func (r receipt) shortened(limit int) receipt {
	r.Title, r.Text, r.Source = cut(r.Title, limit/2), cut(r.Text, limit), cut(r.Source, limit/4)
	if !fits(r.Link, limit) {
		r.Link = "" // a part of it leads nowhere
	}
	var links []event.Field
	for _, l := range r.Links[:min(len(r.Links), limit/40)] {
		if fits(l.Value, limit/2) { // a part of it leads nowhere
			links = append(links, event.Field{Name: cut(l.Name, limit/8), Value: l.Value})
		}
	}
	r.Links = links
	var fields []event.Field
	for _, field := range r.Fields[:min(len(r.Fields), limit/20)] {
		fields = append(fields, event.Field{Name: cut(field.Name, limit/8), Value: cut(field.Value, limit/4)})
	}
	r.Fields = fields
	return r
}

// event is what is known of the event that fired, now resolved.
func (r *receipt) event() event.Event {
	return event.Event{
		ID: r.ID, Category: r.Category, Title: r.Title, Text: r.Text, Severity: r.Severity, Source: r.Source,
		Link: r.Link, Links: r.Links, Fields: r.Fields, Time: r.Time, Status: event.StatusResolved,
	}
}

// openedBy returns the receipt of the message that d resolves; nil if it resolves none. Where the receipt cannot be read, d is
// a message of its own.
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

// PostedAs names the message that a receipt is of, by Slack's channel and timestamp. It is empty if Slack told neither. Of the event it
// says nothing.
func PostedAs(text string) string {
	var r receipt
	if text == "" || json.Unmarshal([]byte(text), &r) != nil || r.Timestamp == "" {
		return ""
	}
	return r.Channel + " " + r.Timestamp
}

// repliable reports whether the message can be updated and replied to.
func (r *receipt) repliable() bool { return r != nil && r.Timestamp != "" }
