package telemetry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// labelled gives labels as a set of categories does, with a clock of its own.
type labelled struct {
	busiest
	free  int
	now   time.Time
	given []string
}

func newLabelled(free int) *labelled {
	l := &labelled{free: free, now: time.Unix(0, 0)}
	l.reserve(free)
	return l
}

// seen counts n events of each category, unless it has a label.
func (l *labelled) seen(n int, categories ...string) {
	for _, category := range categories {
		if !slices.Contains(l.given, category) {
			given := l.count(category, n, l.free, l.now)
			l.free -= len(given)
			l.given = append(l.given, given...)
		}
	}
}

func (l *labelled) pass(d time.Duration) { l.now = l.now.Add(d) }

// below counts the labels of a first-level category.
func (l *labelled) below(first string) (n int) {
	for _, category := range l.given {
		if name, _, _ := strings.Cut(category, "."); name == first {
			n++
		}
	}
	return n
}

func (l *labelled) want(t *testing.T, want ...string) {
	t.Helper()
	testkit.EqualSlices(t, l.given, want, "labels")
}

func names(format string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return all
}

// Categories with one event get only the labels that are given at once.
func TestJunkTakesNoLabels(t *testing.T) {
	t.Parallel()
	l := newLabelled(50)
	for range 100 {
		l.seen(1, names("payments.junk-%d", 500)[rand.IntN(500)])
	}
	testkit.Equal(t, len(l.given), 1, "labels for junk below one category")
	l.seen(1, names("junk-%d", 5000)...)
	testkit.Equal(t, len(l.given), 25, "labels for junk at the first level, want half of 50")
	l.pass(awardEvery)
	l.seen(convincing-1, "security.logins", "errors")
	l.pass(awardEvery)
	l.seen(1, "security.logins", "errors")
	l.pass(awardEvery)
	l.seen(1, "payments.more-junk")
	if got := l.given[25:]; !slices.Contains(got, "errors") || !slices.Contains(got, "security.logins") {
		t.Errorf("labels of %q behind the junk, want the busy ones", got)
	}
}

// One busy first level does not take the labels of the others.
func TestOneFamilyTakesAtMostItsShare(t *testing.T) {
	t.Parallel()
	const free, hours = 50, 3
	l := newLabelled(free)
	junk := names("payments.junk-%d", 200)
	for range hours * 60 {
		l.seen(10000, junk...)
		l.pass(time.Minute)
	}
	testkit.Equal(t, l.below("payments"), free/2, "of %d labels for one first level, want half of them", free)
	others := names("security.%d", 8)
	for range 10 {
		l.seen(10000, junk...)
		l.seen(convincing, others...)
		l.pass(awardEvery)
	}
	testkit.Equal(t, l.below("security"), len(others), "labels of the other first level")
}

// First levels that want labels get equal numbers of them.
func TestFamiliesShare(t *testing.T) {
	t.Parallel()
	const free, families = 50, 4
	l := newLabelled(free)
	for range 1000 {
		l.seen(1_000_000, names("loud.%d", 30)...)
		for i := range families - 1 {
			l.seen(convincing, names(fmt.Sprintf("quiet-%d.%%d", i), 30)...)
		}
		l.pass(time.Second)
	}
	least := free
	for i := range families - 1 {
		least = min(least, l.below(fmt.Sprintf("quiet-%d", i)))
	}
	if loud := l.below("loud"); loud > least+1 || least < free/(families+1) {
		t.Errorf("got %d labels for the busiest first level and %d for another, want equal numbers", loud, least)
	}
}

func TestBusiestFirst(t *testing.T) {
	t.Parallel()
	l := newLabelled(10)
	l.seen(1, "a")
	l.seen(convincing, "a.little")
	l.want(t, "a", "a.little") // that was the only one then
	l.seen(convincing, "a.1")
	l.seen(3*convincing, "a.3")
	l.seen(2*convincing, "a.2")
	l.seen(convincing-1, "a.0")
	for range 6 {
		l.pass(awardEvery)
		l.seen(0, "a.0")
	}
	l.want(t, "a", "a.little", "a.3", "a.2", "a.1") // half of ten
}

// A category that lasts gets a label for few events.
func TestLastingCategory(t *testing.T) {
	t.Parallel()
	l := newLabelled(10)
	l.seen(1, "a")
	l.seen(1, "a.once", "a.daily", "a.burst", "a.burst")
	l.pass(lasting - 1)
	l.seen(1, "a.daily")
	l.want(t, "a")
	l.pass(24 * time.Hour)
	l.seen(1, "a.daily")
	l.want(t, "a", "a.daily")
	l.pass(time.Hour)
	l.seen(1, "a.other")
	l.want(t, "a", "a.daily")
}

// A contender inherits the count of the one that it displaces. The inherited count earns no label.
func TestDisplacedEventsCountForNobody(t *testing.T) {
	t.Parallel()
	l := newLabelled(100)
	l.seen(1, "a")
	l.pass(lasting - 1)
	for range 100 * convincing {
		l.seen(1, fmt.Sprint("a.junk-", rand.Uint64()))
	}
	l.pass(awardEvery)
	l.seen(1, "a.last")
	l.want(t, "a")
	l.seen(convincing, "a.real")
	l.pass(awardEvery)
	l.seen(1, "a.junk")
	l.want(t, "a", "a.real")
}

func TestCountsFade(t *testing.T) {
	t.Parallel()
	l := newLabelled(100)
	l.seen(1, "a", "a.trigger")
	l.seen(1000*convincing, "a.before")
	l.pass(1000 * fadeEvery)
	l.seen(convincing, "a.now")
	l.pass(awardEvery)
	l.seen(1, "a.trigger-2")
	l.want(t, "a", "a.now")
}

func TestContendersAreBounded(t *testing.T) {
	t.Parallel()
	const free = 10
	l := newLabelled(free)
	for range 100_000 {
		l.seen(1+rand.IntN(20), fmt.Sprintf("first-%d.%d", rand.IntN(10_000), rand.IntN(1000)))
		l.pass(time.Duration(rand.IntN(200)) * time.Millisecond)
	}
	if len(l.families) > free+maxStrangers || len(l.strangers) > maxStrangers {
		t.Errorf("got %d families, %d of them strangers, want %d and %d at most", len(l.families), len(l.strangers), free+maxStrangers, maxStrangers)
	}
	testkit.Equal(t, len(l.families), l.held()+len(l.strangers), "families, want those with labels and the strangers")
	for _, f := range l.families {
		if len(f.contenders) > maxContenders {
			t.Errorf("%s: got %d contenders, want %d at most", f.name, len(f.contenders), maxContenders)
		}
	}
	if len(l.given) > free || l.free < 0 {
		t.Errorf("got %d labels, want %d at most", len(l.given), free)
	}
}

func (l *labelled) held() (n int) {
	for _, f := range l.families {
		if f.held > 0 {
			n++
		}
	}
	return n
}

func BenchmarkJunk(b *testing.B) {
	for name, format := range map[string]string{"below one category": "payments.%d", "at the first level": "junk-%d"} {
		b.Run(name, func(b *testing.B) {
			junk := names(format, 10_000)
			c := newCategories(50, nil)
			for i := 0; b.Loop(); i++ {
				c.label(junk[i%len(junk)], 1)
			}
		})
	}
}
