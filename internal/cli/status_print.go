package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/status"
)

// Bounds of the output.
const (
	statusWidth = 100 // characters of a sentence, except on a terminal
	longestText = 256 // characters of a path, a host or a channel
	fewLimits   = 5   // are shown even if they are not full
	mostRows    = 20  // of one table
)

const notKnownText = "not known"

// statusPanels returns the parts of a status, full and faulty ones first. sentenceLines bounds the lines of a sentence; 0 sets no bound.
func statusPanels(s status.Status, width, sentenceLines int) []panel {
	p := statusPrinter{now: s.At, width: width, sentenceLines: sentenceLines}
	return []panel{
		p.heading(s), p.problems(s), p.limits(s.Limits), p.suppressed(s.Suppressed), p.servers(s), p.workers(s), p.channels(s.Channels),
		p.budgets(s.Budgets), p.mutes(s.Mutes), p.changes(s.Changes),
	}
}

type statusPrinter struct {
	now           time.Time
	width         int
	sentenceLines int
}

func (p statusPrinter) heading(s status.Status) panel {
	text := s.At.Local().Format("2006-01-02 15:04:05 -0700")
	if _, revision, known := strings.Cut(s.Revision, ":"); known {
		text += ", limits of revision " + revision
	}
	return p.lines("", []string{text})
}

// lines returns a panel of sentences, each behind its label.
func (p statusPrinter) lines(label string, sentences []string) panel {
	b := panel{}
	for _, sentence := range sentences {
		b.rows = append(b.rows, p.wrapped(label, sentence)...)
	}
	b.urgent = len(b.rows)
	return b
}

// wrapped breaks a text into lines of the width, and indents all but the first.
func (p statusPrinter) wrapped(label, text string) (rows [][]string) {
	line, gap := label, ""
	for _, word := range screen.Words(plain.Line(text)) {
		if gap != "" && utf8.RuneCountInString(line+gap+word) > p.width {
			rows = append(rows, []string{line})
			line, gap = strings.Repeat(" ", utf8.RuneCountInString(label)), ""
		}
		line += gap + word
		gap = " "
	}
	rows = append(rows, []string{line})
	if p.sentenceLines > 0 && len(rows) > p.sentenceLines {
		rows = rows[:p.sentenceLines]
		last := &rows[p.sentenceLines-1][0]
		*last = screen.Fold(*last+" …", p.width, 1)[0]
	}
	return rows
}

func (p statusPrinter) problems(s status.Status) panel {
	var b panel
	add := func(label string, sentences ...string) { b.rows = append(b.rows, p.lines(label, sentences).rows...) }
	if len(s.Workers) == 0 {
		add("", "no worker answers")
	}
	for _, problem := range status.Problems(s.Workers, p.now) {
		add(problem.What+": ", problem.Who()+": "+problem.Why)
	}
	for _, paused := range s.Backlog.Paused {
		add("paused: ", paused.String())
	}
	if shadow := s.ShadowMode(); shadow != "" {
		add("shadow mode: ", shadow+", since NOTIFIER_SHADOW is true")
	}
	for _, m := range s.Mismatches {
		add("settings differ: ", m.String())
	}
	add("not known: ", s.Unknown...)
	add("left out: ", s.Omitted...)
	b.urgent = len(b.rows)
	return b
}

func (p statusPrinter) workers(s status.Status) panel {
	var faulty, sound [][]string
	for i, name := range status.Names(s.Workers) {
		w, state, rows := s.Workers[i], "ready", &sound
		switch {
		case !w.Ready:
			state, rows = "not ready", &faulty
		case w.Degraded != "":
			state, rows = "degraded: "+w.Degraded, &faulty
		}
		*rows = append(*rows, []string{
			plain.Short(name, longestText), state, fmt.Sprint(w.PerMinute.Sent), fmt.Sprint(w.PerMinute.Dropped), fmt.Sprint(w.PerMinute.Delayed),
			fmt.Sprint(w.PerMinute.Folded), fmt.Sprint(w.PerMinute.Other), fmt.Sprint(w.InHand), screen.Duration(w.Up.Truncate(time.Second)), plain.Short(w.Version, 12),
		})
	}
	return panel{
		what: "workers", heading: []string{"WORKER", "STATE", "SENT/MIN", "DROPPED", "DELAYED", "FOLDED", "OTHER", "IN HAND", "UP", "VERSION"},
		rows: append(faulty, sound...), urgent: len(faulty),
	}
}

