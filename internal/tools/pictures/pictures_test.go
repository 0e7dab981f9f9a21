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
		if testkit.Text(t, filepath.Join(docs, "limits", name)) != string(wanted) {
			t.Errorf("docs/limits/%s is not what the limiter does: run make docs", name)
		}
		if !strings.Contains(page, "](limits/"+name+")") {
			t.Errorf("docs/limits.md does not show %s", name)
		}
	}
	names = append(names, weekName)
	if testkit.Text(t, filepath.Join(docs, "limits", weekName)) != string(testkit.Must(pictureOfWeek())(t)) {
		t.Errorf("docs/limits/%s is not what the limiter does: run make docs", weekName)
	}
	if !strings.Contains(page, "](limits/"+weekName+")") {
		t.Errorf("docs/limits.md does not show %s", weekName)
	}
	for _, file := range testkit.Must(os.ReadDir(filepath.Join(docs, "limits")))(t) {
		if !slices.Contains(names, file.Name()) {
			t.Errorf("docs/limits/%s is drawn by nothing", file.Name())
		}
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
		if other, same := seen[admitted]; same {
			t.Errorf("%s admits what %s admits", a, other)
		}
		seen[admitted] = a
	}
}
