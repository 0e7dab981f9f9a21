package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// How much of a status is shown on a screen.
const (
	statusWidth = 100
	nameWidth   = 24 // of a path, a host or a channel
	fewLimits   = 5  // are shown even if they are not full
	mostRows    = 20 // of one table
)

// Codes of a terminal that has the next text drawn over the last one.
const (
	toTheTop     = "\x1b[H"
	clearOfBelow = "\x1b[J"
)

// redrawn draws the text of a status over the one before.
func redrawn(text string) string {
	// Behind a row of the full width the code would clear the row's last character, so each row begins with it.
	return toTheTop + clearOfRight + strings.ReplaceAll(text, "\n", "\n"+clearOfRight) + clearOfBelow
}

// statusText is the status as tables for a screen.
func statusText(s status.Status) string {
	p := &statusPrinter{now: s.At}
	_, revision, known := strings.Cut(s.Revision, ":")
	if known {
		revision = ", limits of revision " + revision
	}
	p.line("%s%s", s.At.Local().Format("2006-01-02 15:04:05 -0700"), revision)
	p.workers(s)
	p.summary(s)
	p.limits(s.Limits)
	p.channels(s.Channels)
	p.changes(s.Changes)
	for _, sentence := range s.Unknown {
		p.wrapped("not known: ", sentence)
	}
	return p.text.String()
}

// statusPrinter writes parts of a status one after another.
type statusPrinter struct {
	text strings.Builder
	now  time.Time
}

func (p *statusPrinter) line(format string, values ...any) {
	_, _ = fmt.Fprintf(&p.text, format+"\n", values...)
}

// table prints rows below a heading; nothing without rows.
func (p *statusPrinter) table(heading []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	more := len(rows) - mostRows
	rows = append([][]string{heading}, rows[:min(len(rows), mostRows)]...)
	p.text.WriteString("\n" + tableOf(rows))
	if more > 0 {
		p.line("and %d more, see --json", more)
	}
}

// wrapped prints a text in lines that fit the screen. The second and further lines are indented.
func (p *statusPrinter) wrapped(label, text string) {
	line, gap := label, ""
	for word := range strings.FieldsSeq(plain.Line(text)) {
		if gap != "" && utf8.RuneCountInString(line+gap+word) > statusWidth {
			p.line("%s", line)
			line, gap = strings.Repeat(" ", utf8.RuneCountInString(label)), ""
		}
		line += gap + word
		gap = " "
	}
	p.line("%s", line)
}

func (p *statusPrinter) workers(s status.Status) {
	if len(s.Workers) == 0 {
		p.line("\nno worker answers")
		return
	}
	var rows [][]string
	for _, w := range s.Workers {
		state := "ready"
		switch {
		case !w.Ready:
			state = "not ready"
		case w.Degraded != "":
			state = "degraded: " + w.Degraded
		}
		rows = append(rows, []string{
			plain.Short(w.Name, nameWidth), plain.Short(w.Version, 12), p.since(w.Started), state, fmt.Sprint(w.InHand),
			fmt.Sprint(w.PerMinute.Sent), fmt.Sprint(w.PerMinute.Dropped), fmt.Sprint(w.PerMinute.Waiting), fmt.Sprint(w.PerMinute.Other),
		})
	}
	p.table([]string{"WORKER", "VERSION", "UP", "STATE", "IN HAND", "SENT/MIN", "DROPPED", "WAITING", "OTHER"}, rows)
	for _, w := range s.Workers {
		if !w.Ready {
			p.wrapped("not ready: ", w.Name+": "+w.NotReady)
		}
		if w.Journal != nil && w.Journal.Error != "" {
			p.wrapped("journal: ", fmt.Sprintf("%s cannot write it since %s: %s", w.Name, p.since(w.Journal.Complete)+" ago", w.Journal.Error))
		}
	}
	for _, m := range s.Mismatches {
		p.wrapped("settings differ: ", m.String())
	}
}

