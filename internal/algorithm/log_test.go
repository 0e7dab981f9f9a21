package algorithm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// naiveLog keeps the time of each slot.
type naiveLog []int64

func (l naiveLog) within(from, upto int64) naiveLog {
	var found naiveLog
	for _, at := range l {
		if at > from && at <= upto {
			found = append(found, at)
		}
	}
	slices.Sort(found)
	return found
}

func (l naiveLog) without(at, slots int64) naiveLog {
	var left naiveLog
	for _, taken := range l {
		if taken == at && slots > 0 {
			slots--
			continue
		}
		left = append(left, taken)
	}
	return left
}

func TestSlidingLogAgainstNaive(t *testing.T) {
	t.Parallel()
	times, costs := rapid.Int64Range(0, 40), rapid.Int64Range(1, 5)
	rapid.Check(t, func(t *rapid.T) {
		var (
			log   slidingLog
			naive naiveLog
		)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				from, upto := times.Draw(t, "from"), times.Draw(t, "upto")
				want := naive.within(from, upto)
				got := log.count(from, upto)
				testkit.Require(t, got == int64(len(want)), "%d slots in (%d, %d], want %d", got, from, upto, len(want))
				for i := range log.entries {
					if log.slots(i) <= 0 || i > 0 && log.entries[i-1].at >= log.entries[i].at {
						t.Fatalf("entries %+v", log.entries)
					}
				}
			},
			"add": func(t *rapid.T) {
				at, slots := times.Draw(t, "at"), costs.Draw(t, "slots")
				log.add(at, slots)
				for range slots {
					naive = append(naive, at)
				}
			},
			"remove": func(t *rapid.T) {
				at, slots := times.Draw(t, "at"), costs.Draw(t, "slots")
				log.remove(at, slots)
				naive = naive.without(at, slots)
			},
			"trim": func(t *rapid.T) {
				upto := times.Draw(t, "upto")
				log.trim(upto)
				naive = naive.within(upto, 100)
			},
		})
	})
}
