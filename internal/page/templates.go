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
	"github.com/seed-4578ace9/notifier/internal/why"
)

// templates are the pages and their parts. They do not change.
var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"bytes":       bytes1024,
	"clock":       clock,
	"count":       count,
	"iso":         func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) },
	"listed":      listed,
	"newestFirst": newestFirst,
	"line":        func(text string) string { return plain.Short(text, maxTitle) },
	"percent":     func(l status.Limit) string { return fmt.Sprintf("%.0f", 100*l.Share()) },
	"plural":      plural,
	"redis":       redisText,
	"room":        room,
	"said":        said,
	"values":      values,
}).ParseFS(assets, "assets/*.html"))

// maxTitle is how many characters of a title are shown.
const maxTitle = 160

// clock is a time of the day, and of another day than today with its date. A script in the browser writes it in the reader's zone.
func clock(t time.Time) string {
	t = t.UTC()
	if t.Format(time.DateOnly) == time.Now().UTC().Format(time.DateOnly) {
		return t.Format(time.TimeOnly) + " UTC"
	}
	return t.Format("2 Jan 15:04:05 UTC")
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

// redisText says what is known of Redis.
func redisText(r status.Redis) string {
	var known []string
	if r.Role != "" {
		known = append(known, r.Role+", version "+r.Version, plural(r.Replicas, "replica"))
	}
	if r.Memory > 0 {
		memory := bytes1024(r.Memory)
		if r.MaxMemory > 0 {
			memory += " of " + bytes1024(r.MaxMemory)
		}
		known = append(known, memory)
	}
	if r.SlowestCall > 0 {
		known = append(known, "slowest call of the last minute "+r.SlowestCall.Round(time.Microsecond).String())
	}
	return strings.Join(known, ", ")
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

// newestFirst turns the events of an answer round.
func newestFirst(events []why.Event) []why.Event {
	newest := slices.Clone(events)
	slices.Reverse(newest)
	return newest
}

// listed says of an answer about many events how many of them it lists.
func listed(a why.Answer) string {
	outcomes := 0
	for _, total := range a.Totals {
		if total.Result.Ends() {
			outcomes += total.Count
		}
	}
	if shown := len(a.Events); shown < outcomes {
		return fmt.Sprintf("The newest %s of %s, the newest first.", count(shown), plural(outcomes, "event"))
	}
	return fmt.Sprintf("All %s, the newest first.", plural(len(a.Events), "event"))
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
