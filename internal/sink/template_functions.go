package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// Limits in characters after escaping, within those of Slack. A message of the default template
// comes to less than what Slack takes of all blocks together.
const (
	maxFieldName    = 200
	maxField        = fieldLimit
	maxFieldsLength = 4000 // all fields together
	maxFields       = 100
	maxLink         = 1500
	maxContext      = 300 // one element
	maxFallback     = 1000
)

// markup is text in Slack's markup, escaped where it has to be. All other text is escaped when it
// is printed.
type markup string

// result is JSON that is printed as it is.
type result string

// escaped is the name of the function that is appended to every action; an operator has no use for it.
const escaped = "escaped"

// functions are what templates may call beside those of the language; slack-message.tmpl lists them.
var functions = template.FuncMap{
	escaped:    printed,
	"cut":      cutTo,
	"fits":     func(limit int, text string) bool { return fits(plain.Text(text), limit) },
	"upper":    strings.ToUpper,
	"label":    labelled,
	"duration": durationText,
	"usage":    usageText,
	"link":     link,
	"time":     dateAndTime,
	"clock":    clock,
	"json":     func(value any) result { return result(`"` + printed(value) + `"`) },
	"header":   header,
	"section":  section,
	"sections": func(count int, text string) (result, error) { return marshal(sectionBlocks(plain.Text(text), count)) },
	"fields":   func(all []event.Field) (result, error) { return marshal(fields(all)) },
	"context":  smallPrint,
}

func cutTo(limit int, text string) string { return shorten(plain.Text(text), limit, escapedWidth) }

// printed is the form in which a value stands between the quotes of a JSON string, or as JSON.
func printed(value any) string {
	var text string
	switch value := value.(type) {
	case result:
		return string(value)
	case markup:
		text = string(value)
	default:
		text = escape(plainText(value))
	}
	quoted, err := marshal(text)
	if err != nil {
		return "" // no string is beyond JSON
	}
	return string(quoted[1 : len(quoted)-1])
}

// plainText is a value as cleaned text; nothing for nil.
func plainText(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return plain.Text(value)
	}
	return plain.Text(fmt.Sprint(value))
}

// marshal leaves < and > as they are, so that what is printed can be read.
func marshal(value any) (result, error) {
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "", fmt.Errorf("encode a block: %w", err)
	}
	return result(bytes.TrimSuffix(buffer.Bytes(), []byte("\n"))), nil
}

// labelled puts the name before the value; it is nothing if the value is.
func labelled(name string, value any) any {
	if m, ok := value.(markup); ok && m != "" {
		return markup(escape(plain.Text(name))) + " " + m
	}
	if text := plainText(value); text != "" {
		return name + " " + text
	}
	return ""
}

// durationText gives the two largest units, such as 2h 5m; nothing for 0.
func durationText(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	seconds := max(1, int64(d/time.Second))
	units := []struct {
		name    string
		seconds int64
	}{{"d", 24 * 60 * 60}, {"h", 60 * 60}, {"m", 60}, {"s", 1}}
	for i, unit := range units {
		count, rest := seconds/unit.seconds, seconds%unit.seconds
		if count == 0 {
			continue
		}
		text := fmt.Sprintf("%d%s", count, unit.name)
		if i+1 < len(units) && rest >= units[i+1].seconds {
			text += fmt.Sprintf(" %d%s", rest/units[i+1].seconds, units[i+1].name)
		}
		return text
	}
	return ""
}

