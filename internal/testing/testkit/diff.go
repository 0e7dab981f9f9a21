package testkit

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/kylelemons/godebug/diff"
	"github.com/kylelemons/godebug/pretty"
)

const (
	maxOneLine = 200 // bytes of a difference that is printed on one line
	around     = 3   // equal lines before and after a change
)

func differ(t Test, got, want any, format string, arguments ...any) {
	t.Helper()
	what := fmt.Sprintf(format, arguments...)
	line := fmt.Sprintf("got %s, want %s", show(got), show(want))
	if len(line) > maxOneLine {
		if changed := changes(lines(want), lines(got)); changed != "" {
			t.Errorf("%s differ (- want, + got):\n%s", what, changed)
			return
		}
	}
	t.Errorf("%s: %s", what, line)
}

// show quotes texts, because spaces and line ends would be invisible otherwise.
func show(value any) string {
	switch reflect.ValueOf(value).Kind() {
	case reflect.String:
		return fmt.Sprintf("%q", value)
	case reflect.Slice, reflect.Map:
		if reflect.TypeOf(value).Elem().Kind() == reflect.String {
			return fmt.Sprintf("%q", value)
		}
	}
	return fmt.Sprintf("%+v", value)
}

// lines returns a value with each field and each element on its own line.
func lines(value any) string {
	if text := reflect.ValueOf(value); text.Kind() == reflect.String {
		return text.String()
	}
	config := pretty.Config{
		IncludeUnexported: true, PrintStringers: true, TrackCycles: true,
		Formatter: map[reflect.Type]any{reflect.TypeFor[*time.Time](): nil}, // follows the pointer: String of a nil one panics
	}
	return config.Sprint(value)
}

// changes returns the lines that differ, with a few equal lines around them. It is empty if the texts are equal.
func changes(want, got string) string {
	all := strings.Split(diff.Diff(want, got), "\n")
	near := make([]bool, len(all))
	for i, line := range all {
		if strings.HasPrefix(line, " ") || line == "" {
			continue
		}
		for j := max(0, i-around); j <= min(i+around, len(all)-1); j++ {
			near[j] = true
		}
	}
	var text strings.Builder
	skipped, found := 0, false
	skip := func() {
		if skipped > 0 {
			fmt.Fprintf(&text, "  … %d equal lines\n", skipped)
		}
		skipped = 0
	}
	for i, line := range all {
		if !near[i] {
			skipped++
			continue
		}
		skip()
		found = true
		text.WriteString(line + "\n")
	}
	if !found {
		return ""
	}
	skip()
	return text.String()
}
