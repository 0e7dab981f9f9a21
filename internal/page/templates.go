package page

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// templates are the pages and their parts. It is read-only.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"ahead":       func(t time.Time) bool { return t.After(time.Now()) },
	"bytes":       screen.Bytes,
	"clock":       clock,
	"count":       count,
	"isCategory":  isCategory,
	"iso":         func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"listed":      listed,
	"newestFirst": newestFirst,
	"line":        func(text string) string { return plain.Short(text, maxTitle) },
	"percent":     func(l status.Limit) string { return fmt.Sprintf("%.0f", 100*l.Share()) },
	"plural":      plural,
	"room":        room,
	"said":        said,
	"stored":      stored,
}).ParseFS(assets, "assets/*.html"))

// isCategory reports whether a path can be looked up. Mutes and limits may have patterns, which the page "why" refuses.
func isCategory(path string) bool { return event.ValidatePath(path) == nil }

// maxTitle is how many characters of a title are shown.
const maxTitle = 160

// clock formats a time, with the date if it is not today. A script in the browser converts it to the reader's time zone.
func clock(t time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == time.Now().UTC().Format(time.DateOnly) {
		return t.Format(time.TimeOnly) + " UTC"
	}
	return t.Format("2 Jan 15:04:05 UTC")
}

// count formats a whole number with thousands separators.
func count(n any) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(n) + " " + what + "s"
}

func room(waiting map[string]int64) string {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(waiting)) {
		if waiting[reason] > 0 {
			reasons = append(reasons, count(waiting[reason])+" for "+reason)
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "none")
}

func newestFirst(events []why.Event) []why.Event {
	newest := slices.Clone(events)
	slices.Reverse(newest)
	return newest
}

// listed says how many of the found events an answer lists.
func listed(a why.Answer) string {
	switch shown := len(a.Events); {
	case shown >= a.Found:
		return fmt.Sprintf("All %s, the newest first.", plural(shown, "event"))
	case a.Asked.Single(): // some of each first level
		return fmt.Sprintf("%s of %s, the newest first.", count(shown), plural(a.Found, "event"))
	default:
		return fmt.Sprintf("The newest %s of %s, the newest first.", count(shown), plural(a.Found, "event"))
	}
}

// stored is the time of a row of the decisions as a text that sorts by time. By it the script leaves out a row that it has got before.
func stored(t time.Time) string { return fmt.Sprintf("%020d", t.UnixNano()) }

// said describes a decision, to follow the word for its result.
func said(e journal.Entry) string {
	var facts []string
	if e.Level != "" {
		facts = append(facts, "by "+strings.TrimSpace(e.Level+" "+e.Limit))
	}
	if e.Size > 0 && e.Used > 0 {
		facts = append(facts, fmt.Sprintf("%d of %d used", e.Used, e.Size))
	}
	if e.Channel != "" && e.Result != journal.Dropped {
		facts = append(facts, "to "+e.Channel)
	}
	if e.Reason != "" {
		facts = append(facts, e.Reason)
	}
	if e.Error != "" {
		facts = append(facts, e.Error)
	}
	return strings.Join(facts, ", ")
}
