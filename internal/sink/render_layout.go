package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/slack-go/slack"
)

// layout is the JSON that a template produces. Members that are not here are a fault, so that a
// misspelt one does not go unnoticed.
type layout struct {
	Text        string           `json:"text"`
	Blocks      list[block]      `json:"blocks,omitempty"`
	Attachments list[attachment] `json:"attachments,omitempty"`
}

// attachment is what stands beside a coloured bar.
type attachment struct {
	Color    string      `json:"color,omitempty"`
	Fallback string      `json:"fallback,omitempty"` // for notifications
	Blocks   list[block] `json:"blocks,omitempty"`
}

// block is any of the blocks of text: each has some of the members.
type block struct {
	Type     string           `json:"type"`
	Text     *textObject      `json:"text,omitempty"`
	Fields   list[textObject] `json:"fields,omitempty"`
	Elements list[textObject] `json:"elements,omitempty"`
}

// The types of blocks that a template may use.
const (
	headerBlock  = "header"
	sectionBlock = "section"
	contextBlock = "context"
	dividerBlock = "divider"
)

type textObject struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Verbatim keeps Slack from finding links and mentions of its own in mrkdwn; it is always set there.
	Verbatim bool `json:"verbatim,omitempty"`
	// Emoji says whether :names: are shown as emoji; it is always set in plain text, and Slack takes it nowhere else.
	Emoji *bool `json:"emoji,omitempty"`
}

// list is read from an array, whose nulls are left out and whose inner arrays are put in its place:
// so templates need no conditions around commas.
type list[T any] []T

// UnmarshalJSON reads an array as the type says.
func (l *list[T]) UnmarshalJSON(data []byte) error {
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		return err
	}
	for _, item := range items {
		switch {
		case string(item) == "null":
		case item[0] == '[':
			var inner list[T]
			if err := inner.UnmarshalJSON(item); err != nil {
				return err
			}
			*l = append(*l, inner...)
		default:
			var value T
			if err := decodeStrictly(item, &value); err != nil {
				return err
			}
			*l = append(*l, value)
		}
	}
	return nil
}

// decodeStrictly takes no unknown members and nothing behind the value.
func decodeStrictly(data []byte, value any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something stands behind the message")
	}
	return nil
}

// parseLayout reads what a template printed.
func parseLayout(data []byte) (layout, error) {
	var l layout
	err := decodeStrictly(data, &l)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		end := min(int(syntax.Offset), len(data))
		return layout{}, fmt.Errorf("the result is not JSON: %w after %q", err, cutFront(string(data[:end]), maxExcerpt))
	}
	if err != nil {
		return layout{}, fmt.Errorf("the result is no message: %w", err)
	}
	l.tidy()
	return l, nil
}

// maxExcerpt bounds in bytes how much of a result a fault shows.
const maxExcerpt = 60

// cutFront returns the end of s.
func cutFront(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return mark + strings.ToValidUTF8(s[len(s)-limit:], "")
}

// tidy leaves out what is empty, which Slack would refuse.
func (l *layout) tidy() {
	l.Blocks = tidyBlocks(l.Blocks)
	for i := range l.Attachments {
		l.Attachments[i].Blocks = tidyBlocks(l.Attachments[i].Blocks)
	}
	l.Attachments = slices.DeleteFunc(l.Attachments, func(a attachment) bool { return len(a.Blocks) == 0 })
}

func tidyBlocks(blocks []block) []block {
	for i := range blocks {
		b := &blocks[i]
		b.Fields, b.Elements = tidyTexts(b.Fields), tidyTexts(b.Elements)
		if b.Text != nil {
			b.Text.tidy()
			if b.Text.empty() {
				b.Text = nil
			}
		}
	}
	return slices.DeleteFunc(blocks, func(b block) bool { return b.empty() && isOfText(b.Type) })
}

func isOfText(kind string) bool {
	return kind == headerBlock || kind == sectionBlock || kind == contextBlock
}

func tidyTexts(texts []textObject) []textObject {
	for i := range texts {
		texts[i].tidy()
	}
	return slices.DeleteFunc(texts, textObject.empty)
}

func (t *textObject) tidy() {
	t.Verbatim = t.Type == slack.MarkdownType
	switch {
	case t.Verbatim:
		t.Emoji = nil
	case t.Emoji == nil:
		t.Emoji = new(bool)
	}
}

func (t textObject) empty() bool { return strings.TrimSpace(t.Text) == "" }

// empty reports whether the block shows no text.
func (b block) empty() bool {
	shows := func(t textObject) bool { return !t.empty() }
	return (b.Text == nil || b.Text.empty()) && !slices.ContainsFunc(b.Fields, shows) && !slices.ContainsFunc(b.Elements, shows)
}