func (p statusPrinter) servers(s status.Status) panel {
	var b panel
	add := func(label, text string) { b.rows = append(b.rows, p.wrapped(label, text)...) }
	var inRoom []string
	for _, reason := range slices.Sorted(maps.Keys(s.Backlog.InRoom)) {
		if n := s.Backlog.InRoom[reason]; n > 0 {
			inRoom = append(inRoom, fmt.Sprintf("%d for %s", n, reason))
		}
	}
	known := s.Knows(status.BacklogPart)
	if known {
		add("backlog  ", fmt.Sprintf("%d not delivered, %d delivered and unacknowledged; in the room: %s; stream %s",
			s.Backlog.Waiting, s.Backlog.Unacked, cmp.Or(strings.Join(inRoom, ", "), "none"), screen.Bytes(s.Backlog.Bytes, s.Backlog.Capacity)))
	}
	if len(s.DeadLetters) > 0 {
		var counts []string
		for _, letters := range s.DeadLetters {
			counts = append(counts, fmt.Sprintf("%d %s", letters.Count, letters.Reason))
		}
		add("dead     ", strings.Join(counts, ", "))
	}
	if text := s.Redis.String(); text != "" {
		add("redis    ", text)
	}
	if n := s.NATS; n.Server != "" {
		cluster := ""
		if n.Cluster != "" {
			cluster = " of the cluster " + n.Cluster
		}
		stored := ""
		if known {
			stored = fmt.Sprintf(", replicas: %d (%d lagging), %s stored", n.Replicas, n.Lagging, screen.Bytes(n.Bytes, 0))
		}
		add("nats     ", n.Server+cluster+" "+n.Version+stored)
	}
	b.urgent = len(b.rows)
	return b
}

// limits lists the full limits, and at least the fullest few.
func (p statusPrinter) limits(all []status.Limit) panel {
	b := panel{what: "limits", heading: []string{"LIMIT", "SLOTS", "USED", "NEXT SLOT", "DENIED/MIN", "LEVEL"}}
	for i, limit := range all {
		if !limit.Full() && i >= fewLimits {
			break
		}
		if limit.Full() {
			b.urgent++
		}
		b.rows = append(b.rows, []string{
			plain.Short(cmp.Or(limit.Path, "(all)"), longestText), plain.Short(limit.Limit, longestText), fmt.Sprintf("%d of %d", limit.Used, limit.Size),
			nextSlot(limit.Use, p.now), fmt.Sprint(limit.PerMinute), plain.Short(limit.Level, longestText),
		})
	}
	return b
}

// nextSlot says when a limit has its next slot.
func nextSlot(use limits.Use, now time.Time) string {
	switch {
	case use.Next != nil:
		return "in " + screen.Duration(use.Next.Sub(now))
	case !use.Full():
		return "now"
	case use.Never, use.Size == 0:
		return "never"
	}
	return notKnownText
}

func (p statusPrinter) suppressed(all []status.Suppressed) panel {
	b := panel{what: "suppressed", heading: []string{"SUPPRESSED", "EVENTS", "SINCE", "NEXT SLOT", "BY"}, urgent: len(all)}
	for _, s := range all {
		next := notKnownText
		switch {
		case s.Open:
			next = "now"
		case s.Never:
			next = "never"
		case s.OfKeys():
			next = "of each key"
		case !s.Until.IsZero():
			next = "in " + screen.Duration(s.Until.Sub(p.now))
		case !s.OfLimit():
			next = "-"
		}
		b.rows = append(b.rows, []string{
			plain.Short(cmp.Or(s.Category, "(not decoded)"), longestText), fmt.Sprint(s.Count), p.since(s.Since) + " ago", next, plain.Short(s.Level, longestText),
		})
	}
	return b
}

