package sink

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

const (
	receiptVersion = 1
	maxReceipt     = 2 << 10 // bytes
)

var (
	channelID = regexp.MustCompile(`^[CDG][A-Z0-9]{2,63}$`)
	timestamp = regexp.MustCompile(`^[0-9]{1,20}\.[0-9]{1,20}$`)
)

// IsChannelID reports whether a text has the form of an ID of a channel of Slack.
func IsChannelID(text string) bool { return channelID.MatchString(text) }

// IsTimestamp reports whether a text has the form of Slack's ts.
func IsTimestamp(text string) bool { return timestamp.MatchString(text) }

// Receipt is where the message of a firing event is, and enough of the event to render it again. Texts may be cut.
type Receipt struct {
	Version   int            `json:"v"`
	Channel   string         `json:"channel,omitempty"` // ID of the channel in Slack's answer
	Timestamp string         `json:"ts,omitempty"`      // of the message; empty if the message cannot be updated
	ID        string         `json:"id,omitempty"`
	Category  string         `json:"category,omitempty"`
	Title     string         `json:"title,omitempty"`
	Text      string         `json:"text,omitempty"`
	Severity  event.Severity `json:"severity,omitempty"`
	Status    event.Status   `json:"status,omitempty"`
	Source    string         `json:"source,omitempty"`
	Link      string         `json:"link,omitempty"`
	Links     []event.Field  `json:"links,omitempty"`
	Fields    []event.Field  `json:"fields,omitempty"`
	Time      time.Time      `json:"time,omitzero"` // of the event; when the event was stored if it has no time
	// Destination is where the message went, as Sink.Destination named it. Slack may know the channel by another name.
	Destination string `json:"to,omitempty"`
}

// NewReceipt returns the receipt of e, posted to channel as the message timestamp. Both are empty if the sink cannot update a
// message. It returns "" for a resolved event, and for an event with neither a status nor a key.
func NewReceipt(e event.Event, destination, channel, timestamp string, stored time.Time) string {
	if e.Status == event.StatusResolved || e.Status == "" && e.Key == "" {
		return ""
	}
	r := Receipt{
		Version: receiptVersion, ID: e.ShownID(), Category: e.Category, Severity: e.Severity, Status: e.Status,
		Title: plain.Text(e.Title), Text: plain.Text(e.Text), Source: plain.Text(e.Source), Link: e.Link, Time: e.Time,
		Destination: plain.Cut(destination, 100),
	}
	if r.Time.IsZero() {
		r.Time = stored
	}
	if IsChannelID(channel) && IsTimestamp(timestamp) {
		r.Channel, r.Timestamp = channel, timestamp
	}
	for _, l := range e.Links {
		r.Links = append(r.Links, event.Field{Name: plain.Text(l.Name), Value: l.Value})
	}
	for _, field := range e.Fields {
		r.Fields = append(r.Fields, event.Field{Name: plain.Text(field.Name), Value: plain.Text(field.Value)})
	}
	for limit := 800; limit > 20; limit /= 2 {
		if text := JSON(r.shortened(limit)); len(text) <= maxReceipt {
			return text
		}
	}
	return JSON(r.shortened(0))
}

// JSON returns a value without escapes for < and >. It returns "" for a time beyond the year 9999; no other value of a message or receipt
// fails.
func JSON(value any) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(value) != nil {
		return ""
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// shortened returns r with texts of at most limit characters, and with fewer links and fields the lower the limit is. A link
// that does not fit is left out, since a part of it leads nowhere.
func (r Receipt) shortened(limit int) Receipt {
	r.Title, r.Text, r.Source = plain.Cut(r.Title, limit/2), plain.Cut(r.Text, limit), plain.Cut(r.Source, limit/4)
	if len(r.Link) > limit {
		r.Link = ""
	}
	var links []event.Field
	for _, l := range r.Links[:min(len(r.Links), limit/40)] {
		if len(l.Value) <= limit/2 {
			links = append(links, event.Field{Name: plain.Cut(l.Name, limit/8), Value: l.Value})
		}
	}
	r.Links = links
	var fields []event.Field
	for _, field := range r.Fields[:min(len(r.Fields), limit/20)] {
		fields = append(fields, event.Field{Name: plain.Cut(field.Name, limit/8), Value: plain.Cut(field.Value, limit/4)})
	}
	r.Fields = fields
	return r
}

// Event returns the event of the message, with the texts that the receipt kept.
func (r *Receipt) Event() event.Event {
	return event.Event{
		ID: r.ID, Category: r.Category, Title: r.Title, Text: r.Text, Severity: r.Severity, Source: r.Source,
		Link: r.Link, Links: r.Links, Fields: r.Fields, Time: r.Time, Status: r.Status,
	}
}

// OpenedBy returns the receipt of the message that d resolves, changes or reports about. It returns nil if there is none or
// its receipt is unreadable: d is a message of its own then.
func OpenedBy(d Delivery) *Receipt {
	if d.Opened == "" {
		return nil
	}
	r := new(Receipt)
	if json.Unmarshal([]byte(d.Opened), r) != nil || r.Version != receiptVersion {
		return nil
	}
	if !IsChannelID(r.Channel) || !IsTimestamp(r.Timestamp) {
		r.Channel, r.Timestamp = "", ""
	}
	return r
}

// WithoutMessage returns a receipt without its message, for an event that cannot reply to the message. It keeps the event and its time. It
// returns "" if the receipt is unreadable.
func WithoutMessage(receipt string) string {
	r := OpenedBy(Delivery{Opened: receipt})
	if r == nil {
		return ""
	}
	r.Channel, r.Timestamp, r.Destination = "", "", ""
	return JSON(r)
}

// PostedAs returns Slack's channel and timestamp of the message in a receipt. It returns "" if the receipt has no message.
func PostedAs(receipt string) string {
	var r Receipt
	if receipt == "" || json.Unmarshal([]byte(receipt), &r) != nil || r.Timestamp == "" {
		return ""
	}
	return r.Channel + " " + r.Timestamp
}

// Repliable reports whether the message can be updated and replied to.
func (r *Receipt) Repliable() bool { return r != nil && r.Timestamp != "" }
