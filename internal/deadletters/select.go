package deadletters

import (
	"fmt"
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
	IDs     []string  // letter numbers or event IDs, in the producers' form or in the form for people; none for all
}

// Select picks letters. It returns the filter's IDs that no letter has as missing. An ID is refused if it is the number of one letter and
// the event's ID of another letter.
func (f Filter) Select(letters []Letter) (chosen []Letter, missing []string, err error) {
	var named map[uint64]bool
	if len(f.IDs) > 0 {
		if named, missing, err = f.named(letters); err != nil {
			return nil, nil, err
		}
	}
	for _, l := range letters {
		if (named == nil || named[l.Number]) && !l.Stored.Before(f.Since) &&
			(len(f.Reasons) == 0 || slices.Contains(f.Reasons, l.Reason)) &&
			(f.Under == "" || l.Category == f.Under || strings.HasPrefix(l.Category, f.Under+".")) {
			chosen = append(chosen, l)
		}
	}
	return chosen, missing, nil
}

// named returns the numbers of the letters that have one of the IDs.
func (f Filter) named(letters []Letter) (numbers map[uint64]bool, missing []string, err error) {
	byID := make(map[string][]uint64)
	byNumber := make(map[uint64]bool)
	for _, l := range letters {
		if l.ID != "" {
			byID[l.ID] = append(byID[l.ID], l.Number)
		}
		if shown := l.ShownID(); shown != l.ID {
			byID[shown] = append(byID[shown], l.Number)
		}
		byNumber[l.Number] = true
	}
	numbers = make(map[uint64]bool)
	for _, id := range f.IDs {
		var ofEvent []uint64
		for _, shown := range event.ShownAs(id) {
			ofEvent = append(ofEvent, byID[shown]...)
		}
		number, err := strconv.ParseUint(id, 10, 64)
		isNumber := err == nil && byNumber[number]
		if isNumber && len(ofEvent) > 0 && !slices.Equal(ofEvent, []uint64{number}) {
			return nil, nil, fmt.Errorf("%s is the number of one dead letter and the event's ID of another one, %d: name them by the other of the two",
				id, ofEvent[0])
		}
		if isNumber {
			numbers[number] = true
		}
		for _, n := range ofEvent {
			numbers[n] = true
		}
		if !isNumber && len(ofEvent) == 0 {
			missing = append(missing, id)
		}
	}
	return numbers, missing, nil
}
