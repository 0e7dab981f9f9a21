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
)

// layout is the JSON that a template produces. Any other member is a fault, so that a misspelt one does not go unnoticed.
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

// The types of texts.
const (
	plainTextType = "plain_text"
	markdownType  = "mrkdwn"
)

type textObject struct {
	Type string `json:"type"`
	Text string `json:"text"`
	// Verbatim keeps Slack from finding links and mentions of its own. It is always set in mrkdwn.
	Verbatim bool `json:"verbatim,omitempty"`
	// Emoji says whether :names: are shown as emoji. It is always set in plain text. Slack takes it nowhere else.
	Emoji *bool `json:"emoji,omitempty"`
}

// list is read from an array without its nulls. The items of inner arrays become items of the list. So templates need no
// conditions around commas.
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

// maxExcerpt bounds in bytes how much of a result a fault shows.
const maxExcerpt = 60

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
	return slices.DeleteFunc(blocks, func(b block) bool {
		return b.empty() && (b.Type == headerBlock || b.Type == sectionBlock || b.Type == contextBlock)
	})
}

func tidyTexts(texts []textObject) []textObject {
	for i := range texts {
		texts[i].tidy()
	}
	return slices.DeleteFunc(texts, textObject.empty)
}

func (t *textObject) tidy() {
	t.Verbatim = t.Type == markdownType
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

// check finds out whether Slack would take the layout and show it as it is meant. Markup that is not allowed is a leak.
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

// shape is what a type of block may hold: the greatest length of its text, of each field and of each element; 0 for none.
type shape struct {
	text, fields, elements int
	rule                   string
}

var shapes = map[string]shape{
	headerBlock:  {text: headerLimit, rule: "a header has a text of type plain_text and nothing else"},
	sectionBlock: {text: sectionLimit, fields: fieldLimit, rule: "a section has a text, fields, or both"},
	contextBlock: {elements: sectionLimit, rule: "a context has elements and nothing else"},
	dividerBlock: {rule: "a divider has nothing"},
}

func (c *checker) block(b block, where string) {
	shape, known := shapes[b.Type]
	switch {
	case !known:
		c.fault("%s: a block is a header, section, context or divider", where)
	case b.Text != nil && shape.text == 0, len(b.Fields) > 0 && shape.fields == 0, len(b.Elements) > 0 && shape.elements == 0,
		b.Type == headerBlock && b.Text.Type != plainTextType:
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

func (c *checker) text(t textObject, limit int, where string) {
	c.within(units(t.Text), limit, where, "characters")
	c.characters += units(t.Text)
	switch t.Type {
	case plainTextType:
		if found := token.FindString(t.Text); found != "" {
			c.fault("%s shows %q as it is: markup needs a text of type mrkdwn", where, cut(found, maxExcerpt))
		}
	case markdownType:
		c.markup(t.Text, where)
	default:
		c.fault("%s: the type of a text is plain_text or mrkdwn, not %q", where, cut(t.Type, maxExcerpt))
	}
}