// usageText is one line for all limits, the nearest to the event first.
func usageText(usage []limits.Usage) string {
	var texts []string
	for _, u := range slices.Backward(usage) {
		text := plain.Line(u.Level) + " " + strconv.FormatInt(u.Used, 10) + " of " + strconv.FormatInt(u.Size, 10)
		if window := windowOf(u.Limit); window != "" {
			text += " in " + window
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// windowOf returns the window of a limit such as 10/30m or token:100/1h;burst=20; nothing if it
// has none.
func windowOf(limit string) string {
	_, window, _ := strings.Cut(limit, "/")
	window, _, _ = strings.Cut(window, ";")
	return window
}

// link returns a link to address, or the address as text where Slack could not link it.
func link(address, text string) any {
	address = plain.Line(address)
	target := linkEncoder.Replace(address)
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || !fits(target, maxLink) {
		return shorten(address, maxLink, escapedWidth)
	}
	// A bar would be taken for the end of the target.
	text = strings.ReplaceAll(plain.Line(text), "|", "/")
	return markup("<" + escape(target) + "|" + fit(text, maxFieldName) + ">")
}

// linkEncoder percent-encodes what would end a link early in Slack's markup.
var linkEncoder = strings.NewReplacer(" ", "%20", "<", "%3C", ">", "%3E", "|", "%7C")

// dateAndTime and clock show t in the reader's time zone; nothing if it is zero.
func dateAndTime(t time.Time) any { return date(t, "{date_short_pretty} {time}", time.RFC3339) }
func clock(t time.Time) any       { return date(t, "{time}", "15:04 UTC") }

// date is t in a form of Slack's, and in one of Go's for those who cannot show that. Slack takes no
// times before 1970.
func date(t time.Time, form, otherwise string) any {
	if t.IsZero() {
		return ""
	}
	text := t.UTC().Format(otherwise)
	if t.Unix() < 0 {
		return text
	}
	return markup("<!date^" + strconv.FormatInt(t.Unix(), 10) + "^" + form + "|" + text + ">")
}

// compose joins texts and markup to one text object, at most limit long. Only texts are cut.
func compose(limit int, parts ...any) textObject {
	kind := slack.PlainTextType
	for _, part := range parts {
		if m, ok := part.(markup); ok && m != "" {
			kind = slack.MarkdownType
			limit -= units(string(m))
		}
	}
	var composed strings.Builder
	for _, part := range parts {
		if m, ok := part.(markup); ok {
			composed.WriteString(string(m))
			continue
		}
		text := plainText(part)
		if limit > 0 {
			composed.WriteString(fit(text, limit))
			limit -= units(escape(text)) // nothing is left behind a cut
		}
	}
	return textObject{Type: kind, Text: strings.TrimSpace(composed.String()), Verbatim: kind == slack.MarkdownType}
}

func header(parts ...any) (result, error) {
	b := headerOf(parts...)
	if b.Text.Type != slack.PlainTextType {
		return "", errors.New("a header shows no links, times or mentions")
	}
	return marshalBlock(b)
}

func headerOf(parts ...any) block {
	text := compose(headerLimit, parts...)
	return block{Type: headerBlock, Text: &text}
}

func section(parts ...any) (result, error) { return marshalBlock(sectionOf(parts...)) }

func sectionOf(parts ...any) block {
	text := compose(sectionLimit, parts...)
	return block{Type: sectionBlock, Text: &text}
}

func smallPrint(parts ...any) (result, error) { return marshalBlock(contextOf(parts...)) }

func contextOf(parts ...any) block {
	var elements []textObject
	for _, part := range parts {
		if element := compose(maxContext, part); element.Text != "" {
			elements = append(elements, element)
		}
	}
	return block{Type: contextBlock, Elements: elements[:min(len(elements), elementsLimit)]}
}

// marshalBlock gives null for a block that shows nothing.
func marshalBlock(b block) (result, error) {
	if b.empty() {
		return "null", nil
	}
	return marshal(b)
}

func sectionBlocks(text string, count int) []block {
	blocks := []block{}
	for _, piece := range sections(strings.TrimSpace(text), count) {
		blocks = append(blocks, block{Type: sectionBlock, Text: &textObject{Type: slack.PlainTextType, Text: piece}})
	}
	return blocks
}

// sections returns text escaped and in at most count pieces, each long enough for a section.
// A piece ends at a line end where the last third of it has one. What is left over is marked.
func sections(text string, count int) []string {
	var pieces []string
	for text != "" && len(pieces) < count-1 && !fits(text, sectionLimit) {
		head, _ := split(text, sectionLimit, escapedWidth)
		if end := strings.LastIndexByte(head, '\n'); end > len(head)*2/3 {
			head = head[:end]
		}
		text = strings.TrimLeftFunc(text[len(head):], unicode.IsSpace)
		pieces = append(pieces, escape(strings.TrimRightFunc(head, unicode.IsSpace)))
	}
	if text != "" {
		pieces = append(pieces, fit(text, sectionLimit))
	}
	return pieces
}

// fields returns sections of fields, and a line that counts those for which there is no room.
func fields(all []event.Field) []block {
	blocks := []block{}
	count, length, left := 0, 0, 0
	for _, field := range all {
		text := fieldText(field)
		if text == "" {
			continue
		}
		size := units(text)
		if left > 0 || count == maxFields || length+size > maxFieldsLength {
			left++
			continue
		}
		if count%fieldsLimit == 0 {
			blocks = append(blocks, block{Type: sectionBlock})
		}
		last := &blocks[len(blocks)-1]
		last.Fields = append(last.Fields, textObject{Type: slack.MarkdownType, Text: text, Verbatim: true})
		count, length = count+1, length+size
	}
	if left > 0 {
		note := compose(maxContext, fmt.Sprintf("%s %d more fields", mark, left))
		blocks = append(blocks, block{Type: contextBlock, Elements: []textObject{note}})
	}
	return blocks
}

// fieldText returns the escaped name in bold and the value below it; empty if both are.
func fieldText(field event.Field) string {
	// The name's escaped form, stars and line end take at most maxFieldName + 3.
	name := fit(plain.Line(field.Name), maxFieldName)
	value := fit(strings.TrimSpace(plain.Text(field.Value)), maxField-maxFieldName-3)
	if name == "" {
		return value
	}
	return strings.TrimSpace("*" + name + "*\n" + value)
}
