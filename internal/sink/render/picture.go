package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// Preview renders d without sending it: the message as JSON, and a picture of it in text, for a terminal of 80 columns. A nil
// template is the default. If t fails on d, both show the message of the default template, which would be sent, and the error
// reports why.
func Preview(t *Template, d sink.Delivery) (message []byte, picture string, err error) {
	l, err := t.render(NewView(d, sink.OpenedBy(d)))
	var indented bytes.Buffer
	encoder := json.NewEncoder(&indented)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if encodeErr := encoder.Encode(l); encodeErr != nil {
		return nil, "", fmt.Errorf("encode the message: %w", encodeErr)
	}
	return indented.Bytes(), l.picture(), err
}

const (
	pictureWidth = 80
	frameWidth   = len("| ") + len(" |")
	barWidth     = len("| ")
	columnGap    = 2
)

// picture draws the layout in a frame: the blocks, then the blocks of each attachment beside a bar with the name of its colour.
func (l layout) picture() string {
	const inside = pictureWidth - frameWidth
	lines := drawBlocks(l.Blocks, inside)
	for _, a := range l.Attachments {
		if len(lines) > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, "┏ "+colourName(a.Color))
		for _, line := range drawBlocks(a.Blocks, inside-barWidth) {
			lines = append(lines, strings.TrimRight("┃ "+line, " "))
		}
		lines = append(lines, "┗")
	}
	if len(lines) == 0 {
		lines = wrap(shown(slack.TextBlockObject{Type: slack.MarkdownType, Text: l.Text}), inside)
	}
	for i, line := range lines {
		lines[i] = "│ " + padded(line, inside) + " │\n"
	}
	edge := strings.Repeat("─", inside+2)
	return "╭" + edge + "╮\n" + strings.Join(lines, "") + "╰" + edge + "╯\n"
}

var colourNames = map[string]string{
	"#2563eb": "blue ", "#f59e0b": "amber ", "#dc2626": "red ", "#7f1d1d": "dark red ", "#16a34a": "green ", "#6b7280": "grey ",
	"": "grey",
}

// colourName returns the colour, preceded by its name if a default template uses it.
func colourName(colour string) string { return colourNames[strings.ToLower(colour)] + colour }

func drawBlocks(blocks []block, width int) []string {
	var lines []string
	for i, b := range blocks {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, drawBlock(b, width)...)
	}
	return lines
}

func drawBlock(b block, width int) []string {
	var lines []string
	if b.Text != nil {
		lines = wrap(shown(*b.Text), width)
	}
	switch b.Type {
	case slack.MBTHeader:
		longest := 0
		for _, line := range lines {
			longest = max(longest, columns(line))
		}
		return append(lines, strings.Repeat("═", longest))
	case slack.MBTContext:
		elements := make([]string, 0, len(b.Elements))
		for _, element := range b.Elements {
			elements = append(elements, shown(element))
		}
		return wrap(strings.Join(elements, " · "), width)
	case slack.MBTDivider:
		return []string{strings.Repeat("─", width)}
	}
	return append(lines, drawFields(b.Fields, width)...)
}

// drawFields puts the fields in two columns, like Slack on a wide screen.
func drawFields(fields []slack.TextBlockObject, width int) []string {
	column := (width - columnGap) / 2
	var lines []string
	for pair := range slices.Chunk(fields, 2) {
		left, right := wrap(shown(pair[0]), column), []string(nil)
		if len(pair) == 2 {
			right = wrap(shown(pair[1]), column)
		}
		for len(left) < len(right) {
			left = append(left, "")
		}
		for row, text := range right {
			left[row] = strings.TrimRight(padded(left[row], column+columnGap)+text, " ")
		}
		lines = append(lines, left...)
	}
	return lines
}

var unescaper = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&")

var bold = regexp.MustCompile(`(?m)(^| )\*([^*\s](?:[^*\n]*[^*\s])?)\*( |$)`)

// shown returns a text in the form that a reader sees.
func shown(t slack.TextBlockObject) string {
	text := plain.Text(t.Text)
	if t.Type == slack.MarkdownType {
		text = token.ReplaceAllStringFunc(text, func(found string) string { return shownToken(found[1 : len(found)-1]) })
		text = bold.ReplaceAllString(text, "$1$2$3")
	}
	return unescaper.Replace(text)
}

// shownToken returns a mention, date or link in the form that a reader sees. A link has its target in parentheses.
func shownToken(token string) string {
	target, label, labelled := strings.Cut(token, "|")
	switch {
	case strings.HasPrefix(target, "!date^"):
		return label
	case labelled && (strings.HasPrefix(target, "!") || strings.HasPrefix(target, "@") || strings.HasPrefix(target, "#")):
		return label
	case labelled:
		return label + " (" + target + ")"
	case strings.HasPrefix(target, "!subteam^"):
		return "@" + strings.TrimPrefix(target, "!subteam^")
	case strings.HasPrefix(target, "!"):
		return "@" + target[1:]
	default:
		return target
	}
}

// wrap breaks text into lines of at most width columns, at blanks where it can.
func wrap(text string, width int) []string {
	var lines []string
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\t", "    "), "\n") {
		for {
			start, rest := split(line, width, column)
			if rest == "" {
				lines = append(lines, strings.TrimRight(start, " "))
				break
			}
			if blank := strings.LastIndexByte(start, ' '); rest[0] != ' ' && strings.TrimSpace(start[:max(blank, 0)]) != "" {
				start = start[:blank]
			}
			lines = append(lines, strings.TrimRight(start, " "))
			line = strings.TrimLeft(line[len(start):], " ")
		}
	}
	return lines
}

func padded(line string, width int) string {
	return line + strings.Repeat(" ", max(0, width-columns(line)))
}

// columns is how wide a terminal shows s.
func columns(s string) int { return total(s, column) }

// wide holds what terminals show in two columns: East Asian scripts and pictographs.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1},
		{Lo: 0x2e80, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1},
		{Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1},
		{Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x1f300, Hi: 0x1faff, Stride: 1},
		{Lo: 0x20000, Hi: 0x3fffd, Stride: 1},
	},
}

func column(r rune) int {
	switch {
	case r < unicode.MaxLatin1:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf):
		return 0
	case unicode.Is(wide, r):
		return 2
	default:
		return 1
	}
}
