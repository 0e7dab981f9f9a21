package sink

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Limits in characters after escaping. Those of Slack: 150 for a header, 3,000 for a section's
// text, 2,000 for a section's field, 10 fields in a section, 50 blocks in a message, 4,000 for
// the text of a message. All blocks together are refused (msg_blocks_too_long) somewhere above
// 13,000 characters, so the parts below come to less than that.
const (
	maxHeader       = 150
	maxSection      = 3000
	maxSections     = 2 // of running text
	maxFieldName    = 200
	maxField        = 2000
	maxFieldsLength = 4000 // all fields together
	maxFields       = 100
	fieldsInSection = 10
	maxLink         = 1500
	maxContext      = 300 // one element
	maxText         = 4000
	maxFallback     = 1000
)

// message is an event as Slack shows it: the headline, and below it, beside a bar in the
// severity's colour, the details. All of it is escaped and within Slack's limits.
type message struct {
	text       string // for notifications and clients that show no blocks; else not displayed
	headline   slack.Block
	attachment slack.Attachment
}

// options is the message for chat.postMessage.
func (m message) options() []slack.MsgOption {
	return []slack.MsgOption{
		slack.MsgOptionText(m.text, false),
		slack.MsgOptionBlocks(m.headline),
		slack.MsgOptionAttachments(m.attachment),
		slack.MsgOptionDisableMarkdown(),
		slack.MsgOptionDisableLinkUnfurl(),
		slack.MsgOptionDisableMediaUnfurl(),
	}
}

// webhook is the message for an incoming webhook.
func (m message) webhook() *slack.WebhookMessage {
	off := false
	return &slack.WebhookMessage{
		Text:        m.text,
		Blocks:      &slack.Blocks{BlockSet: []slack.Block{m.headline}},
		Attachments: []slack.Attachment{m.attachment},
		UnfurlLinks: &off,
		UnfurlMedia: &off,
	}
}

// render is a pure function: equal events give equal messages.
func render(e event.Event) message {
	word, colour := severity(e.Severity)
	title, body := oneLine(e.Title), strings.TrimSpace(clean(e.Text))
	if title == "" {
		// The first line stands in for the title and need not be shown twice.
		first, rest, _ := strings.Cut(body, "\n")
		title = oneLine(first)
		body = strings.TrimSpace(rest)
	}
	if title == "" {
		title = oneLine(e.Category)
	}
	headline := strings.TrimSpace("[" + word + "] " + title)

	var texts []string
	if !fits(headline, maxHeader) {
		texts = append(texts, fit(title, maxSection))
	}
	texts = append(texts, sections(body, maxSections-len(texts))...)

	var details []slack.Block
	for _, text := range texts {
		details = append(details, slack.NewSectionBlock(plain(text), nil, nil))
	}
	details = append(details, fields(e.Fields)...)
	if address := oneLine(e.Link); address != "" {
		details = append(details, slack.NewSectionBlock(link(address), nil, nil))
	}
	if elements := origin(e); len(elements) > 0 {
		details = append(details, slack.NewContextBlock("", elements...))
	}

	return message{
		text:     fit(headline, maxText),
		headline: slack.NewHeaderBlock(plain(fit(headline, maxHeader))),
		attachment: slack.Attachment{
			Color:    colour,
			Fallback: fit(strings.TrimSpace(headline+"\n"+body), maxFallback),
			Blocks:   slack.Blocks{BlockSet: details},
		},
	}
}

// severity returns the word and the colour for s.
func severity(s event.Severity) (word, colour string) {
	switch s {
	case event.SeverityCritical:
		return "CRITICAL", "#7f1d1d"
	case event.SeverityError:
		return "ERROR", "#dc2626"
	case event.SeverityWarning:
		return "WARNING", "#f59e0b"
	default:
		return "INFO", "#2563eb"
	}
}

