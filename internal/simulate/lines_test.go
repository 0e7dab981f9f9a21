package simulate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestUnusableLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"category": "a"}`:                                              "no time",
		`{"time": "", "category": "a"}`:                                  "no time",
		`{"time": 1772323200, "category": "a"}`:                          "time must be a string",
		`{"time": "yesterday", "category": "a"}`:                         "time must be a time as in RFC 3339",
		`{"time": "1969-12-31T23:59:59Z", "category": "a"}`:              "is not between 1970 and 2262",
		`{"time": "2300-01-01T00:00:00Z", "category": "a"}`:              "is not between 1970 and 2262",
		`{"time": "2026-03-01T00:00:00Z", "category": "pay ments"}`:      "bad_category",
		`{"time": "2026-03-01T00:00:00Z", "category": "a", "cost": 101}`: "cost must be a whole number from 1 to 100",
		`{"time": "2026-03-01T00:00:00Z", "category": "a"`:               "bad_json",
		`["2026-03-01T00:00:00Z", "a"]`:                                  "not a JSON object",
		`plain text`:                                                     "not a JSON object",
		"{\"title\": \"\xff\"}":                                          "bad_utf8",
		`{"title": "` + strings.Repeat("x", 4000) + `"}`:                 "too_large",
	} {
		h := readLines(t, lineAt(0, "a", "")+"\n"+line+"\n"+lineAt(0, "b", ""))
		if len(h.events) != 2 || h.Invalid != 1 || len(h.Problems) != 1 || h.Problems[0].Number != 3 || !strings.Contains(h.Problems[0].Err.Error(), want) {
			t.Errorf("%s: got %d events, %d invalid lines, %v; want 2, 1, line 3 with %q", line, len(h.events), h.Invalid, h.Problems, want)
		}
	}
}

func TestUsableLines(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Event{
		`{"time": "2026-03-01T00:00:00Z", "category": "a"}`:                                        {Identity: "a line:1", Derived: true, Cost: 1},
		"\ufeff \t{\"time\": \"2026-03-01T00:00:00Z\", \"category\": \"A\"}\r":                     {Identity: "a line:1", Derived: true, Cost: 1},
		`{"time": "2026-03-01T01:00:00.0000015+01:00", "category": "a"}`:                           {At: midnight.Add(time.Microsecond), Identity: "a line:1", Derived: true, Cost: 1},
		`{"time": "2026-03-01t00:00:00z", "category": "a", "id": "x", "cost": 100, "unknown": []}`: {Identity: "a x", Cost: 100},
		`{"time": "2026-03-01T00:00:00Z", "category": "a", "title": "t", "text": "u", "id": ""}`:   {Identity: "a line:1", Derived: true, Cost: 1},
		`{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": "2026-03-01T00:00:00Z", "data": {"category": "a", "title": "t"}}`: {
			Identity: "a s/1", Cost: 1,
		},
		`{"time": "2026-03-01T00:00:00Z", "category": "a", "id": "x", "status": "firing", "key": "k"}`:   {Identity: "a x", Cost: 1, Key: "k", Fires: true},
		`{"time": "2026-03-01T00:00:00Z", "category": "a", "id": "x", "status": "resolved", "key": "k"}`: {Identity: "a x", Cost: 1, Key: "k", Resolves: true},
		`{"time": "2026-03-01T00:00:00Z", "category": "a", "status": "firing", "alerts": ["of this", "and that"]}`: {
			Identity: "a line:1", Derived: true, Cost: 1,
		},
		`{"time": "2026-03-01T00:00:00Z"}`: {Identity: "default line:1", Derived: true, Category: "default", Cost: 1},
	} {
		want.Number, want.Category = 1, cmp.Or(want.Category, "a")
		if want.Key != "" {
			want.Severity = event.SeverityInfo.Rank()
		}
		if want.At.IsZero() {
			want.At = midnight
		}
		h := readLines(t, line)
		testkit.EqualDeeply(t, h.events, []Event{want}, "%s", line)
		testkit.Equal(t, h.Invalid, 0, "%s: invalid", line)
	}
}

