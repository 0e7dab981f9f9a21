package screen

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Pane shows rows that change, and below them lines that scroll. On a terminal it redraws a frame; elsewhere it prints the lines alone. Its
// methods may run at once.
//
// Each frame is one write, which leaves the cursor visible below the rows and lines wrapped. What was on the terminal before moves to its
// scrollback.
type Pane struct {
	Colours
	out  io.Writer
	size func() (width, height int) // of the terminal; nil: print lines
	stop chan struct{}
	done sync.WaitGroup

	mu            sync.Mutex
	top           func(width, height int) []string
	scrolled      []string // the newest last
	drawn         string   // rows and lines of the last frame
	width, height int      // of the terminal at the last frame; 0 before the first
	closed        bool
}

const (
	maxScrolled  = 200 // lines; more than a terminal has rows
	foldedRows   = 3   // of one line
	shortestList = 4   // rows for lines, before anything is shown above them
)

// NewPane returns a Pane on an output. It shows no rows above the lines until Show is called.
func NewPane(out io.Writer) *Pane {
	p := &Pane{Colours: Colours{IsTerminal(out) && os.Getenv("NO_COLOR") == ""}, out: out, stop: make(chan struct{})}
	if file, found := drawable(out); found {
		p.size = func() (width, height int) { return sizeOf(file) }
		p.done.Go(p.redraw)
	}
	return p
}

// IsDrawn reports whether the pane redraws a frame.
func (p *Pane) IsDrawn() bool { return p.size != nil }

// Show shows what top returns for a width and a number of rows, in the next frames.
func (p *Pane) Show(top func(width, height int) []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.top = top
}

// Write takes whole lines.
func (p *Pane) Write(lines []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.IsDrawn() || p.closed {
		return p.out.Write(lines)
	}
	for line := range strings.Lines(string(lines)) {
		p.scrolled = append(p.scrolled, strings.TrimSuffix(line, "\n"))
	}
	p.scrolled = slices.Delete(p.scrolled, 0, max(0, len(p.scrolled)-maxScrolled))
	return len(lines), nil
}

// Line writes a formatted line.
func (p *Pane) Line(format string, values ...any) { _, _ = fmt.Fprintf(p, format+"\n", values...) }

// Close draws the last frame. Later output follows below it.
func (p *Pane) Close() {
	close(p.stop)
	p.done.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *Pane) redraw() {
	ticker := time.NewTicker(100 * time.Millisecond)
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

// draw draws a frame if it differs from the last one. There is no frame before there are rows.
func (p *Pane) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	width, height := p.size()
	rows := p.rows(width, max(1, height-1))
	contents, resized := strings.Join(rows, "\n"), width != p.width || height != p.height
	if contents == p.drawn && (!resized || contents == "") {
		return
	}
	var frame strings.Builder
	if p.height == 0 {
		frame.WriteString(strings.Repeat("\n", height))
	}
	frame.WriteString(hideCursor + stopWrapping)
	if resized {
		frame.WriteString(clearAll)
	}
	frame.WriteString(toTheTop)
	for _, row := range rows {
		frame.WriteString(clearOfRight + row + nextRow) // clearing behind a row of the full width would clear its last character
	}
	frame.WriteString(clearOfBelow + wrap + showCursor)
	p.drawn, p.width, p.height = contents, width, height
	_, _ = io.WriteString(p.out, frame.String())
}

// rows returns a frame of at most height rows. Rows at the top have all of it as long as there are no lines.
func (p *Pane) rows(width, height int) []string {
	var top []string
	if room := height - shortestList - 1; room > 0 && p.top != nil && len(p.scrolled) > 0 {
		top = append(p.top(width, room), p.Faint(strings.Repeat("-", width)))
	} else if p.top != nil && len(p.scrolled) == 0 {
		top = p.top(width, height)
	}
	for i, row := range top {
		top[i] = Fold(row, width, 1)[0]
	}
	var list []string
	free := max(0, height-len(top))
	for _, line := range slices.Backward(p.scrolled) {
		folded := Fold(line, width, min(foldedRows, max(1, free)))
		if len(list)+len(folded) > free {
			break
		}
		list = append(folded, list...)
	}
	return append(top, list...)
}

// Colours colours texts, if it is on.
type Colours struct{ On bool }

// Bold returns a bold text.
func (c Colours) Bold(text string) string { return c.paint("1", text) }

// Faint returns a faint text.
func (c Colours) Faint(text string) string { return c.paint("2", text) }

func (c Colours) paint(code, text string) string {
	if !c.On {
		return text
	}
	return "\x1b[" + code + "m" + text + endOfColour
}
