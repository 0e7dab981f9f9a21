package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
)

const outcomeUnfit = "unfit"

// letterList is what dlq list prints as JSON.
type letterList struct {
	Stream string `json:"stream"`
	Total  int    `json:"total"` // including letters beyond --limit

	PushedOut int                  `json:"pushed_out"` // older letters that the letters of the stream have pushed out, in all categories
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
	BodyBase64 []byte              `json:"body_base64,omitempty"` // set instead of Body if the body is not UTF-8
}

func shown(content deadletters.Content) shownLetter {
	l := shownLetter{Letter: content.Letter, Headers: content.Header}
	if utf8.Valid(content.Body) {
		l.Body = new(string(content.Body))
	} else {
		l.BodyBase64 = content.Body
	}
	return l
}

// changes is what replay and drop print as JSON.
type changes struct {
	Action  string   `json:"action"`
	DryRun  bool     `json:"dry_run"`
	Missing int      `json:"missing"` // named letters that do not exist
	Letters []change `json:"letters"`
}

// change is the outcome of a letter. In a dry run only a letter that cannot be replayed has one.
type change struct {
	Number  uint64              `json:"number"`
	ID      string              `json:"id"`
	Outcome deadletters.Outcome `json:"outcome,omitempty"`
	Error   string              `json:"error,omitempty"`
}

func (c *changes) note(l deadletters.Letter, outcome deadletters.Outcome, err error) {
	noted := change{Number: l.Number, ID: l.ID, Outcome: outcome}
	if err != nil {
		noted.Error = err.Error()
	}
	c.Letters = append(c.Letters, noted)
}

func (d *dlqCommand) announce(a action, letters []deadletters.Letter, missing int) (err error) {
	dry := changes{Action: a.name, DryRun: true, Letters: []change{}, Missing: missing}
	var fit []deadletters.Letter
	for _, l := range letters {
		unfit := a.check(d.store, l)
		if unfit == nil {
			fit = append(fit, l)
			dry.note(l, "", nil)
			continue
		}
		dry.note(l, outcomeUnfit, unfit)
		_, _ = fmt.Fprintf(d.problems, "letter %d: %s\n", l.Number, plain.Line(unfit.Error()))
	}
	if d.flags.json {
		err = screen.PrintJSON(d.out, dry)
	} else {
		_, _ = fmt.Fprintf(d.out, "would %s %s\n", a.name, count(len(fit)))
		err = d.printLetters(fit, len(fit))
	}
	if missing > 0 || len(fit) < len(letters) {
		err = cmp.Or(err, errReported)
	}
	return err
}

func (d *dlqCommand) report(results changes, a action) error {
	done, failed := 0, results.Missing
	for _, l := range results.Letters {
		switch l.Outcome {
		case a.done:
			done++
		case deadletters.Finished:
			_, _ = fmt.Fprintf(d.problems, "letter %d: an earlier replay has sent it on; it is removed\n", l.Number)
		case deadletters.Gone:
			_, _ = fmt.Fprintf(d.problems, "letter %d: it is not there any more\n", l.Number)
		default:
			failed++
			_, _ = fmt.Fprintf(d.problems, "letter %d: %s\n", l.Number, plain.Line(l.Error))
		}
	}
	var err error
	if d.flags.json {
		err = screen.PrintJSON(d.out, results)
	} else {
		_, err = fmt.Fprintf(d.out, "%s %s\n", a.done, count(done))
	}
	if failed > 0 {
		err = cmp.Or(err, errReported)
	}
	return err
}

func count(letters int) string { return screen.Numbered(letters, "letter", "letters") }

const widest = 60

func (d *dlqCommand) printLetters(letters []deadletters.Letter, total int) error {
	rows := [][]string{{"NUMBER", "AGE", "REASON", "CATEGORY", "DELIVERED", "TITLE", "WHY"}}
	for _, l := range letters {
		rows = append(rows, []string{
			fmt.Sprint(l.Number), screen.Age(time.Since(l.Stored)), plain.Line(l.Reason), l.Category, fmt.Sprint(l.Deliveries), plain.Short(l.Title, widest), plain.Short(l.Error, widest),
		})
	}
	return printList(d.out, rows, "no dead letters", total-len(letters))
}

func (d *dlqCommand) printLetter(content deadletters.Content) error {
	var text bytes.Buffer
	rows := [][]string{
		{"Number:", fmt.Sprint(content.Number)},
		{"Stored:", content.Stored.Local().Format(time.DateTime) + " (" + screen.Age(time.Since(content.Stored)) + " ago)"},
		{"Event:", plain.Line(content.ID)},
		{"Category:", plain.Line(content.Category)},
	}
	if content.BodyLength > 0 {
		rows = append(rows, []string{"Body:", fmt.Sprintf("the first %d of %d bytes", len(content.Body), content.BodyLength)})
	}
	for _, name := range slices.Sorted(maps.Keys(content.Header)) {
		for _, value := range content.Header[name] {
			rows = append(rows, []string{plain.Line(name) + ":", plain.Line(value)})
		}
	}
	text.WriteString(screen.Table(rows) + "\n")
	if screen.IsTerminal(d.out) {
		text.WriteString(plain.Text(string(content.Body)) + "\n")
	} else {
		text.Write(content.Body)
	}
	_, err := d.out.Write(text.Bytes())
	return err
}