// plain and markup make text objects of what is already escaped. Markup is for the few places
// that need it; "verbatim" keeps Slack from finding links and mentions of its own there.
func plain(text string) *slack.TextBlockObject {
	return slack.NewTextBlockObject(slack.PlainTextType, text, false, false)
}

func markup(text string) *slack.TextBlockObject {
	return slack.NewTextBlockObject(slack.MarkdownType, text, false, true)
}

// sections returns text escaped and in at most count pieces, each long enough for a section.
// A piece ends at a line end where the last third of it has one. What is left over is marked.
func sections(text string, count int) []string {
	var pieces []string
	for text != "" && len(pieces) < count-1 && !fits(text, maxSection) {
		head, _ := split(text, maxSection, escapedWidth)
		if end := strings.LastIndexByte(head, '\n'); end > len(head)*2/3 {
			head = head[:end]
		}
		text = strings.TrimLeftFunc(text[len(head):], unicode.IsSpace)
		pieces = append(pieces, escape(strings.TrimRightFunc(head, unicode.IsSpace)))
	}
	if text != "" {
		pieces = append(pieces, fit(text, maxSection))
	}
	return pieces
}

// fields returns sections of fields, and a line that counts those for which there is no room.
func fields(all []event.Field) []slack.Block {
	var shown []*slack.TextBlockObject
	length, left := 0, 0
	for _, field := range all {
		text := fieldText(field)
		if text == "" {
			continue
		}
		size := 0
		for _, r := range text {
			size += width(r)
		}
		if left > 0 || len(shown) == maxFields || length+size > maxFieldsLength {
			left++
			continue
		}
		length += size
		shown = append(shown, markup(text))
	}
	var blocks []slack.Block
	for start := 0; start < len(shown); start += fieldsInSection {
		end := min(start+fieldsInSection, len(shown))
		blocks = append(blocks, slack.NewSectionBlock(nil, shown[start:end], nil))
	}
	if left > 0 {
		blocks = append(blocks, slack.NewContextBlock("", plain(fmt.Sprintf("%s %d more fields", mark, left))))
	}
	return blocks
}

// fieldText returns the escaped name in bold and the value below it; empty if both are.
func fieldText(field event.Field) string {
	// The name's escaped form, stars and line end take at most maxFieldName + 3.
	name := fit(oneLine(field.Name), maxFieldName)
	value := fit(strings.TrimSpace(clean(field.Value)), maxField-maxFieldName-3)
	if name == "" {
		return value
	}
	return strings.TrimSpace("*" + name + "*\n" + value)
}

// link returns a link to address, which is one line, or the address as text where Slack could
// not link it.
func link(address string) *slack.TextBlockObject {
	target := encodeLink(address)
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || !fits(target, maxLink) {
		return plain(fit(address, maxLink))
	}
	return markup("<" + escape(target) + "|Open>")
}

// encodeLink percent-encodes what would end a link early in Slack's markup.
func encodeLink(address string) string {
	return strings.NewReplacer(" ", "%20", "<", "%3C", ">", "%3E", "|", "%7C").Replace(address)
}

// origin says where the event came from: category, source, time and ID.
func origin(e event.Event) []slack.MixedElement {
	var elements []slack.MixedElement
	add := func(name, value string) {
		if value = oneLine(value); value != "" {
			elements = append(elements, plain(fit(name+" "+value, maxContext)))
		}
	}
	add("category", e.Category)
	add("source", e.Source)
	if !e.Time.IsZero() {
		elements = append(elements, moment(e.Time))
	}
	add("id", e.ID)
	return elements
}

// moment shows t in the reader's time zone. Slack takes no times before 1970.
func moment(t time.Time) *slack.TextBlockObject {
	text := t.UTC().Format(time.RFC3339)
	if t.Unix() < 0 {
		return plain(text)
	}
	return markup(fmt.Sprintf("<!date^%d^{date_short_pretty} {time}|%s>", t.Unix(), text))
}
