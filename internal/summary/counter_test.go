package summary

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestCounterAddsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, begin := newCounter(), time.Now()
		c.Add([]Drop{
			{Category: "b", Level: "global", Title: "two\nlines", N: 2},
			{Category: "b", Level: "category", Title: "two lines", N: 1},
			{Category: "a", Level: "global", N: 1},
			{Category: "b", Level: "global", Title: "another", N: 1},
		})
		time.Sleep(time.Minute)
		c.Add([]Drop{{Category: "b", Level: "unpaired", Title: "another", N: 10}})
		drops, leftOut := c.take()
		want := []throttle.Drops{
			{
				Category: "a", Total: 1, First: begin, Last: begin,
				Levels: []throttle.NameCount{{Name: "global", Count: 1}}, Titles: []throttle.NameCount{},
			},
			{
				Category: "b", Total: 14, First: begin, Last: begin.Add(time.Minute),
				Levels: []throttle.NameCount{{Name: "global", Count: 3}, {Name: "category", Count: 1}, {Name: "unpaired", Count: 10}},
				Titles: []throttle.NameCount{{Name: "another", Count: 11}, {Name: "two lines", Count: 3}},
			},
		}
		if !reflect.DeepEqual(drops, want) || leftOut != 0 {
			t.Errorf("got  %+v\nwant %+v\n%d left out", drops, want, leftOut)
		}
		if drops, _ := c.take(); drops != nil {
			t.Errorf("taken twice: %+v", drops)
		}
	})
}

func TestCounterBounds(t *testing.T) {
	t.Parallel()
	c := newCounter()
	for i := range 2 * throttle.MaxDropNames {
		c.Add([]Drop{{Category: "a", Level: fmt.Sprint("level ", i), Title: fmt.Sprint("title ", i), N: 1}})
	}
	for i := range throttle.MaxDropCategories + 10 {
		c.Add([]Drop{{Category: fmt.Sprint("c", i), N: 1}, {Category: "a", N: 1}})
	}
	drops, leftOut := c.take()
	if len(drops) != throttle.MaxDropCategories || leftOut != 11 {
		t.Errorf("%d categories, %d drops left out, want %d and 11", len(drops), leftOut, throttle.MaxDropCategories)
	}
	a, total := drops[0], int64(2*throttle.MaxDropNames+throttle.MaxDropCategories+10)
	if a.Total != total || len(a.Titles) != throttle.MaxDropNames || len(a.Levels) != throttle.MaxDropNames {
		t.Errorf("%d drops with %d titles and %d levels, want %d and %d of each",
			a.Total, len(a.Titles), len(a.Levels), total, throttle.MaxDropNames)
	}
}

func TestCleanTitle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", maxTitle)
	for title, want := range map[string]string{
		"plain":               "plain",
		" a\tb\r\nc \x00":     "a b c",
		"\n":                  "",
		"cut \xe2\x82":        "cut",
		long:                  long,
		long + "x":            strings.Repeat("ü", maxTitle-1) + "…",
		long + "y and beyond": strings.Repeat("ü", maxTitle-1) + "…",
	} {
		if got := cleanTitle(title); got != want {
			t.Errorf("%q: %q, want %q", title, got, want)
		}
	}
}

// TestLongTitles has titles that are the same as far as they are kept.
func TestLongTitles(t *testing.T) {
	t.Parallel()
	c := newCounter()
	for i := range 10 {
		c.Add([]Drop{{Category: "a", Title: strings.Repeat("€", 2*maxTitle) + fmt.Sprint(i), N: 1}})
	}
	drops, _ := c.take()
	want := []throttle.NameCount{{Name: strings.Repeat("€", maxTitle-1) + "…", Count: 10}}
	if got := drops[0].Titles; !reflect.DeepEqual(got, want) {
		t.Errorf("titles %v, want %v", got, want)
	}
}

func TestCounterIsUsedByMany(t *testing.T) {
	t.Parallel()
	c := newCounter()
	var (
		adding, taking sync.WaitGroup
		total          int64
		done           = make(chan struct{})
	)
	for g := range 8 {
		adding.Go(func() {
			for range 1000 {
				c.Add([]Drop{{Category: fmt.Sprint("c", g%3), Level: "global", Title: "title", N: 1}})
			}
		})
	}
	taking.Go(func() {
		for last := false; ; {
			drops, _ := c.take()
			for _, d := range drops {
				total += d.Total
			}
			if last {
				return
			}
			select {
			case <-done:
				last = true
			default:
			}
		}
	})
	adding.Wait()
	close(done)
	taking.Wait()
	if total != 8000 {
		t.Errorf("%d drops are counted, want 8000", total)
	}
}

func TestNoCounter(t *testing.T) {
	t.Parallel()
	k := NewKeeper(Options{})
	k.Counter().Add([]Drop{{Category: "a", N: 1}})
	k.Run(t.Context()) // returns
}

// BenchmarkCounterAdd counts as a flood does: batches of a few categories, from two goroutines.
func BenchmarkCounterAdd(b *testing.B) {
	for name, titles := range map[string]int{"few titles": 10, "every title is new": 1 << 20} {
		b.Run(name, func(b *testing.B) {
			const batch = 256
			texts := make([]string, titles)
			for i := range texts {
				texts[i] = fmt.Sprintf("disk of host-%07d.example.org is nearly full", i)
			}
			c := newCounter()
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				drops, n := make([]Drop, 0, batch), 0
				for pb.Next() {
					n++
					drops = append(drops, Drop{Category: categories[n/16%len(categories)], Level: "category", Title: texts[n%titles], N: 1})
					if len(drops) == batch {
						c.Add(drops)
						drops = drops[:0]
					}
				}
			})
		})
	}
}

var categories = []string{"errors", "payments", "payments.refunds.failed", "security", "debug"}
