package screen

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestBarText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		want        string
	}{
		{0, 10, "evaluating  [..............................]   0%"},
		{5, 10, "evaluating  [###############...............]  50%"},
		{999, 1000, "evaluating  [#############################.]  99%"},
		{11, 10, "evaluating  [##############################] 100%"}, // a file that grows
		{4711, 0, "evaluating  4711"},
	} {
		testkit.Equal(t, barText("evaluating", test.done, test.total), test.want, "%d of %d", test.done, test.total)
	}
}

// The bar is redrawn at most every barEvery. clear removes it. Progress of a finished stage draws nothing.
func TestProgressBar(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		bar := &Progress{out: &out}
		bar.Clear()
		reading := bar.Stage("reading")
		for done := range int64(12) {
			reading(done, 12)
			time.Sleep(barEvery / 10) // of the test's own clock
		}
		bar.Clear()
		bar.Clear()
		reading(12, 12)
		bar.Stage("evaluating")(1, 0)
		bar.Clear()
		want := "\rreading  [..............................]   0%\x1b[K\rreading  [#########################.....]  83%\x1b[K\r\x1b[K" +
			"\revaluating  1\x1b[K\r\x1b[K"
		testkit.Equal(t, out.String(), want, "it prints")
	})
}

func TestNoProgressBar(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	bar := NewProgress(&out)
	bar.Stage("reading")(1, 2)
	bar.Clear()
	testkit.Equal(t, out.String(), "", "without a terminal it prints")
}
