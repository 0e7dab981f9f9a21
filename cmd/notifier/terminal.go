package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// usageOf is a fault of the command line.
func usageOf(cmd *cobra.Command, fault string) error {
	return &usageError{fmt.Errorf("%s\nSee '%s --help'", fault, cmd.CommandPath())}
}

// allOf is what all the checks find.
func allOf(checks ...cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		for _, check := range checks {
			if err := check(cmd, arguments); err != nil {
				return err
			}
		}
		return nil
	}
}

// hasTerminal tells whether a person is at the other end of an input or output.
func hasTerminal(stream any) bool {
	file, isFile := stream.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// somebodyToAsk fails if a command has to ask, and nobody is there.
func somebodyToAsk(cmd *cobra.Command, agreed bool) error {
	if agreed || hasTerminal(cmd.InOrStdin()) {
		return nil
	}
	return usageOf(cmd, "there is nobody to ask: use --yes")
}

// confirm asks a person. Only a yes is one.
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

// printTable prints rows in columns.
func printTable(out io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	return table.Flush()
}

// writeJSON writes a value so that it shows as it is on a terminal too: what would command one is escaped.
func writeJSON(out io.Writer, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	var text strings.Builder
	for _, r := range string(encoded) {
		if commands(r) {
			_, _ = fmt.Fprintf(&text, `\u%04x`, r)
		} else {
			text.WriteRune(r)
		}
	}
	_, err = fmt.Fprintln(out, text.String())
	return err
}

// commands tells whether a terminal may take a character for something to do rather than to show.
func commands(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }
