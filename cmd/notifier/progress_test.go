package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestBarText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		done, total int64
		want        string
	}{
		{0, 10, "judging  [..............................]   0%"},
		{5, 10, "judging  [###############...............]  50%"},
		{999, 1000, "judging  [#############################.]  99%"},
		{10, 10, "judging  [##############################] 100%"},
		{11, 10, "judging  [##############################] 100%"}, // a file that grows
		{4711, 0, "judging  4711"},
	} {
		testkit.Equal(t, barText("judging", test.done, test.total), test.want, "%d of %d", test.done, test.total)
	}
}

// A bar is drawn at most every now and then, it is gone in the end, and late news of a stage that is over show no more.
func TestProgressBar(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Now()
	bar := &progressBar{out: &out, now: func() time.Time { return now }}
	bar.clear()
	reading := bar.stage("reading")
	for done := range int64(12) {
		reading(done, 12)
		now = now.Add(barEvery / 10)
	}
	bar.clear()
	bar.clear()
	reading(12, 12)
	judging := bar.stage("judging")
	judging(1, 0)
	bar.clear()
	want := "\rreading  [..............................]   0%\x1b[K\rreading  [#########################.....]  83%\x1b[K\r\x1b[K" +
		"\rjudging  1\x1b[K\r\x1b[K"
	testkit.Equal(t, out.String(), want, "it prints")
}

func TestNoProgressBar(t *testing.T) {
	t.Parallel()
	file := testkit.Must(os.Create(t.TempDir() + "/file"))(t)
	defer func() { _ = file.Close() }()
	var buffer bytes.Buffer
	for _, out := range []io.Writer{&buffer, file} {
		bar := newProgressBar(out)
		bar.stage("reading")(1, 2)
		bar.clear()
		if info, err := file.Stat(); buffer.Len() > 0 || err != nil || info.Size() > 0 {
			t.Errorf("a %T is taken for a terminal: %q, %v", out, &buffer, err)
		}
	}
}
