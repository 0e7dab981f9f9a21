package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// printAnswer prints an answer in blocks with a blank line between.
func printAnswer(out io.Writer, answer why.Answer, now time.Time) error {
	var blocks []string
	if !answer.Known() {
		blocks = append(blocks, plain.Line(subjectOf(answer.Asked)+"not known"+why.After("; ", answer.Missing)+why.After("; the nearest category is ", answer.Nearest))+"\n")
	}
	if answer.Asked.Single() {
		for _, e := range answer.Events {
			blocks = append(blocks, heading(e, now)+"\n"+block(e.Sentences)+facts(e))
		}
		if answer.Found > len(answer.Events) {
			blocks = append(blocks, fmt.Sprintf("these are %d of %d events; --category narrows the question\n", len(answer.Events), answer.Found))
		}
	} else {
		var totals []string
		for _, total := range answer.Totals {
			totals = append(totals, fmt.Sprintf("%d %s", total.Count, total.What()))
		}
		blocks = append(blocks, block(append(totals, answer.Waiting...)))
		if more := answer.Found - len(answer.Events); more > 0 && len(answer.Events) > 0 {
			blocks = append(blocks, fmt.Sprintf("the newest %d of %d:\n", len(answer.Events), answer.Found))
		}
		for _, group := range answer.Groups() {
			blocks = append(blocks, plain.Line(group.Reason)+"\n"+table(group.Events, now))
		}
	}
	blocks = append(blocks, block(answer.Counted), block(answer.Now), block(answer.Unknown))
	_, err := io.WriteString(out, strings.Join(filled(blocks), "\n"))
	return err
}

func filled(texts []string) []string {
	return slices.DeleteFunc(texts, func(text string) bool { return text == "" })
}

// subjectOf returns the name of the event in a question, with a colon; "" if the question is about several events.
func subjectOf(q why.Question) string {
	switch {
	case q.ID != "":
		return q.ID + ": "
	case q.Category != "" && q.Title == "" && q.Sequence == 0:
		return q.Category + ": "
	case q.Sequence != 0:
		return fmt.Sprintf("message %d: ", q.Sequence)
	}
	return ""
}

func block(sentences []string) string {
	var text strings.Builder
	for _, sentence := range sentences {
		text.WriteString(plain.Line(sentence) + "\n")
	}
	return text.String()
}

func heading(e why.Event, now time.Time) string {
	words := filled([]string{plain.Line(e.ID), plain.Line(e.Category), quoted(e.Title)})
	if !e.Stored.IsZero() {
		words = append(words, "stored "+why.Clock(e.Stored, now))
	}
	return strings.Join(words, "  ")
}

// facts returns the facts that no sentence has.
func facts(e why.Event) string {
	var last journal.Entry
	if len(e.Entries) > 0 {
		last = e.Entries[len(e.Entries)-1]
	}
	message := ""
	if e.Sequence != 0 {
		message = fmt.Sprint(e.Sequence) + why.After(" of ", plain.Line(last.Stream))
	}
	known := filled([]string{
		why.After("message ", message), why.After("limits ", plain.Line(last.Revision)), why.After("worker ", plain.Line(last.Instance)),
		why.After("receipt ", plain.Line(last.Receipt)), why.After("trace ", plain.Line(last.Trace)),
	})
	if len(known) == 0 {
		return ""
	}
	return "(" + strings.Join(known, ", ") + ")\n"
}

func table(events []why.Event, now time.Time) string {
	var rows [][]string
	for _, e := range events {
		row := []string{"  " + why.Clock(e.Stored, now), plain.Line(e.ID), plain.Line(e.Category), quoted(plain.Short(e.Title, widest))}
		if e.Note != "" {
			row = append(row, plain.Line(e.Note))
		}
		rows = append(rows, row)
	}
	return screen.Table(rows)
}

func quoted(title string) string {
	if title == "" {
		return ""
	}
	return `"` + plain.Line(title) + `"`
}
