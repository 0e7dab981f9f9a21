package screen

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"golang.org/x/term"
)

// IsTerminal reports whether an input or output is a terminal.
func IsTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// Width returns the columns of the terminal behind an output; 0: it is none.
func Width(out io.Writer) int {
	file, isFile := out.(*os.File)
	if !isFile || !IsTerminal(file) {
		return 0
	}
	width, _ := sizeOf(file)
	return width
}

// Confirm asks a question, and returns whether the answer is yes.
func Confirm(ctx context.Context, in io.Reader, out io.Writer, question string) (bool, error) {
	_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be interrupted
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case line := <-answer:
		return line == "y" || line == "yes", nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Table returns rows as aligned columns.
func Table(rows [][]string) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush() // a strings.Builder returns no error
	return text.String()
}

// PrintTable prints rows as aligned columns.
func PrintTable(out io.Writer, rows [][]string) error {
	_, err := io.WriteString(out, Table(rows))
	return err
}

// PrintJSON prints a value as one line of JSON, and escapes control characters.
func PrintJSON(out io.Writer, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	var text strings.Builder
	for _, r := range string(encoded) {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			_, _ = fmt.Fprintf(&text, `\u%04x`, r)
		} else {
			text.WriteRune(r)
		}
	}
	_, err = fmt.Fprintln(out, text.String())
	return err
}

// Numbered returns a number with its noun.
func Numbered[N int | int64](n N, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}

// Local returns a time on the clock of this host, with its zone.
func Local(t time.Time) string { return Zoned(t.Local()) }

// Zoned returns a time with its zone.
func Zoned(t time.Time) string {
	if _, offset := t.Zone(); offset == 0 {
		return t.Format(time.DateTime) + " UTC"
	}
	return t.Format(time.DateTime + " -07:00")
}

// Duration returns the two largest units of a duration, such as 2h5m.
func Duration(d time.Duration) string {
	switch d = max(d, 0); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d >= time.Second:
		return d.Truncate(time.Second).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// Age returns the largest unit of a duration: 5s, 3m, 47h, 4d.
func Age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// Bytes returns a number of bytes, and their bound if it is above 0: "3 MiB of 1 GiB".
func Bytes(n, bound int64) string {
	text := inUnits(n)
	if bound > 0 {
		text += " of " + inUnits(bound)
	}
	return text
}

var units = []string{"B", "KiB", "MiB", "GiB", "TiB"} // of [Bytes]

// Words returns the parts of a text between which a line may end. A number of bytes stays with its unit.
func Words(text string) (words []string) {
	for word := range strings.FieldsSeq(text) {
		if last := len(words) - 1; last >= 0 && slices.Contains(units, strings.TrimRight(word, ",;")) {
			words[last] += " " + word
		} else {
			words = append(words, word)
		}
	}
	return words
}

func inUnits(bytes int64) string {
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	return fmt.Sprintf("%.4g %s", value, units[unit])
}
