package main

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTablesAreUpToDate(t *testing.T) {
	t.Parallel()
	const root = "../../.."
	copied := t.TempDir()
	testkit.NoError(t, os.Mkdir(filepath.Join(copied, "docs"), 0o700))
	for _, w := range written {
		testkit.NoError(t, os.WriteFile(filepath.Join(copied, w.page), []byte(testkit.Text(t, filepath.Join(root, w.page))), 0o600))
	}
	testkit.NoError(t, rewrite(copied))
	for _, w := range written {
		testkit.Check(t, testkit.Text(t, filepath.Join(root, w.page)) == testkit.Text(t, filepath.Join(copied, w.page)),
			"the table of %s is not what the code says: run make docs", w.page)
	}
}

func TestWithTable(t *testing.T) {
	t.Parallel()
	got := testkit.Must(withTable("head\n"+begin+"old\n"+end+"tail\n", "new\n"))(t)
	testkit.Equal(t, got, "head\n"+begin+"new\n"+end+"tail\n", "page")
	for _, text := range []string{"", begin, end, end + begin} {
		_, err := withTable(text, "")
		testkit.Fails(t, text, err, nil)
	}
}