func (p statusPrinter) channels(all []status.Channel) panel {
	var paused, paced, open [][]string
	for _, channel := range slices.SortedStableFunc(slices.Values(all), status.CompareWaiting) {
		state, queue, rate, digest, rows := "open", "not known", "any rate", "none", &open
		if channel.Queue != nil {
			queue = fmt.Sprint(*channel.Queue)
		}
		switch {
		case channel.PausedUntil.After(p.now):
			state, rows = "paused for "+screen.Duration(channel.PausedUntil.Sub(p.now)), &paused
		case channel.PacedUntil.After(p.now):
			state, rows = "at its pace for "+screen.Duration(channel.PacedUntil.Sub(p.now)), &paced
		case !channel.PacedUntil.IsZero():
			state, rows = "at its pace", &paced
		}
		if channel.Rate > 0 {
			rate = fmt.Sprintf("%.3g/s", channel.Rate)
		}
		if !channel.LastDigest.IsZero() {
			digest = p.since(channel.LastDigest) + " ago"
		}
		*rows = append(*rows, []string{
			plain.Short(channel.Name, longestText), state, queue, fmt.Sprint(channel.Held), fmt.Sprint(channel.PerMinute), rate, digest,
		})
	}
	return panel{
		what: "channels", heading: []string{"CHANNEL", "STATE", "QUEUE", "HELD", "TAKEN/MIN", "RATE", "LAST DIGEST"},
		rows: slices.Concat(paused, paced, open), urgent: len(paused),
	}
}

func (p statusPrinter) budgets(all []status.Budget) panel {
	b := panel{what: "budgets", heading: []string{"BUDGET", "STATE", "USED", "WAITING"}}
	for _, budget := range all {
		state := "open"
		if budget.PausedUntil.After(p.now) {
			state = "paused for " + screen.Duration(budget.PausedUntil.Sub(p.now))
			b.urgent++
		}
		waiting := "channels"
		if budget.Name != "workspace" {
			waiting = budget.Name
		}
		b.rows = append(b.rows, []string{budget.Name, state, fmt.Sprintf("%d of %s", budget.Used, budget.Limit), fmt.Sprintf("%d %s", budget.Waiting, waiting)})
	}
	return b
}

func (p statusPrinter) changes(all []status.Change) panel {
	b := panel{what: "live limits", heading: []string{"LIVE LIMIT", "SLOTS", "BY", "CHANGED", "ENDS"}}
	for _, change := range all {
		path := change.Path
		if change.Shadow {
			path = "shadow " + path
		}
		ends := "" // it has no end
		if !change.Until.IsZero() {
			ends = "in " + screen.Duration(change.Until.Sub(p.now))
		}
		b.rows = append(b.rows, []string{
			plain.Short(path, longestText), plain.Short(change.Limit, longestText), plain.Short(author(change.By), longestText), p.since(change.At) + " ago", ends,
		})
	}
	return b
}

func (p statusPrinter) mutes(all []status.Mute) panel {
	b := panel{what: "mutes", heading: []string{"MUTED", "ENDS", "BY", "SINCE", "EXCEPT", "REASON"}}
	for _, mute := range all {
		ends := plain.Short(mute.Every, longestText)
		if !mute.Until.IsZero() {
			ends = "in " + screen.Duration(mute.Until.Sub(p.now))
			b.urgent++
		}
		b.rows = append(b.rows, []string{
			plain.Short(mute.Path, longestText), ends, plain.Short(author(mute.By), longestText), p.since(mute.At) + " ago",
			plain.Short(cmp.Or(mute.Except, "-"), longestText), plain.Short(mute.Reason, longestText),
		})
	}
	return b
}

func (p statusPrinter) since(then time.Time) string {
	return screen.Duration(p.now.Sub(then).Truncate(time.Second))
}