func (p *statusPrinter) summary(s status.Status) {
	b := s.Backlog
	p.line("")
	var inRoom []string
	for _, reason := range slices.Sorted(maps.Keys(b.InRoom)) {
		if n := b.InRoom[reason]; n > 0 {
			inRoom = append(inRoom, fmt.Sprintf("%d %s", n, reason))
		}
	}
	p.wrapped("backlog  ", fmt.Sprintf("%d waiting, %d unacknowledged; in the room: %s; stream %s",
		b.Waiting, b.Unacked, cmp.Or(strings.Join(inRoom, ", "), "none"), sizeOf(b.Bytes, b.Capacity)))
	if r := s.Redis; r.Role != "" || r.SlowestCall > 0 {
		p.wrapped("redis    ", fmt.Sprintf("%s, replicas: %d, memory %s, slowest call of the last minute %s",
			cmp.Or(strings.TrimSpace(r.Role+" "+r.Version), "says nothing of itself"), r.Replicas, sizeOf(r.Memory, r.MaxMemory), shortTime(r.SlowestCall)))
	}
	if n := s.NATS; n.Server != "" {
		cluster := ""
		if n.Cluster != "" {
			cluster = " of the cluster " + n.Cluster
		}
		p.wrapped("nats     ", fmt.Sprintf("%s%s %s, replicas: %d (%d lagging), %s stored",
			n.Server, cluster, n.Version, n.Replicas, n.Lagging, sizeOf(n.Bytes, 0)))
	}
	if len(s.DeadLetters) > 0 {
		var counts []string
		for _, letters := range s.DeadLetters {
			counts = append(counts, fmt.Sprintf("%d %s", letters.Count, letters.Reason))
		}
		p.wrapped("dead     ", strings.Join(counts, ", "))
	}
}

// limits prints those that are full, and at least the fullest few.
func (p *statusPrinter) limits(all []status.Limit) {
	var rows [][]string
	for i, limit := range all {
		if !limit.Full() && i >= fewLimits {
			break
		}
		next := ""
		if limit.Next != nil {
			next = "in " + shortTime(limit.Next.Sub(p.now))
		}
		rows = append(rows, []string{
			plain.Short(cmp.Or(limit.Path, "(all)"), nameWidth), plain.Short(limit.Level, nameWidth), plain.Short(limit.Limit, nameWidth),
			fmt.Sprintf("%d of %d", limit.Used, limit.Size), fmt.Sprint(limit.PerMinute), next,
		})
	}
	p.table([]string{"LIMIT", "LEVEL", "SLOTS", "USED", "DENIED/MIN", "NEXT SLOT"}, rows)
}

func (p *statusPrinter) channels(all []status.Channel) {
	var rows [][]string
	for _, channel := range all {
		state, rate, digest := "open", "any rate", "none"
		if channel.PausedUntil.After(p.now) {
			state = "paused for " + shortTime(channel.PausedUntil.Sub(p.now))
		}
		if channel.Rate > 0 {
			rate = fmt.Sprintf("%.3g/s", channel.Rate)
		}
		if !channel.LastDigest.IsZero() {
			digest = p.since(channel.LastDigest) + " ago"
		}
		rows = append(rows, []string{
			plain.Short(channel.Name, nameWidth), state, fmt.Sprint(channel.Queue), fmt.Sprint(channel.PerMinute), rate, digest,
		})
	}
	p.table([]string{"CHANNEL", "STATE", "QUEUE", "TAKEN/MIN", "RATE", "LAST DIGEST"}, rows)
}

func (p *statusPrinter) changes(all []status.Change) {
	var rows [][]string
	for _, change := range all {
		path := change.Path
		if change.Shadow {
			path = "shadow " + path
		}
		ends := ""
		if !change.Until.IsZero() {
			ends = "in " + shortTime(change.Until.Sub(p.now))
		}
		rows = append(rows, []string{
			plain.Short(path, nameWidth), plain.Short(change.Limit, nameWidth), plain.Short(author(change.By), nameWidth), p.since(change.At) + " ago", ends,
		})
	}
	p.table([]string{"LIVE LIMIT", "SLOTS", "BY", "CHANGED", "ENDS"}, rows)
}

func (p *statusPrinter) since(then time.Time) string { return shortTime(p.now.Sub(then)) }

// shortTime is a duration in its two largest units.
func shortTime(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return d.Truncate(time.Second).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// sizeOf is a number of bytes, of so many where there is a bound.
func sizeOf(bytes, bound int64) string {
	text := inUnits(bytes)
	if bound > 0 {
		text += " of " + inUnits(bound)
	}
	return text
}

func inUnits(bytes int64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.4g %s", value, units[unit])
}
