package deadletters

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Filter selects letters. A letter has to match every field that is set.
type Filter struct {
	Reasons []string  // none for every reason
	Under   string    // a category, with all below it; "" for every category
	Since   time.Time // earliest time; zero for all
	IDs     []string  // letter numbers or event IDs, in the producers' form or in the form for people, perhaps after "id:"; none for all
}

// Select picks letters. It returns the filter's IDs that no letter has as missing.
func (f Filter) Select(letters []Letter) (chosen []Letter, missing []string) {
	var named map[uint64]bool
	if len(f.IDs) > 0 {
		named, missing = f.named(letters)
	}
	for _, l := range letters {
		if (named == nil || named[l.Number]) && !l.Stored.Before(f.Since) &&
			(len(f.Reasons) == 0 || slices.Contains(f.Reasons, l.Reason)) &&
			event.IsBelow(l.Category, f.Under) {
			chosen = append(chosen, l)
		}
	}
	return chosen, missing
}

// ofEvent is the prefix of an event's ID that may look like the number of a letter.
const ofEvent = "id:"

// named returns the numbers of the letters that have one of the IDs. A number is always that of a letter, even if the letter is gone: a producer
// chooses the IDs of its events, and must not put an event in the place of a letter that somebody names again.
func (f Filter) named(letters []Letter) (numbers map[uint64]bool, missing []string) {
	byID := make(map[string][]uint64)
	numbers = make(map[uint64]bool)
	exists := make(map[uint64]bool)
	for _, l := range letters {
		exists[l.Number] = true
		if l.ID != "" {
			byID[l.ID] = append(byID[l.ID], l.Number)
		}
		if shown := l.ShownID(); shown != l.ID {
			byID[shown] = append(byID[shown], l.Number)
		}
	}
	for _, id := range f.IDs {
		var found []uint64
		if number, err := strconv.ParseUint(id, 10, 64); err == nil {
			if exists[number] {
				found = []uint64{number}
			}
		} else {
			for _, shown := range append(event.ShownAs(id), event.ShownAs(strings.TrimPrefix(id, ofEvent))...) {
				found = append(found, byID[shown]...)
			}
		}
		for _, n := range found {
			numbers[n] = true
		}
		if len(found) == 0 {
			missing = append(missing, id)
		}
	}
	return numbers, missing
}
