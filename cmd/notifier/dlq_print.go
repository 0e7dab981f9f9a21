package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/deadletters"
)

// outcomeUnfit is what becomes of a letter that cannot be replayed.
const outcomeUnfit = "unfit"

// letterList is what dlq list prints as JSON.
type letterList struct {
	Stream string `json:"stream"`
	Total  int    `json:"total"` // with those that the limit leaves out

	PushedOut int                  `json:"pushed_out"` // how many older letters the ones in the stream have pushed out, of whatever category
	Letters   []deadletters.Letter `json:"letters"`
}

// contentList is what dlq show prints as JSON.
type contentList struct {
	Stream  string        `json:"stream"`
	Letters []shownLetter `json:"letters"`
}

type shownLetter struct {
	deadletters.Letter
	Headers    map[string][]string `json:"headers"`
	Body       *string             `json:"body,omitempty"`
	BodyBase64 []byte              `json:"body_base64,omitempty"` // of a body that is not UTF-8
}

func shown(content deadletters.Content) shownLetter {
	l := shownLetter{Letter: content.Letter, Headers: content.Header}
	if utf8.Valid(content.Body) {
		body := string(content.Body)
		l.Body = &body
	} else {
		l.BodyBase64 = content.Body
	}
	return l
}

// changes is what replay and drop print as JSON.
type changes struct {
	Action  string   `json:"action"`
	DryRun  bool     `json:"dry_run"`
	Missing int      `json:"missing"` // how many were named that are not there
	Letters []change `json:"letters"`
}

// change is what became of a letter; of a dry run, nothing.
type change struct {
	Number  uint64 `json:"number"`
	ID      string `json:"id"`
	Outcome string `json:"outcome,omitempty"`
	Error   string `json:"error,omitempty"`
}

func (c *changes) note(l deadletters.Letter, outcome string, err error) {
	noted := change{Number: l.Number, ID: l.ID, Outcome: outcome}
	if err != nil {
		noted.Error = err.Error()
	}
	c.Letters = append(c.Letters, noted)
}

// announce prints what a dry run would do.
func (d *dlqCommand) announce(action string, asJSON bool, letters []deadletters.Letter, missing int) error {
	var err error
	if asJSON {
		dry := changes{Action: action, DryRun: true, Letters: []change{}, Missing: missing}
		for _, l := range letters {
			dry.note(l, "", nil)
		}
		err = d.printJSON(dry)
	} else {
		_, _ = fmt.Fprintf(d.out, "would %s %s\n", action, count(len(letters)))
		err = d.printTable(letters, len(letters))
	}
	if missing > 0 {
		err = errors.Join(err, errReported)
	}
	return err
}

// report prints what came out, and fails if something did not.
func (d *dlqCommand) report(asJSON bool, results changes) error {
	done, failed := 0, results.Missing
	verb := "replayed"
	if results.Action == "drop" {
		verb = outcomeDropped
	}
	for _, l := range results.Letters {
		switch l.Outcome {
		case string(deadletters.Replayed), outcomeDropped:
			done++
		case string(deadletters.Finished):
			_, _ = fmt.Fprintf(d.problems, "letter %d: an interrupted replay had sent it on before; it is removed\n", l.Number)
		case string(deadletters.Gone):
			_, _ = fmt.Fprintf(d.problems, "letter %d: it is not there any more\n", l.Number)
		case string(deadletters.InDoubt):
			failed++
			_, _ = fmt.Fprintf(d.problems, "letter %d: in doubt: an interrupted replay may have sent it on; it stays (replay --in-doubt sends it on, drop removes it)\n", l.Number)
		default:
			failed++
			_, _ = fmt.Fprintf(d.problems, "letter %d: %s\n", l.Number, oneLine(l.Error))
		}
	}
	var err error
	if asJSON {
		err = d.printJSON(results)
	} else {
		_, err = fmt.Fprintf(d.out, "%s %s\n", verb, count(done))
	}
	if failed > 0 {
		err = errors.Join(err, errReported)
	}
	return err
}

func count(letters int) string {
	if letters == 1 {
		return "1 letter"
	}
	return fmt.Sprintf("%d letters", letters)
}

// widest is how many characters a column of texts may take.
const widest = 60

func (d *dlqCommand) printTable(letters []deadletters.Letter, total int) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintln(d.out, "no dead letters")
		return err
	}
	table := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "NUMBER\tAGE\tREASON\tCATEGORY\tDELIVERED\tTITLE\tWHY")
	for _, l := range letters {
		why := shorten(l.Error)
		if l.Interrupted {
			why = strings.TrimSpace(why + " (interrupted)")
		}
		_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s\t%s\n", l.Number, ageOf(time.Since(l.Stored)), oneLine(l.Reason), l.Category,
			l.Deliveries, shorten(l.Title), why)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := total - len(letters); more > 0 {
		_, err := fmt.Fprintf(d.out, "(%d more)\n", more)
		return err
	}
	return nil
}

// printLetter prints headers, an empty line and the body.
func (d *dlqCommand) printLetter(content deadletters.Content, further bool) error {
	var text bytes.Buffer
	if further {
		text.WriteString("\n\n")
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{
		{"Number", fmt.Sprint(content.Number)},
		{"Stored", content.Stored.Local().Format(time.DateTime) + " (" + ageOf(time.Since(content.Stored)) + " ago)"},
		{"Event", content.ID},
		{"Category", content.Category},
	} {
		_, _ = fmt.Fprintf(table, "%s:\t%s\n", line[0], oneLine(line[1]))
	}
	if content.BodyLength > 0 {
		_, _ = fmt.Fprintf(table, "Body:\tthe first %d of %d bytes\n", len(content.Body), content.BodyLength)
	}
	if content.Interrupted {
		_, _ = fmt.Fprintln(table, "Replay:\tinterrupted, or under way")
	}
	for _, name := range slices.Sorted(maps.Keys(content.Header)) {
		for _, value := range content.Header[name] {
			_, _ = fmt.Fprintf(table, "%s:\t%s\n", oneLine(name), oneLine(value))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	text.WriteByte('\n')
	if hasTerminal(d.out) {
		text.WriteString(harmless(string(content.Body)) + "\n")
	} else {
		text.Write(content.Body)
	}
	_, err := d.out.Write(text.Bytes())
	return err
}

func (d *dlqCommand) printJSON(value any) error { return writeJSON(d.out, value) }

// writeJSON writes a value so that it shows as it is on a terminal too: what would command one is escaped.
func writeJSON(out io.Writer, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	var text strings.Builder
	for _, r := range string(encoded) {
		if commands(r) {
			_, _ = fmt.Fprintf(&text, `\u%04x`, r)
		} else {
			text.WriteRune(r)
		}
	}
	_, err = fmt.Fprintln(out, text.String())
	return err
}

// commands tells whether a terminal may take a character for something to do rather than to show.
func commands(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// harmless is a text without what would command a terminal, except line ends and tabs.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && commands(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}

// oneLine is a harmless text without line ends.
func oneLine(text string) string { return strings.Join(strings.Fields(harmless(text)), " ") }

// shorten cuts a text for a column.
func shorten(text string) string {
	if runes := []rune(oneLine(text)); len(runes) > widest {
		return string(runes[:widest-1]) + "…"
	}
	return oneLine(text)
}

// ageOf is a duration in its largest unit: 5s, 3m, 47h, 4d.
func ageOf(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
