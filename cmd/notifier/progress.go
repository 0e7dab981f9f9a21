package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/simulate"
)

// progressBar shows on one line of a terminal how far a piece of work is. Elsewhere it shows nothing. Its methods may
// be called by any number of goroutines.
type progressBar struct {
	out io.Writer // nil shows nothing

	mu    sync.Mutex
	shown time.Time // when the line was last drawn; zero if it is not there
	ended int       // stages that are over
}

// How a bar looks, and how often it is drawn at most.
const (
	barWidth     = 30
	barEvery     = 100 * time.Millisecond
	startOfLine  = "\r"
	clearOfRight = "\x1b[K"
)

func newProgressBar(out io.Writer) *progressBar {
	if _, found := drawableTerminal(out); !found {
		out = nil
	}
	return &progressBar{out: out}
}

// stage begins a piece of work. The stage ends when the line is cleared. Later calls of its Progress show nothing.
func (b *progressBar) stage(name string) simulate.Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	stage := b.ended
	return func(done, total int64) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.out == nil || b.ended != stage || time.Since(b.shown) < barEvery {
			return
		}
		b.shown = time.Now()
		_, _ = io.WriteString(b.out, startOfLine+barText(name, done, total)+clearOfRight)
	}
}

// clear ends the stage and removes the line.
func (b *progressBar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended++
	if b.out != nil && !b.shown.IsZero() {
		b.shown = time.Time{}
		_, _ = io.WriteString(b.out, startOfLine+clearOfRight)
	}
}

// barText is the line: a bar and a share, or the bare number where the total is not known.
func barText(name string, done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%s  %d", name, done)
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * barWidth)
	return fmt.Sprintf("%s  [%s%s] %3d%%", name, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), int(share*100))
}
