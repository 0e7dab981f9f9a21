package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// hasTerminal tells whether a person is at the other end of an input or output.
func hasTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// somebodyToAsk fails if a command has to ask and nobody is there. It need not ask if one of the flags is set.
func somebodyToAsk(agreed ...*bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, _ []string) error {
		isAgreed := slices.ContainsFunc(agreed, func(set *bool) bool { return *set })
		if !isAgreed && !hasTerminal(cmd.InOrStdin()) {
			return errors.New("standard input is no terminal: confirm with --yes")
		}
		return nil
	}
}

// confirm asks a person, and returns whether the answer is yes.
func confirm(ctx context.Context, in io.Reader, out io.Writer, question string) (bool, error) {
	_, _ = fmt.Fprintf(out, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() { // a terminal at which nobody types cannot be interrupted
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

// tableOf is a text of rows in columns.
func tableOf(rows [][]string) string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	_ = table.Flush() // a text takes everything
	return text.String()
}

func printTable(out io.Writer, rows [][]string) error {
	_, err := io.WriteString(out, tableOf(rows))
	return err
}

// writeJSON writes a value as one line, and escapes what a terminal may take for a command.
func writeJSON(out io.Writer, value any) error {
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

// numbered is a number with its noun.
func numbered(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, several)
}
