package screen

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Progress shows on one line of a terminal how far a task is. Behind a pipe it shows nothing.
type Progress struct {
	out io.Writer // nil shows nothing

	mu    sync.Mutex
	shown time.Time // when the line was last drawn; zero if no line is shown
	ended int       // finished stages
}

// The look of the bar, and the shortest time between two drawings.
const (
	barWidth    = 30
	barEvery    = 100 * time.Millisecond
	startOfLine = "\r"
)

// NewProgress returns a Progress on an output.
func NewProgress(out io.Writer) *Progress {
	if _, found := drawable(out); !found {
		out = nil
	}
	return &Progress{out: out}
}

// Stage starts a stage, and returns the function that draws its progress. The function does nothing after [Progress.Clear].
func (b *Progress) Stage(name string) func(done, total int64) {
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

// Clear ends the stage and removes the line.
func (b *Progress) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended++
	if b.out != nil && !b.shown.IsZero() {
		b.shown = time.Time{}
		_, _ = io.WriteString(b.out, startOfLine+clearOfRight)
	}
}

// barText returns a bar and a percentage, or the number alone if the total is unknown.
func barText(name string, done, total int64) string {
	if total <= 0 {
		return fmt.Sprintf("%s  %d", name, done)
	}
	share := min(float64(done)/float64(total), 1)
	full := int(share * barWidth)
	return fmt.Sprintf("%s  [%s%s] %3d%%", name, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), int(share*100))
}
