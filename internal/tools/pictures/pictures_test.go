package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// docs is the folder of the pages.
var docs = filepath.Join("..", "..", "..", "docs")

func TestPicturesAreWhatTheLimiterDoes(t *testing.T) {
	t.Parallel()
	page := testkit.Text(t, filepath.Join(docs, "limits.md"))
	var names []string
	for _, a := range algorithm.All() {
		name, wanted, err := picture(drawn(a))
		testkit.NoError(t, err)
		names = append(names, name)
		testkit.Check(t, testkit.Text(t, filepath.Join(docs, "limits", name)) == string(wanted),
			"docs/limits/%s is not what the limiter does: run make docs", name)
		testkit.Check(t, strings.Contains(page, "](limits/"+name+")"), "docs/limits.md does not show %s", name)
	}
	names = append(names, weekName)
	testkit.Check(t, testkit.Text(t, filepath.Join(docs, "limits", weekName)) == string(testkit.Must(pictureOfWeek())(t)),
		"docs/limits/%s is not what the limiter does: run make docs", weekName)
	testkit.Check(t, strings.Contains(page, "](limits/"+weekName+")"), "docs/limits.md does not show %s", weekName)
	for _, file := range testkit.Must(os.ReadDir(filepath.Join(docs, "limits")))(t) {
		testkit.Check(t, slices.Contains(names, file.Name()), "docs/limits/%s is drawn by nothing", file.Name())
	}
}

// TestRunsDiffer replays the arrivals with each algorithm. An exact one never admits more than the count in a minute.
func TestRunsDiffer(t *testing.T) {
	t.Parallel()
	const count = 10
	seen := make(map[string]algorithm.Algorithm)
	for _, a := range algorithm.All() {
		r := testkit.Must(replay(drawn(a)))(t)
		if most := slices.Max(r.sent); a.Description().Exact && most != count {
			t.Errorf("%s admits %d in one minute, want %d", a, most, count)
		}
		if most := slices.Max(r.used); most > count {
			t.Errorf("%s: got %d slots in use, want %d at most", a, most, count)
		}
		testkit.Equal(t, len(r.arrivals), len(arrivals()), "arrivals of %s", a)
		admitted := fmt.Sprint(r.arrivals)
		other, same := seen[admitted]
		testkit.Check(t, !same, "%s admits what %s admits", a, other)
		seen[admitted] = a
	}
}
