package render

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

// layout is the JSON that a template prints. An unknown member is a fault, so that a misspelt one does not go unnoticed.
type layout struct {
	Text        string           `json:"text"`
	Blocks      list[block]      `json:"blocks,omitempty"`
	Attachments list[attachment] `json:"attachments,omitempty"`
}

// attachment is a part of the message beside a coloured bar.
type attachment struct {
	Color    string      `json:"color,omitempty"`
	Fallback string      `json:"fallback,omitempty"` // for notifications
	Blocks   list[block] `json:"blocks,omitempty"`
}

// block is a header, section, context or divider. Each type has some of the members.
type block struct {
	Type     slack.MessageBlockType      `json:"type"`
	Text     *slack.TextBlockObject      `json:"text,omitempty"`
	Fields   list[slack.TextBlockObject] `json:"fields,omitempty"`
	Elements list[slack.TextBlockObject] `json:"elements,omitempty"`
}

// message returns the layout in the types of slack-go.
func (l layout) message() Message {
	m := Message{Text: l.Text, Blocks: slackBlocks(l.Blocks)}
	for _, a := range l.Attachments {
		m.Attachments = append(m.Attachments, slack.Attachment{
			Color: a.Color, Fallback: a.Fallback, Blocks: slack.Blocks{BlockSet: slackBlocks(a.Blocks)},
		})
	}
	return m
}

func slackBlocks(blocks []block) []slack.Block {
	converted := make([]slack.Block, 0, len(blocks))
	for _, b := range blocks {
		switch b.Type {
		case slack.MBTHeader:
			converted = append(converted, slack.NewHeaderBlock(b.Text))
		case slack.MBTSection:
			var fields []*slack.TextBlockObject
			for i := range b.Fields {
				fields = append(fields, &b.Fields[i])
			}
			converted = append(converted, slack.NewSectionBlock(b.Text, fields, nil))
		case slack.MBTContext:
			var elements []slack.MixedElement
			for i := range b.Elements {
				elements = append(elements, &b.Elements[i])
			}
			converted = append(converted, slack.NewContextBlock("", elements...))
		case slack.MBTDivider:
			converted = append(converted, slack.NewDividerBlock())
		}
	}
	return converted
}

// list is read from an array. Nulls are left out, and the items of inner arrays become items of the list, so templates need no
// conditions around commas.
type list[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
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

// decodeStrictly refuses unknown members and anything behind the value.
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
		before := string(data[:min(int(syntax.Offset), len(data))])
		if len(before) > maxExcerpt {
			before = mark + strings.ToValidUTF8(before[len(before)-maxExcerpt:], "")
		}
		return layout{}, fmt.Errorf("the result is not JSON: %w after %q", err, before)
	}
	if err != nil {
		return layout{}, fmt.Errorf("the result is no message: %w", err)
	}
	l.tidy()
	return l, nil
}

// maxExcerpt bounds how many bytes of a result a fault shows.
const maxExcerpt = 60

// tidy removes empty blocks and texts, which Slack would refuse.
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
			tidyText(b.Text)
			if isEmpty(*b.Text) {
				b.Text = nil
			}
		}
	}
	return slices.DeleteFunc(blocks, func(b block) bool {
		return b.empty() && (b.Type == slack.MBTHeader || b.Type == slack.MBTSection || b.Type == slack.MBTContext)
	})
}

func tidyTexts(texts []slack.TextBlockObject) []slack.TextBlockObject {
	for i := range texts {
		tidyText(&texts[i])
	}
	return slices.DeleteFunc(texts, isEmpty)
}

// tidyText sets Verbatim in mrkdwn, so that Slack adds no links and mentions of its own, and Emoji in plain text alone, as Slack
// demands.
func tidyText(t *slack.TextBlockObject) {
	t.Verbatim = t.Type == slack.MarkdownType
	switch {
	case t.Verbatim:
		t.Emoji = nil
	case t.Emoji == nil:
		t.Emoji = new(bool)
	}
}

func isEmpty(t slack.TextBlockObject) bool { return strings.TrimSpace(t.Text) == "" }

// empty reports whether the block shows no text.
func (b block) empty() bool {
	shows := func(t slack.TextBlockObject) bool { return !isEmpty(t) }
	return (b.Text == nil || isEmpty(*b.Text)) && !slices.ContainsFunc(b.Fields, shows) && !slices.ContainsFunc(b.Elements, shows)
}

// Slack's limits, in characters after escaping. It refuses all blocks together (msg_blocks_too_long) somewhere above 13,000.
const (
	textLimit        = 40000
	headerLimit      = 150
	sectionLimit     = 3000
	fieldLimit       = 2000
	fieldsLimit      = 10
	elementsLimit    = 10
	blocksLimit      = 50
	charactersLimit  = 13000
	attachmentsLimit = 20
)

var colourForm = regexp.MustCompile(`^(#[0-9A-Fa-f]{6}|good|warning|danger)?$`)

// check reports why Slack would refuse the layout or show markup that comes from the event. allowed permits the operator's markup.
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

// markup finds mentions and links that can only come from the event.
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
		c.block(b, fmt.Sprintf("%sblock %d (%s)", where, i+1, cut(string(b.Type), maxExcerpt)))
	}
}

// shape is what a type of block may hold: the longest text, field and element, in characters; 0 for none.
type shape struct {
	text, fields, elements int
	rule                   string
}

var shapes = map[slack.MessageBlockType]shape{
	slack.MBTHeader:  {text: headerLimit, rule: "a header has a text of type plain_text and nothing else"},
	slack.MBTSection: {text: sectionLimit, fields: fieldLimit, rule: "a section has a text, fields, or both"},
	slack.MBTContext: {elements: sectionLimit, rule: "a context has elements and nothing else"},
	slack.MBTDivider: {rule: "a divider has nothing"},
}

func (c *checker) block(b block, where string) {
	shape, known := shapes[b.Type]
	switch {
	case !known:
		c.fault("%s: a block is a header, section, context or divider", where)
	case b.Text != nil && shape.text == 0, len(b.Fields) > 0 && shape.fields == 0, len(b.Elements) > 0 && shape.elements == 0,
		b.Type == slack.MBTHeader && b.Text.Type != slack.PlainTextType:
		c.fault("%s: %s", where, shape.rule)
	}
	if b.Text != nil {
		c.text(*b.Text, shape.text, where)
	}
	for _, field := range b.Fields {
		c.text(field, shape.fields, where)
	}
	c.within(len(b.Fields), fieldsLimit, where, "fields")
	for _, element := range b.Elements {
		c.text(element, shape.elements, where)
	}
	c.within(len(b.Elements), elementsLimit, where, "elements")
}

func (c *checker) text(t slack.TextBlockObject, limit int, where string) {
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
