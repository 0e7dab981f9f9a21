package screen

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTestPane returns a pane with rows and lines that is not redrawn by itself.
func newTestPane(out *bytes.Buffer, size func() (int, int)) *Pane {
	p := &Pane{out: out, size: size, stop: make(chan struct{})}
	p.Show(func(_, height int) []string {
		return []string{"title", fmt.Sprintf("%d rows", height), strings.Repeat("wide", 100)}[:min(3, height)]
	})
	for i := range 300 {
		p.Line("line %d", i)
	}
	return p
}

// A frame fits the terminal and ends with the newest line. Small terminals have lines alone. Without lines, rows have the whole terminal.
func TestPaneFits(t *testing.T) {
	t.Parallel()
	p := newTestPane(new(bytes.Buffer), func() (int, int) { return 80, 24 })
	for height := range 60 {
		for _, width := range []int{1, 2, 20, 40, 80, 200} {
			rows := p.rows(width, height)
			testkit.AtMost(t, len(rows), height, "rows of %d by %d", width, height)
			for _, row := range rows {
				testkit.AtMost(t, utf8.RuneCountInString(row), width, "length of %q in %d by %d", row, width, height)
			}
			if height > 0 && width >= 20 {
				testkit.Equal(t, rows[height-1], "line 299", "the last row of %d by %d", width, height)
			}
		}
	}
	testkit.Contains(t, "23 rows", strings.Join(p.rows(80, 23), "\n"), "title\n18 rows\nwide", strings.Repeat("-", 80)+"\n", "\nline 298\n")
	p.scrolled = nil
	testkit.EqualSlices(t, p.rows(7, 23), []string{"title", "23 rows", "widewi…"}, "rows without lines")
}

// Each frame restores the modes of the terminal. A resized terminal is cleared. An equal frame is not drawn.
func TestPaneLeavesNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var width atomic.Int64
	p := newTestPane(&out, func() (int, int) { return int(width.Load()), 24 })
	draw := func(columns int64) string {
		out.Reset()
		width.Store(columns)
		p.draw()
		return out.String()
	}
	for _, columns := range []int64{80, 40} {
		frame := draw(columns)
		testkit.Check(t, strings.HasSuffix(frame, clearOfBelow+wrap+showCursor) && strings.Count(frame, nextRow) == 23 && strings.Contains(frame, clearAll),
			"%d columns: got %q, want a cleared frame of 24 rows", columns, frame)
		testkit.Contains(t, "frame with a full row", frame, clearOfRight+strings.Repeat("-", int(columns))+nextRow)
	}
	testkit.Equal(t, draw(40), "", "an equal frame")
	p.Line("one more")
	if frame := draw(40); !strings.Contains(frame, "one more") || strings.Contains(frame, clearAll) {
		t.Errorf("after one more line: got %q, want the line in an uncleared frame", frame)
	}
	testkit.AtMost(t, len(p.scrolled), maxScrolled, "lines that are kept")
}

// The last frame has the last line. Later writes follow the frame.
func TestPaneEnds(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newTestPane(&out, func() (int, int) { return 80, 24 })
	p.done.Go(p.redraw)
	p.Line("the last line")
	p.Close()
	p.Line("after it")
	testkit.Check(t, strings.Contains(out.String(), "the last line") && strings.HasSuffix(out.String(), showCursor+"after it\n"),
		"got %q, want the last line, and the later one behind the frame", &out)
}

// Without a terminal, lines are printed whole and in order, and rows are not.
func TestPaneWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewPane(&out)
	p.Show(func(int, int) []string { return []string{"rows"} })
	testkit.AtOnce(10, func(int) {
		for range 100 {
			_, _ = io.WriteString(p, "a whole line\n")
		}
	})
	p.Close()
	testkit.Equal(t, out.String(), strings.Repeat("a whole line\n", 1000), "the output")
	width, height := sizeOf(os.Stdin)
	testkit.Equal(t, width > 0 && height > 0, true, "a file has the usual size of a terminal")
}

func TestFold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text        string
		width, most int
		want        []string
	}{
		{"", 10, 3, []string{""}},
		{"0123456789", 10, 1, []string{"0123456789"}},
		{"0123456789a", 10, 1, []string{"012345678…"}},
		{"0123456789a", 10, 2, []string{"0123456789", "a"}},
		{"äöüß", 2, 3, []string{"äö", "üß"}},
		{"\x1b[31mred\x1b[0m", 3, 1, []string{"\x1b[31mred\x1b[0m"}},
		{"\x1b[31mreddest\x1b[0m", 3, 2, []string{"\x1b[31mred\x1b[0m", "de…"}},
		{"\x1b[31mreddest", 3, 1, []string{"\x1b[31mre…\x1b[0m"}},
	} {
		testkit.EqualSlices(t, Fold(test.text, test.width, test.most), test.want, "%q in %d rows of %d", test.text, test.most, test.width)
	}
}
