package slacktest

import (
	"encoding/json"
	"slices"
	"unicode/utf16"
)

// Slack's limits on a message, in characters, here counted as UTF-16 units.
const (
	maxMessageText   = 40000
	maxBlocks        = 50
	maxHeaderText    = 150
	maxSectionText   = 3000
	maxSectionFields = 10
	maxFieldText     = 2000
	maxElements      = 10
	maxBlocksText    = 13200 // all blocks together, found by trial
)

// Message is what a post shows. Texts keep the escapes of the request.
type Message struct {
	Text        string
	Blocks      []Block
	Attachments []Attachment
}

// Attachment is a secondary part of a message, beside a coloured bar.
type Attachment struct {
	Color    string  `json:"color"`
	Fallback string  `json:"fallback"`
	Blocks   []Block `json:"blocks"`
}

// Block is a Block Kit block of text: header, section or context.
type Block struct {
	Type     string `json:"type"`
	Text     *Text  `json:"text"`
	Fields   []Text `json:"fields"`
	Elements []Text `json:"elements"`
}

// Text is a text object: plain_text or mrkdwn.
type Text struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Verbatim bool   `json:"verbatim"`
}

// Texts returns every text object of the message, in order.
func (m Message) Texts() []Text {
	blocks := slices.Clone(m.Blocks)
	for _, attachment := range m.Attachments {
		blocks = append(blocks, attachment.Blocks...)
	}
	var texts []Text
	for _, block := range blocks {
		texts = append(texts, block.texts()...)
	}
	return texts
}

func (b Block) texts() []Text {
	var texts []Text
	if b.Text != nil {
		texts = append(texts, *b.Text)
	}
	return append(append(texts, b.Fields...), b.Elements...)
}

// parseMessage also returns Slack's error code for the message; "" if there is none.
func parseMessage(text string, blocks, attachments json.RawMessage) (Message, string) {
	m := Message{Text: text}
	if len(blocks) > 0 && json.Unmarshal(blocks, &m.Blocks) != nil {
		return m, "invalid_blocks_format"
	}
	if len(attachments) > 0 && json.Unmarshal(attachments, &m.Attachments) != nil {
		return m, "invalid_attachments"
	}
	return m, m.fault()
}

func (m Message) fault() string {
	switch {
	case m.Text == "" && len(m.Blocks) == 0 && len(m.Attachments) == 0:
		return "no_text"
	case length(m.Text) > maxMessageText:
		return "msg_too_long"
	case !validBlocks(m.Blocks):
		return "invalid_blocks"
	}
	if slices.ContainsFunc(m.Attachments, func(a Attachment) bool { return !validBlocks(a.Blocks) }) {
		return "invalid_attachments"
	}
	total := 0
	for _, text := range m.Texts() {
		total += length(text.Text)
	}
	if total > maxBlocksText {
		return "msg_blocks_too_long"
	}
	return ""
}

func validBlocks(blocks []Block) bool {
	return len(blocks) <= maxBlocks && !slices.ContainsFunc(blocks, func(b Block) bool { return !b.valid() })
}

func (b Block) valid() bool {
	for _, text := range b.texts() {
		if text.Text == "" || text.Type != "plain_text" && text.Type != "mrkdwn" {
			return false
		}
	}
	switch b.Type {
	case "header":
		return b.Text != nil && b.Text.Type == "plain_text" && length(b.Text.Text) <= maxHeaderText
	case "section":
		long := func(field Text) bool { return length(field.Text) > maxFieldText }
		return (b.Text != nil || len(b.Fields) > 0) && len(b.Fields) <= maxSectionFields && !slices.ContainsFunc(b.Fields, long) &&
			(b.Text == nil || length(b.Text.Text) <= maxSectionText)
	case "context":
		return len(b.Elements) > 0 && len(b.Elements) <= maxElements
	case "divider":
		return true
	default:
		return false
	}
}

func length(s string) int { return len(utf16.Encode([]rune(s))) }
