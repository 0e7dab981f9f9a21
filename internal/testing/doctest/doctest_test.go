package doctest

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestBlocks(t *testing.T) {
	t.Parallel()
	page := "# Page\n\n```sh\necho one\n\necho ```\n```\n\n```output status 1\none\n```\n<!--\n````sh not run: needs a cluster\n```\n````\n-->\n" +
		"- item\n\n  ```go\n  package main\n  \tx\n  ```\n\n```output eventually\n```\n```text not run: a drawing\n ─► \n```\n"
	testkit.EqualSlices(t, testkit.Must(Blocks(page))(t), []Block{
		{Line: 3, Language: "sh", Text: "echo one\n\necho ```\n"},
		{Line: 9, Language: "output", Text: "one\n", Status: 1},
		{Line: 13, Language: "sh", Text: "```\n", NotRun: "needs a cluster"},
		{Line: 19, Language: "go", Text: "package main\n\tx\n"},
		{Line: 24, Language: "output", Eventually: true},
		{Line: 26, Language: "text", Text: " ─► \n", NotRun: "a drawing"},
	}, "blocks")
}

func TestBadBlocks(t *testing.T) {
	t.Parallel()
	for _, page := range []string{
		"```\nx\n```\n", "```bash\nx\n```\n", "```sh sometimes\nx\n```\n", "```sh not run: \nx\n```\n", "```sh eventually\nx\n```\n", "```text\nx\n```\n",
		"```sh\nx\n", "```output\nx\n```\n", "```sh not run: why\nx\n```\n```output\nx\n```\n", "```sh\nx\n```\n```output status x\nx\n```\n",
		"```sh\nx\n```\n```output not run: why\nx\n```\n", "```json\n{}\n```\n```output\nx\n```\n",
	} {
		_, err := Blocks(page)
		testkit.Fails(t, page, err, nil)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		shown, printed string
		same           bool
	}{
		{"", "", true},
		{"a\n", "a  \n\n", true},
		{"a\n", "", false},
		{"", "a\n", false},
		{"a\nb\n", "a\n", false},
		{"a\n", "a\nb\n", false},
		{"a.c\n", "abc\n", false},
		{"used … of 10\n", "used 7 of 10\n", true},
		{"used … of 10\n", "used 7 of 11\n", false},
		{"used … of 10\n", "used 7\nof 10\n", false},
		{"a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"a\n…\nd\n", "a\nd\n", true},
		{"a\n…\nd\n", "a\nb\nc\n", false},
		{"…", "a\nb\n", true},
		{"at 10:00:00.123 on 2026-01-02\n", "at 23:59:59.9 on 2027-12-31\n", true},
		{"at 10:00\n", "at 23:59:59\n", false},
		{"opens at 10:00:00\n", "opens at 2026-01-02 00:06:50\n", true},
		{"opens at 10:00\n", "opens at 2026-01-02 00:06\n", false},
		{"since 10:35:00\n", "since 2026-01-02T10:35:00Z\n", false},
		{"since 2026-01-02T10:35:00Z\n", "since 2027-12-31T23:59:59Z\n", true},
		{"redis://127.0.0.1:6379\n", "redis://127.0.0.1:6380\n", false},
		{"10/30m\n", "10/31m\n", false},
	} {
		err := Compare(test.shown, test.printed)
		testkit.Check(t, (err == nil) == test.same, "Compare(%q, %q) = %v, want the same: %v", test.shown, test.printed, err, test.same)
	}
}
