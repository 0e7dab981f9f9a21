package page

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// templates are the pages and their parts. They do not change.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"bytes":    bytes1024,
	"clock":    clock,
	"count":    count,
	"degraded": degraded,
	"duration": func(d time.Duration) string { return d.Round(time.Microsecond).String() },
	"iso":      func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"line":     func(text string) string { return plain.Short(text, maxTitle) },
	"notReady": notReady,
	"percent":  func(l status.Limit) string { return fmt.Sprintf("%.0f", 100*l.Share()) },
	"plural":   plural,
	"place":    func(path string) string { return cmp.Or(path, "all events") },
	"room":     room,
	"said":     said,
	"values":   values,
}).ParseFS(assets, "assets/*.html"))

// maxTitle is how many characters of a title are shown.
const maxTitle = 160

// clock is a time of the day, and of another day than today with its date.
func clock(t time.Time) string {
	t = t.Local()
	if t.Format(time.DateOnly) == time.Now().Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format("Jan 2 15:04:05")
}

// count is a whole number whose thousands are set apart.
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

// bytes1024 is a size with a unit that leaves few digits.
func bytes1024(n int64) string {
	size, unit := float64(n), "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if size < 1024 {
			break
		}
		size, unit = size/1024, larger
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", size), ".0") + " " + unit
}

// room says how many events wait, and what for.
func room(waiting map[string]int64) string {
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(waiting)) {
		if waiting[reason] > 0 {
			reasons = append(reasons, count(waiting[reason])+" for "+reason)
		}
	}
	return cmp.Or(strings.Join(reasons, ", "), "none")
}

// values says which workers have which value of a setting.
func values(m status.Mismatch) []string {
	var all []string
	for _, value := range slices.Sorted(maps.Keys(m.Values)) {
		all = append(all, fmt.Sprintf("%s on %s", cmp.Or(value, "not set"), strings.Join(m.Values[value], ", ")))
	}
	return all
}

// said says what was decided about an event, behind the word for the result.
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
	if e.Code != "" {
		facts = append(facts, e.Code)
	}
	return strings.Join(facts, ", ")
}
