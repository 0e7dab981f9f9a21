// Command tables writes the tables of settings and of metrics into docs/settings.md and docs/metrics.md: `make docs`.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// written are the pages with a table that is written.
var written = []struct {
	page  string
	table func() (string, error)
}{
	{"docs/settings.md", settings},
	{"docs/metrics.md", metrics},
}

// The table of a page is between these lines.
const (
	begin = "<!-- written by make docs -->\n"
	end   = "<!-- end of what make docs writes -->\n"
)

func main() {
	if err := rewrite("."); err != nil {
		fmt.Fprintf(os.Stderr, "tables: %v\n", err)
		os.Exit(1)
	}
}

// rewrite writes the tables of all pages of a repository.
func rewrite(root string) error {
	for _, w := range written {
		file := filepath.Join(root, w.page)
		text, err := os.ReadFile(file) //nolint:gosec // the table names the file
		if err != nil {
			return err
		}
		table, err := w.table()
		if err != nil {
			return fmt.Errorf("%s: %w", w.page, err)
		}
		page, err := withTable(string(text), table)
		if err != nil {
			return fmt.Errorf("%s: %w", w.page, err)
		}
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil { //nolint:gosec // pages are for all to read
			return err
		}
	}
	return nil
}

// withTable is the text of a page with another table.
func withTable(text, table string) (string, error) {
	before, rest, begins := strings.Cut(text, begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		return "", fmt.Errorf("the lines %q and %q have to enclose the table", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + table + end + after, nil
}
