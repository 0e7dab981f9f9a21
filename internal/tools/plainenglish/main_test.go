package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestForms has a sentence for each form, and a better one.
func TestForms(t *testing.T) {
	examples := [][2]string{
		{"The limits come before those of the category.", "The limits come before the category limits."},
		{"It works as before.", "It works again."},
		{"A limit of which one slot is free.", "A limit with a free slot."},
		{"Nothing waits for the collector.", "No goroutine waits for the collector."},
		{"Every limit has room, else it returns.", "It returns if a limit is full."},
		{"The worker is told the limits.", "The worker reads the limits."},
	}
	testkit.Equal(t, len(examples), len(forms), "forms with an example")
	for i, form := range forms {
		for j, want := range []bool{true, false} {
			testkit.Equal(t, form.pattern.MatchString(examples[i][j]), want, "%s: %s", form.name, examples[i][j])
		}
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, file, content string
		want                []string
	}{
		{name: "comments are joined, and split into sentences", file: "a.go",
			content: "// One sentence over\n// two lines. And another one here.\nfunc f() {}\n// The next comment.",
			want:    []string{"One sentence over two lines.", "And another one here.", "The next comment."}},
		{name: "comments behind code", file: "a.go", content: "x := 1 // how many are left\n", want: []string{"how many are left"}},
		{name: "directives and addresses", file: "a.go", content: "//go:build a or b or c\nx := \"http://a b c d\"\n//nolint:gosec // this is fine here\n",
			want: []string{"this is fine here"}},
		{name: "Lua", file: "a.lua", content: "-- returns the number of slots\nlocal a = 1 -- in whole microseconds\n",
			want: []string{"returns the number of slots", "in whole microseconds"}},
		{name: "pages", file: "a.md",
			content: "# A heading of words\n\n- The `code that is told` and [the link](a.md) count as words.\n\n```sh\nthis is no sentence\n```\n| nor is this |\n",
			want:    []string{"The X and the link count as words."}},
		{name: "fragments", file: "a.md", content: "Two words.\n", want: nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, s := range parse(test.file, test.content) {
				got = append(got, s.text)
			}
			testkit.EqualSlices(t, got, test.want, "sentences")
		})
	}
}

func TestRun(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	testkit.NoError(t, os.WriteFile(page, []byte("The worker is told the limits.\n"), 0o600))
	report, err := run([]string{"--hits", page}, nil)
	testkit.Fails(t, "a share above its bound", err, errAboveBound)
	testkit.Contains(t, "report", report, page+":1: The worker is told the limits.", "100.0% !   1.4%  is told")
	testkit.NoError(t, os.WriteFile(page, []byte("The worker reads the limits.\n"), 0o600))
	_, err = run([]string{page}, nil)
	testkit.NoError(t, err)
}