// TestGroupWithoutCategory reads a group beside whose alerts the category is absent. Each alert keeps its own.
func TestGroupWithoutCategory(t *testing.T) {
	t.Parallel()
	for _, category := range []string{``, `"category": "", `, `"category": null, `} {
		h := readLines(t, `{"time": "2026-03-01T00:00:00Z", `+category+`"alerts": [{"labels": {"alertname": "x", "category": "a"}}]}`)
		testkit.Check(t, len(h.events) == 1 && h.events[0].Category == "a" && h.events[0].At.Equal(midnight),
			"with %q: events %+v, want one of a at midnight", category, h.events)
	}
}

// TestManyProblems counts all problems and keeps ten.
func TestManyProblems(t *testing.T) {
	t.Parallel()
	h := readLines(t, strings.Repeat("broken\n", 12)+lineAt(0, "a", ""))
	testkit.Check(t, h.Invalid == 12 && len(h.Problems) == 10 && h.Problems[9].Number == 10 && len(h.events) == 1,
		"got %d events, %d invalid lines, %v; want 1, 12, ten problems", len(h.events), h.Invalid, h.Problems)
}

// failing is a reader and a writer with an error.
type failing struct{ error }

func (f failing) Read([]byte) (int, error)  { return 0, f.error }
func (f failing) Write([]byte) (int, error) { return 0, f.error }

func TestReadLinesEnds(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	_, err := ReadLines(t.Context(), failing{broken}, decoder, unwatched)
	testkit.Fails(t, "an input that fails", err, broken)
	tooLong := bytes.NewReader(bytes.Repeat([]byte("x"), event.MaxLine+1))
	_, err = ReadLines(t.Context(), tooLong, decoder, unwatched)
	testkit.Fails(t, "a line without end", err, bufio.ErrTooLong)
	ctx, cancel := context.WithCancelCause(t.Context())
	text, read := strings.Repeat("\n", 3*progressEvery), int64(0)
	_, err = ReadLines(ctx, strings.NewReader(text), decoder, func(done, total int64) {
		read = done
		cancel(broken)
	})
	testkit.Fails(t, "end of the context", err, broken)
	testkit.Equal(t, read, progressEvery, "bytes read")
}

// FuzzReadLines reads any input. Each line that is not blank is invalid or gives events. Each event ends in one way.
func FuzzReadLines(f *testing.F) {
	f.Add([]byte(lineAt(0, "a", "") + "\n" + lineAt(1, "a.b", `, "cost": 2, "id": "x"`) + lineAt(1, "b", `, "id": "x"`)))
	f.Add([]byte(groupAt(0, "a", alert("resolved", "x"), "{}", alert("firing", "x")) + lineAt(1, "a", resolved("x")) + lineAt(2, "a", firing("x"))))
	f.Add([]byte("{}\n{\"time\": \"9999-12-31T23:59:59Z\"}\nbroken"))
	f.Add([]byte("\ufeff{\"time\":\"1970-01-01T00:00:00Z\",\"category\":\"Default\"}\r\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := testkit.Must(ReadLines(t.Context(), bytes.NewReader(data), decoder, unwatched))(t)
		if lines := bytes.Count(data, []byte("\n")) + 1; h.Read > lines || h.Invalid > h.Read || len(h.events) < h.Read-h.Invalid {
			t.Errorf("got %d events, %d invalid lines and %d read lines, want at most %d lines", len(h.events), h.Invalid, h.Read, lines)
		}
		report := testkit.Must(h.Replay(t.Context(), newLimiter(t, "3/1m", "2/1m", ""), unwatched))(t)
		if total := report.Total; total.Seen != len(h.events) || total.Seen != total.Sent+total.Drops()+total.Duplicate || total.LongestSilence < 0 {
			t.Errorf("report: got %s, want one end for each of %d events", fmt.Sprintf("%+v", total), len(h.events))
		}
	})
}
