//go:build !nodev

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// picture shows on a terminal the guide, the counts and the limits in place, and below them lines that scroll.
//
// Each frame is one write, which leaves the terminal as it was: the cursor on the last row, visible, lines wrapped, no colour.
// So a process that ends at any moment, also by a panic or SIGKILL, leaves nothing that has to be restored. What stood on the
// terminal before is in its scrollback.
type picture struct {
	out   io.Writer
	size  func() (width, height int)
	paint painter
	began time.Time
	stop  chan struct{}
	done  chan struct{}

	mu            sync.Mutex
	guide         guide
	now           situation
	scrolled      []string // the newest last
	width, height int      // of the last frame; 0 before the first
	seconds       int      // since the beginning, as shown
	changed       bool     // since the last frame
	closed        bool
}

const (
	frameEvery   = 100 * time.Millisecond
	maxScrolled  = 200 // lines; more than any terminal has rows
	foldedRows   = 3   // of one line
	widestPath   = 24
	limitBar     = 20
	shortestList = 4 // rows for lines that scroll, before anything above them is shown
)

func newPicture(out io.Writer, size func() (width, height int), paint painter) *picture {
	p := &picture{
		out: out, size: size, paint: paint, began: time.Now(), stop: make(chan struct{}), done: make(chan struct{}), changed: true,
		guide: guide{title: "notifier dev"},
	}
	go p.run()
	return p
}

func (p *picture) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.out.Write(lines)
	}
	for line := range strings.Lines(string(lines)) {
		p.scrolled = append(p.scrolled, strings.TrimSuffix(line, "\n"))
	}
	p.scrolled = slices.Delete(p.scrolled, 0, max(0, len(p.scrolled)-maxScrolled))
	p.changed = true
	return len(lines), nil
}

func (p *picture) introduce(g guide) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guide, p.changed = g, true
}

func (p *picture) show(s situation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.changed = s, true
}

// close draws the last frame. The next output follows below it.
func (p *picture) close() {
	close(p.stop)
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *picture) run() {
	defer close(p.done)
	ticker := time.NewTicker(frameEvery)
	defer ticker.Stop()
	for {
		p.draw()
		select {
		case <-p.stop:
			p.draw()
			return
		case <-ticker.C:
		}
	}
}

// draw draws a frame if it would differ from the last one.
func (p *picture) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	width, height := p.size()
	seconds := int(time.Since(p.began).Seconds())
	resized := width != p.width || height != p.height
	if !p.changed && !resized && seconds == p.seconds {
		return
	}
	above, commands := "", ""
	if p.height == 0 { // what is on the terminal goes to its scrollback
		above = strings.Repeat("\n", height)
	}
	if resized {
		commands = clearAll
	}
	p.width, p.height, p.seconds, p.changed = width, height, seconds, false
	_, _ = io.WriteString(p.out, above+frameOf(commands, p.rows(width, height-1)))
}

// rows is the picture, in exactly so many rows. On a small terminal lines that scroll and counts come before the limits, and these before
// the guide.
func (p *picture) rows(width, height int) []string {
	var top []string
	room := height - shortestList - 1 // beside the line between both parts
	add := func(rows []string) {
		if len(rows) <= room {
			top = append(top, rows...)
			room -= len(rows)
		}
	}
	title := fmt.Sprintf("%s   running %ds   Ctrl-C ends it with a table", p.paint.bold(p.guide.title), p.seconds)
	add([]string{title})
	counted := append(fold(p.now.outcomes(p.paint), width, max(1, min(foldedRows, room-1))), p.now.slots())
	bars := p.bars()
	if guide := p.guide.rows(width, p.paint); len(guide)+len(counted)+min(len(bars), 1) <= room {
		add(guide)
	}
	add(counted)
	add(bars[:max(0, min(len(bars), room, height/3))])
	if len(top) > 0 {
		top = append(top, p.paint.faint(strings.Repeat("-", width)))
	}
	for i, row := range top {
		top[i] = fold(row, width, 1)[0]
	}
	return append(top, p.list(width, max(0, height-len(top)))...)
}

func (p *picture) bars() []string {
	longest := 0
	for _, limit := range p.now.limits {
		longest = max(longest, min(widestPath, utf8.RuneCountInString(pathOf(limit))))
	}
	var rows []string
	for _, limit := range p.now.limits {
		path, size := fold(pathOf(limit), widestPath, 1)[0], limit.Limit.Capacity()
		used := int64(limitBar)
		if size > 0 {
			used = min(limitBar, limit.Used*limitBar/size)
		}
		row := fmt.Sprintf("%-*s %-8s [%s%s] %d of %d",
			longest, path, limit.Limit, strings.Repeat("#", int(used)), strings.Repeat(".", limitBar-int(used)), limit.Used, size)
		if limit.Denies() {
			row = p.paint.amber(row + ", full, " + nextSlot(limit))
		}
		rows = append(rows, row)
	}
	return rows
}

// list is the newest lines in exactly so many rows.
func (p *picture) list(width, height int) []string {
	var rows []string
	for _, line := range slices.Backward(p.scrolled) {
		folded := fold(line, width, min(foldedRows, max(1, height)))
		if len(rows)+len(folded) > height {
			break
		}
		rows = append(folded, rows...)
	}
	return append(rows, make([]string, max(0, height-len(rows)))...)
}
