// Command settings writes the table of settings into the README: `make docs`.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// Between these lines of the README stands the table.
const (
	begin = "<!-- settings: written by make docs -->\n"
	end   = "<!-- end of settings -->\n"
)

func main() {
	if err := rewrite("README.md"); err != nil {
		fmt.Fprintf(os.Stderr, "settings: %v\n", err)
		os.Exit(1)
	}
}

func rewrite(file string) error {
	text, err := os.ReadFile(file) //nolint:gosec // the caller names the file
	if err != nil {
		return err
	}
	written, err := withTable(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(written), 0o644) //nolint:gosec // a README is for all to read
}

// withTable is the text with the table as it should be.
func withTable(text string) (string, error) {
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return "", fmt.Errorf("no place for the table: expected the lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + config.Markdown() + end + after, nil
}
