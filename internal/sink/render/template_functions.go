package render

import (
	"cmp"
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
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// Limits in characters after escaping. They keep a message of the default template below the limits of Slack.
const (
	maxFieldName    = 200
	maxField        = fieldLimit
	maxFieldsLength = 4000 // all fields together
	maxFields       = 100
	maxLink         = 1500
	maxLinks        = maxLink + maxFieldName // all links of a message together
	maxContext      = 300                    // one element
	maxFallback     = 1000
)

// markup is text in Slack's markup, escaped where it has to be. All other text is escaped when it is printed.
type markup string

// result is JSON that is printed unchanged.
type result string

// escaped is the name of the function that is appended to every action. An operator has no use for it.
const escaped = "escaped"

// functions are the functions of templates beside the built-in ones. The file slack-message.tmpl lists them.
var functions = template.FuncMap{
	escaped:    printed,
	"cut":      cutTo,
	"fits":     func(limit int, text string) bool { return fits(plain.Text(text), limit) },
	"upper":    strings.ToUpper,
	"label":    labelled,
	"duration": durationText,
	"usage":    usageText,
	"seen":     seen,
	"link":     link,
	"links":    links,
	"time":     dateAndTime,
	"clock":    clock,
	"json":     func(value any) result { return result(`"` + printed(value) + `"`) },
	"header":   header,
	"section":  sectionOf,
	"sections": func(count int, text string) []block { return sectionBlocks(plain.Text(text), count) },
	"fields":   fields,
	"context":  contextOf,
}

func cutTo(limit int, text string) string { return shorten(plain.Text(text), limit, escapedWidth) }

// printed returns a value in the form for the inside of a JSON string. Blocks are printed as JSON objects.
func printed(value any) string {
	switch value := value.(type) {
	case result:
		return string(value)
	case block:
		if value.empty() {
			return "null"
		}
		return sink.JSON(value)
	case []block:
		return sink.JSON(value)
	case markup:
		return withoutQuotes(sink.JSON(value))
	default:
		return withoutQuotes(sink.JSON(escape(plainText(value))))
	}
}

func withoutQuotes(text string) string { return text[1 : len(text)-1] }

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

// labelled puts the name before the value. It returns "" for an empty value.
func labelled(name string, value any) any {
	if m, ok := value.(markup); ok && m != "" {
		return markup(escape(plain.Text(name))) + " " + m
	}
	if text := plainText(value); text != "" {
		return name + " " + text
	}
	return ""
}

var durationUnits = []struct {
	name string
	size time.Duration
}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}

// durationText gives the two largest units, such as 2h 5m; nothing for 0.
func durationText(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	d = max(d, time.Second)
	for i, unit := range durationUnits {
		if d < unit.size {
			continue
		}
		text := fmt.Sprintf("%d%s", d/unit.size, unit.name)
		if i+1 < len(durationUnits) {
			next := durationUnits[i+1]
			if count := d % unit.size / next.size; count > 0 {
				text += fmt.Sprintf(" %d%s", count, next.name)
			}
		}
		return text
	}
	return ""
}

// seen describes the events that are folded into a message: seen 37 times, last 10:31, worst: critical. It is empty without folded events.
// While the key is flapping, it begins so: flapping, now resolved; seen 9 times, …
func seen(s sink.Seen) any {
	var texts []string
	if s.Flapping {
		now := event.StatusResolved
		if s.Fires {
			now = event.StatusFiring
		}
		texts = append(texts, "flapping, now "+string(now))
	}
	if s.Times > 1 {
		last, _ := clock(s.Last).(markup)
		texts = append(texts, fmt.Sprintf("seen %d times, last %s, worst: %s", s.Times, last, s.Worst))
	}
	return markup(strings.Join(texts, "; "))
}

// usageText is one line for all limits, the nearest to the event first.
func usageText(usage []limits.Use) string {
	var texts []string
	for _, u := range slices.Backward(usage) {
		text := plain.Line(u.Name()) + " " + strconv.FormatInt(u.Used, 10) + " of " + strconv.FormatInt(u.Size, 10)
		if window := windowOf(u.Limit); window != "" {
			text += " in " + window
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// windowOf returns the window of a limit such as 10/30m or token:100/1h;burst=20; "" if it has none.
func windowOf(limit string) string {
	_, window, _ := strings.Cut(limit, "/")
	window, _, _ = strings.Cut(window, ";")
	return window
}

// link returns a link to address. If Slack could not link the address, it returns the address as text.
func link(address, text string) any {
	address = plain.Line(address)
	target := linkEncoder.Replace(address)
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || !fits(target, maxLink) {
		return shorten(address, maxLink, escapedWidth)
	}
	// A bar would end the target.
	text = strings.ReplaceAll(plain.Line(text), "|", "/")
	return markup("<" + escape(target) + "|" + fit(text, maxFieldName) + ">")
}

// links returns a link to address, and named links to the other URLs until the space is used up. The first link is named "Open",
// unless one of the other URLs is equal and has a name.
func links(address string, others []event.Field) any {
	name := "Open"
	for _, other := range others {
		if other.Value == address {
			name = cmp.Or(plain.Line(other.Name), name)
		}
	}
	first := link(address, name)
	joined, isLinked := first.(markup)
	if !isLinked && first != "" {
		return first // Slack could not link it
	}
	for _, other := range others {
		next, isLinked := link(other.Value, cmp.Or(plain.Line(other.Name), "Open")).(markup)
		if !isLinked || other.Value == address {
			continue
		}
		if joined != "" {
			next = joined + "  ·  " + next
		}
		if units(string(next)) <= maxLinks {
			joined = next
		}
	}
	return joined
}

// linkEncoder percent-encodes what would end a link early in Slack's markup.
var linkEncoder = strings.NewReplacer(" ", "%20", "<", "%3C", ">", "%3E", "|", "%7C")

// dateAndTime and clock show t in the reader's time zone; nothing if it is zero.
func dateAndTime(t time.Time) any { return date(t, "{date_short_pretty} {time}", time.RFC3339) }
func clock(t time.Time) any       { return date(t, "{time}", "15:04 UTC") }

// date is t in a form of Slack's, with one of Go's for clients that cannot show it. Slack takes no times before 1970.
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

// compose joins texts and markup to one text object, at most limit long. It cuts texts but no markup.
func compose(limit int, parts ...any) slack.TextBlockObject {
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
	return slack.TextBlockObject{Type: kind, Text: strings.TrimSpace(composed.String()), Verbatim: kind == slack.MarkdownType}
}

func header(parts ...any) (block, error) {
	b := headerOf(parts...)
	if b.Text.Type != slack.PlainTextType {
		return block{}, errors.New("a header shows no links, times or mentions")
	}
	return b, nil
}

func headerOf(parts ...any) block {
	return block{Type: slack.MBTHeader, Text: new(compose(headerLimit, parts...))}
}

func sectionOf(parts ...any) block {
	return block{Type: slack.MBTSection, Text: new(compose(sectionLimit, parts...))}
}

func contextOf(parts ...any) block {
	var elements []slack.TextBlockObject
	for _, part := range parts {
		if element := compose(maxContext, part); element.Text != "" {
			elements = append(elements, element)
		}
	}
	return block{Type: slack.MBTContext, Elements: elements[:min(len(elements), elementsLimit)]}
}

func sectionBlocks(text string, count int) []block {
	blocks := []block{}
	for _, piece := range sections(strings.TrimSpace(text), count) {
		blocks = append(blocks, block{Type: slack.MBTSection, Text: &slack.TextBlockObject{Type: slack.PlainTextType, Text: piece}})
	}
	return blocks
}

// sections returns text escaped and in at most count pieces, each short enough for a section. A piece ends at a line end where
// the last third of it has one. The last piece ends with a mark where text is left over.
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

// fields returns sections of fields, and a line with the number of fields that were left out.
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
			blocks = append(blocks, block{Type: slack.MBTSection})
		}
		last := &blocks[len(blocks)-1]
		last.Fields = append(last.Fields, slack.TextBlockObject{Type: slack.MarkdownType, Text: text, Verbatim: true})
		count, length = count+1, length+size
	}
	if left > 0 {
		note := compose(maxContext, fmt.Sprintf("%s %d more fields", mark, left))
		blocks = append(blocks, block{Type: slack.MBTContext, Elements: []slack.TextBlockObject{note}})
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
