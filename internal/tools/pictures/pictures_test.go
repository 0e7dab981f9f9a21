package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// docs is the folder of the pages.
var docs = filepath.Join("..", "..", "..", "docs")

func TestPicturesAreWhatTheLimiterDoes(t *testing.T) {
	t.Parallel()
	page := testkit.Text(t, filepath.Join(docs, "limits.md"))
	var names []string
	for _, limit := range drawn {
		name, wanted, err := picture(limit)
		testkit.NoError(t, err)
		names = append(names, name)
		if testkit.Text(t, filepath.Join(docs, "limits", name)) != string(wanted) {
			t.Errorf("docs/limits/%s is not what the limiter does: run make docs", name)
		}
		if !strings.Contains(page, "](limits/"+name+")") {
			t.Errorf("docs/limits.md does not show %s", name)
		}
	}
	for _, file := range testkit.Must(os.ReadDir(filepath.Join(docs, "limits")))(t) {
		if !slices.Contains(names, file.Name()) {
			t.Errorf("docs/limits/%s is drawn by nothing", file.Name())
		}
	}
}

// The algorithms admit different numbers of events in a minute.
func TestRunsDiffer(t *testing.T) {
	t.Parallel()
	const count = 10
	for limit, wanted := range map[string]struct{ least, most int64 }{
		"log:10/1m":      {count, count},
		"counter:10/1m":  {count + 1, 2*count - 1},
		"fixed:10/1m":    {count + 1, 2 * count},
		"token:10/1m":    {count + 1, 2 * count},
		"leaky:10/1m":    {1, count},
		"inflight:10/1m": {2 * count, 3 * count},
	} {
		r := testkit.Must(replay(limit))(t)
		if most := slices.Max(r.sent); most < wanted.least || most > wanted.most {
			t.Errorf("%s admits %d in one minute, want %d to %d", limit, most, wanted.least, wanted.most)
		}
		if most := slices.Max(r.used); most > count {
			t.Errorf("%s: got %d slots in use, want %d at most", limit, most, count)
		}
		testkit.Equal(t, len(r.arrivals), len(arrivals()), "arrivals of %s", limit)
	}
}
