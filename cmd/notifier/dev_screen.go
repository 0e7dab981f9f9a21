//go:build !nodev

package main

import (
	"io"
	"strings"
	"sync"
)

// screen is where dev shows what happens: a [picture] on a terminal, plain [lines] elsewhere. Its methods may be called at once.
type screen interface {
	io.Writer          // of whole lines: notifications and the log
	introduce(g guide) // what there is to see and to do
	show(s situation)
	close() // what is written afterwards goes where the screen was
}

func newScreen(out io.Writer, paint painter) screen {
	if file, found := drawableTerminal(out); found {
		return newPicture(file, screenSize(file), paint)
	}
	return &lines{out: out, paint: paint}
}

// guideWidth is how wide a guide is where that is not known.
const guideWidth = 100

// lines shows everything in the order in which it happens.
type lines struct {
	paint painter

	mu    sync.Mutex
	out   io.Writer
	shown *situation
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(line)
}

func (l *lines) introduce(g guide) {
	rows := append([]string{l.paint.bold(g.title)}, g.rows(guideWidth, l.paint)...)
	rows = append(rows, l.paint.faint("stop     ")+"Ctrl-C, which prints a table", "")
	_, _ = io.WriteString(l, strings.Join(rows, "\n")+"\n")
}

// show prints a line of totals unless nothing has changed since the last one.
func (l *lines) show(s situation) {
	if l.shown != nil && s.sameAs(*l.shown) {
		return
	}
	l.shown = &s
	_, _ = io.WriteString(l, l.paint.bold("totals")+"  "+s.outcomes(l.paint)+"  "+s.slots()+"\n")
}

func (l *lines) close() {}

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
