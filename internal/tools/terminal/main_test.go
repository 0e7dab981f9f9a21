package main

import (
	"encoding/xml"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLastFrame(t *testing.T) {
	t.Parallel()
	printed := "\n\n\x1b[?25l\x1b[?7l\x1b[2J\x1b[Hfirst\x1b[K\r\n\x1b[K\x1b[?7h\x1b[?25h" +
		"\x1b[?25l\x1b[?7l\x1b[H\x1b[1mtitle\x1b[0m  \x1b[K\r\n\x1b[K\r\nrow\x1b[K\r\n\x1b[K\x1b[?7h\x1b[?25h\r\na table\r\n"
	testkit.EqualSlices(t, testkit.Must(lastFrame(printed))(t), []string{"\x1b[1mtitle\x1b[0m", "", "row"}, "rows")
	for _, nothing := range []string{"", "text", showCursor + hideCursor} {
		_, err := lastFrame(nothing)
		testkit.Fails(t, nothing, err, nil)
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, spans("a \x1b[33m<full>\x1b[0m & b"), `a <tspan style="fill:#f2cc60">&lt;full&gt;</tspan> &amp; b`, "row")
	var picture struct {
		Texts []string `xml:"g>text"`
	}
	testkit.NoError(t, xml.Unmarshal([]byte(draw([]string{"one", "", "<two>"})), &picture))
	testkit.EqualSlices(t, picture.Texts, []string{"one", "<two>"}, "texts of the picture")
}
