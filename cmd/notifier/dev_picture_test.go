//go:build !nodev

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

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
		testkit.EqualSlices(t, fold(test.text, test.width, test.most), test.want, "%q in %d rows of %d", test.text, test.most, test.width)
	}
}

// shortGuide has a command that needs settings.
var shortGuide = guide{
	title: "notifier dev --storm 50", limits: []string{"global 30/30s"},
	places: []place{
		{"NATS", "nats://127.0.0.1:41234", typed{[]string{"NOTIFIER_NATS_URL=nats://127.0.0.1:41234"}, "notifier publish payments text"}},
		{"metrics", "http://127.0.0.1:8080/metrics", typed{line: "curl -s http://127.0.0.1:8080/metrics"}},
	},
}

// A command stands beside its address if there is room, else below it. A shell reads its rows as one line.
func TestGuide(t *testing.T) {
	t.Parallel()
	const address = "limits   global 30/30s\nNATS     nats://127.0.0.1:41234"
	for width, want := range map[int]string{
		200: address + "  NOTIFIER_NATS_URL=nats://127.0.0.1:41234 notifier publish payments text\n" +
			"metrics  http://127.0.0.1:8080/metrics  curl -s http://127.0.0.1:8080/metrics",
		90: address + "\n         NOTIFIER_NATS_URL=nats://127.0.0.1:41234 notifier publish payments text\n" +
			"metrics  http://127.0.0.1:8080/metrics  curl -s http://127.0.0.1:8080/metrics",
		60: address + "\n         NOTIFIER_NATS_URL=nats://127.0.0.1:41234 \\\n         notifier publish payments text\n" +
			"metrics  http://127.0.0.1:8080/metrics\n         curl -s http://127.0.0.1:8080/metrics",
	} {
		testkit.Equal(t, strings.Join(shortGuide.rows(width, painter{}), "\n"), want, "%d columns", width)
	}
}

// A URL with a password is not shown. A URL without one is shown as the assignment of its setting.
func TestServersOfSettings(t *testing.T) {
	t.Parallel()
	secret := namedServer("NOTIFIER_REDIS_URL", config.NewSecret("redis://:secret@localhost:1/0"))
	testkit.Equal(t, secret.address+secret.assignment, "as set in NOTIFIER_REDIS_URL", "a URL with a password")
	open := namedServer("NOTIFIER_REDIS_URL", config.NewSecret("redis://localhost:1?addr=a&addr=b"))
	testkit.Equal(t, open.assignment, "NOTIFIER_REDIS_URL='redis://localhost:1?addr=a&addr=b'", "a URL without")
}

// newTestPicture makes a picture with a guide, limits and lines.
func newTestPicture(t *testing.T, out *bytes.Buffer) *picture {
	t.Helper()
	all, _ := counted(t)
	p := &picture{out: out, guide: shortGuide, now: situationOf(all, globalFull, paymentsFull), began: time.Now()}
	for i := range 300 {
		_, _ = fmt.Fprintf(p, "line %d\n", i)
	}
	return p
}

// The picture fits the terminal and ends with the newest line. Small terminals have no guide.
func TestPictureFits(t *testing.T) {
	t.Parallel()
	p := newTestPicture(t, new(bytes.Buffer))
	for height := range 60 {
		for _, width := range []int{1, 2, 20, 40, 80, 200} {
			rows := p.rows(width, height)
			testkit.Equal(t, len(rows), height, "rows of %d by %d", width, height)
			for _, row := range rows {
				testkit.AtMost(t, utf8.RuneCountInString(row), width, "length of %q in %d by %d", row, width, height)
			}
			if height > 0 && width >= 20 {
				testkit.Equal(t, rows[height-1], "line 299", "the last row of %d by %d", width, height)
			}
		}
	}
	testkit.Contains(t, "23 rows", strings.Join(p.rows(80, 23), "\n"),
		"notifier dev --storm 50   running 0s   Ctrl-C ends it with a table\n", "nats://127.0.0.1:41234", "events 10  sent 3",
		"full: global, next slot in 12s", "payments 6/30s    [####################] 6 of 6, full, next slot in 20s", "\nline 298\n",
	)
	small := strings.Join(p.rows(80, 10), "\n")
	if strings.Contains(small, "nats://") || !strings.Contains(small, "events 10  sent 3") || strings.Contains(small, "\x1b") {
		t.Errorf("got\n%s\nwant totals without a guide and colours", small)
	}
}

// Each frame restores the modes of the terminal. A resized terminal is cleared.
func TestPictureLeavesNothing(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newTestPicture(t, &out)
	var width atomic.Int64
	p.size = func() (int, int) { return int(width.Load()), 24 }
	draw := func(columns int64) string {
		out.Reset()
		width.Store(columns)
		p.draw()
		return out.String()
	}
	for _, columns := range []int64{80, 40} {
		frame := draw(columns)
		if !strings.HasSuffix(frame, clearOfBelow+wrap+showCursor) || strings.Count(frame, nextRow) != 23 || !strings.Contains(frame, clearAll) {
			t.Errorf("%d columns: got %q, want a cleared frame of 24 rows", columns, frame)
		}
		testkit.Contains(t, "frame with a full row", frame, clearOfRight+strings.Repeat("-", int(columns))+nextRow)
	}
	testkit.Equal(t, draw(40), "", "a frame that would be the same")
	_, _ = p.Write([]byte("one more\n"))
	if frame := draw(40); !strings.Contains(frame, "one more") || strings.Contains(frame, clearAll) {
		t.Errorf("after one more line: got %q, want the line in an uncleared frame", frame)
	}
	testkit.AtMost(t, len(p.scrolled), maxScrolled, "lines that are kept")
}

// The last frame has the last line. Later writes follow the frame.
func TestPictureEnds(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newPicture(&out, func() (int, int) { return 80, 24 }, painter{})
	_, _ = p.Write([]byte("the last line\n"))
	p.close()
	_, _ = p.Write([]byte("after it\n"))
	if !strings.Contains(out.String(), "the last line") || !strings.HasSuffix(out.String(), showCursor+"after it\n") {
		t.Errorf("got %q, want the last line, and the later one behind the frame", &out)
	}
}

// publish accepts each event of the storm.
func TestStormKinds(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, len(stormKinds), 20, "categories")
	accepting := &publisher{subject: "notify"}
	accepting.decoder.Prefix = "notify"
	for range 1000 {
		category, body := drawStormEvent()
		accepting.subject = "notify." + category
		if _, err := accepting.decode([]byte(body)); err != nil || strings.Contains(body, "%!") {
			t.Fatalf("%s: got %v, want an event that publish accepts", body, err)
		}
	}
	if !slices.IsSortedFunc(incidents, func(a, b incident) int { return cmp.Compare(a.at, b.at) }) {
		t.Error("got incidents in another order than that of their times")
	}
	testkit.Equal(t, incidentAt(len(incidents)+1), incidentRound+incidents[1].at, "the second incident of the second round")
}
