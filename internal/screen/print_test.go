package screen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Only a yes confirms. A question ends with the command's context.
func TestConfirm(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "Yes\r\n": true, "\tyes": true, "": false, "\n": false, "no\n": false, "yesterday\n": false} {
		var out bytes.Buffer
		if agreed, err := Confirm(t.Context(), strings.NewReader(answer), &out, "Drop?"); agreed != want || err != nil || out.String() != "Drop? [y/N] " {
			t.Errorf("%q: got %t, %v after %q, want %t", answer, agreed, err, &out, want)
		}
	}
	in, person := io.Pipe()
	defer func() { _ = person.Close() }()
	interrupted := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupted)
	agreed, err := Confirm(ctx, in, io.Discard, "Drop?")
	testkit.Check(t, !agreed && errors.Is(err, interrupted), "an interrupted question: got %t, %v, want false and %v", agreed, err, interrupted)
}

// JSON escapes control characters.
func TestHarmless(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	text := "a\x1b\u009b\u202eä"
	if err := PrintJSON(&out, text); err != nil || out.String() != `"a\u001b\u009b\u202eä"`+"\n" {
		t.Errorf("got %s, %v, want escapes", &out, err)
	}
	var back string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back != text {
		t.Errorf("got %q, %v, want %q", back, err, text)
	}
}

func TestTimesHaveAZone(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 16, 40, 3, 0, time.UTC)
	for want, zone := range map[string]*time.Location{
		"2026-11-22 16:40:03 UTC":    time.UTC,
		"2026-11-22 17:40:03 +01:00": time.FixedZone("CET", 3600),
		"2026-11-22 13:10:03 -03:30": time.FixedZone("NST", -12600),
	} {
		testkit.Equal(t, Zoned(at.In(zone)), want, "in %s", zone)
	}
}
