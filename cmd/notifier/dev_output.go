//go:build !nodev

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// lines lets several goroutines write whole lines to one output.
type lines struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(line)
}

// painter colours texts for a terminal.
type painter struct{ colour bool }

func (p painter) bold(text string) string  { return p.paint("1", text) }
func (p painter) faint(text string) string { return p.paint("2", text) }
func (p painter) green(text string) string { return p.paint("32", text) }
func (p painter) amber(text string) string { return p.paint("33", text) }

func (p painter) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// tally counts outcomes for the line of totals, on their way to the metrics.
type tally struct {
	consume.Metrics

	mu      sync.Mutex
	events  int
	sent    int
	dropped map[string]int // by level
}

func newTally() *tally { return &tally{dropped: make(map[string]int)} }

func (t *tally) over(metrics consume.Metrics) *tally {
	t.Metrics = metrics
	return t
}

// Event implements [consume.Metrics].
func (t *tally) Event(category, outcome string, n int) {
	t.Metrics.Event(category, outcome, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events += n
	if outcome == string(consume.Sent) {
		t.sent += n
	}
}

// Dropped implements [consume.Metrics].
func (t *tally) Dropped(category, level string, n int) {
	t.Metrics.Dropped(category, level, n)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropped[level] += n
}

// totalsEvery is how often the line of totals is printed.
const totalsEvery = time.Second

// printTotals prints a line of totals each second in which something changed, or in which a limit is full.
func (d *dev) printTotals(ctx context.Context, limiter *throttle.Limiter) {
	ticker := time.NewTicker(totalsEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d.say("%s", d.tally.line(d.paint, limiter))
		}
	}
}

func (t *tally) line(paint painter, limiter *throttle.Limiter) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	fmt.Fprintf(&text, "events %d  %s", t.events, paint.green(fmt.Sprintf("sent %d", t.sent)))
	levels := make([]string, 0, len(t.dropped))
	total := 0
	for level, n := range t.dropped {
		levels = append(levels, level)
		total += n
	}
	slices.Sort(levels)
	byLevel := make([]string, len(levels))
	for i, level := range levels {
		byLevel[i] = fmt.Sprintf("%s %d", level, t.dropped[level])
	}
	dropped := fmt.Sprintf("dropped %d", total)
	if len(byLevel) > 0 {
		dropped += " (" + strings.Join(byLevel, ", ") + ")"
	}
	fmt.Fprintf(&text, "  %s  ", paint.amber(dropped))
	if level, wait := limiter.NextSlot(); wait > 0 {
		fmt.Fprintf(&text, "next free slot (%s) in %s", level, roundedUp(wait))
	} else {
		text.WriteString("slots are free")
	}
	return paint.bold("totals") + "  " + text.String()
}

// roundedUp shows a wait in whole seconds, never less than there is.
func roundedUp(wait time.Duration) time.Duration {
	return (wait + time.Second - 1).Truncate(time.Second)
}