// texts returns the block's own text, its fields and its elements.
func (b block) texts() []textObject {
	var texts []textObject
	if b.Text != nil {
		texts = append(texts, *b.Text)
	}
	return append(append(texts, b.Fields...), b.Elements...)
}

// Slack's limits, in characters after escaping. All blocks together are refused
// (msg_blocks_too_long) somewhere above 13,000.
const (
	textLimit        = 40000
	headerLimit      = 150
	sectionLimit     = 3000
	fieldLimit       = 2000
	fieldsLimit      = 10
	elementsLimit    = 10
	blocksLimit      = 50
	charactersLimit  = 13000
	attachmentsLimit = 20 // attachments
)

var colourForm = regexp.MustCompile(`^(#[0-9A-Fa-f]{6}|good|warning|danger)?$`)

// check finds out whether Slack would take the layout and show it as it is meant. Markup that is
// not allowed is a leak.
func (l layout) check(allowed func(token string) bool) error {
	if strings.TrimSpace(l.Text) == "" {
		return errors.New("the text of the message is empty")
	}
	checker := checker{allowed: allowed}
	checker.within(units(l.Text), textLimit, "the text of the message", "characters")
	checker.markup(l.Text, "the text of the message")
	checker.within(len(l.Attachments), attachmentsLimit, "the message", "attachments")
	checker.blocks(l.Blocks, "")
	for i, a := range l.Attachments {
		where := fmt.Sprintf("attachment %d", i+1)
		if !colourForm.MatchString(a.Color) {
			checker.fault("%s has the colour %q, not one such as #2563eb", where, cut(a.Color, maxExcerpt))
		}
		checker.within(units(a.Fallback), sectionLimit, where+": the fallback", "characters")
		checker.markup(a.Fallback, where+": the fallback")
		checker.blocks(a.Blocks, where+", ")
	}
	checker.within(checker.count, blocksLimit, "the message", "blocks")
	checker.within(checker.characters, charactersLimit, "all blocks together", "characters")
	return checker.err
}

// checker keeps the first fault.
type checker struct {
	allowed           func(token string) bool
	count, characters int
	err               error
}

func (c *checker) fault(format string, arguments ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, arguments...)
	}
}

func (c *checker) within(size, limit int, what, unit string) {
	if size > limit {
		c.fault("%s: %d %s, of which Slack takes %d", what, size, unit, limit)
	}
}

var token = regexp.MustCompile(`<([^<>]*)>`)

// markup looks for mentions and links that nobody but the event could have brought in.
func (c *checker) markup(text, what string) {
	for _, found := range token.FindAllStringSubmatch(text, -1) {
		if !c.allowed(found[1]) {
			c.fault("%s leaks %q as markup from the event: print links with link, mentions with .Mention",
				what, cut(found[0], maxExcerpt))
		}
	}
}

func (c *checker) blocks(blocks []block, where string) {
	c.count += len(blocks)
	for i, b := range blocks {
		c.block(b, fmt.Sprintf("%sblock %d (%s)", where, i+1, cut(b.Type, maxExcerpt)))
	}
}

func (c *checker) block(b block, where string) {
	text, fields, elements := b.Text != nil, len(b.Fields) > 0, len(b.Elements) > 0
	switch b.Type {
	case headerBlock:
		if fields || elements || b.Text.Type != slack.PlainTextType {
			c.fault("%s: a header has a text of type plain_text and nothing else", where)
		}
		c.texts(b.texts(), headerLimit, where)
	case sectionBlock:
		if elements {
			c.fault("%s: a section has a text, fields, or both", where)
		}
		if text {
			c.texts([]textObject{*b.Text}, sectionLimit, where)
		}
		c.texts(b.Fields, fieldLimit, where)
		c.within(len(b.Fields), fieldsLimit, where, "fields")
	case contextBlock:
		if text || fields {
			c.fault("%s: a context has elements and nothing else", where)
		}
		c.texts(b.Elements, sectionLimit, where)
		c.within(len(b.Elements), elementsLimit, where, "elements")
	case dividerBlock:
		if text || fields || elements {
			c.fault("%s: a divider has nothing", where)
		}
	default:
		c.fault("%s: a block is a header, section, context or divider", where)
	}
}

func (c *checker) texts(texts []textObject, limit int, where string) {
	for _, t := range texts {
		c.within(units(t.Text), limit, where, "characters")
		c.characters += units(t.Text)
		switch t.Type {
		case slack.PlainTextType:
			if found := token.FindString(t.Text); found != "" {
				c.fault("%s shows %q as it is: markup needs a text of type mrkdwn", where, cut(found, maxExcerpt))
			}
		case slack.MarkdownType:
			c.markup(t.Text, where)
		default:
			c.fault("%s: the type of a text is plain_text or mrkdwn, not %q", where, cut(t.Type, maxExcerpt))
		}
	}
}
