package why

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// Meanings returns the questions that a text may stand for: a category, the number of a message of the producers' stream with "#", an event's
// ID, and such a number without "#". Where several have events, the first counts: any producer may choose an ID that looks like another
// meaning. Every question has the conditions of q. If q has a category, the text is not a category. No text stands for q.
func Meanings(text string, q Question) []Question {
	if text == "" {
		return []Question{q}
	}
	ofID, ofCategory, ofMessage := q, q, q
	ofID.ID = text
	var meanings []Question
	text = strings.TrimSpace(text)
	if category := strings.ToLower(text); q.Category == "" && event.ValidatePath(category) == nil { // as publish and workers read it
		ofCategory.Category = category
		meanings = append(meanings, ofCategory)
	}
	number, marked := strings.CutPrefix(text, "#")
	sequence, err := strconv.ParseUint(number, 10, 64)
	switch ofMessage.Sequence = sequence; {
	case err != nil || sequence == 0:
		return append(meanings, ofID)
	case marked:
		return append(meanings, ofMessage, ofID)
	}
	return append(meanings, ofID, ofMessage)
}

// Finder answers what people type. Its methods may be called concurrently.
type Finder struct {
	Ask        func(ctx context.Context, questions ...Question) []Answer
	Categories func(ctx context.Context) []string // existing categories, found within a short time
}

// journalDelay is longer than the delay of the journal.
const journalDelay = 2 * time.Second

// Find answers, for each argument, its first meaning for which a source has events. If no meaning has events, Find answers the ID, and adds
// the aggregated entries of the other meanings. If an answer is not final, Find asks a second time after journalDelay, and looks everywhere for
// an ID without a category, unless a search timed out: a second search would time out too. It looks there at once for an ID that is also the
// number of a message.
func (f Finder) Find(ctx context.Context, arguments ...[]Question) []Answer {
	answers := make([]Answer, len(arguments))
	var all []int
	for i := range arguments {
		all = append(all, i)
	}
	f.find(ctx, arguments, all, answers)
	numbers := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !mayBeID(answers[i], arguments[i]) })
	if len(numbers) > 0 {
		f.find(ctx, everywhere(arguments), numbers, answers)
	}
	again := slices.DeleteFunc(all, func(i int) bool { return answers[i].Final() || answers[i].timedOut })
	if len(again) > 0 && await.For(ctx, journalDelay) {
		f.find(ctx, everywhere(arguments), again, answers)
	}
	f.suggest(ctx, arguments, answers)
	return answers
}

// mayBeID reports whether an answer is about the number of a message, although the argument may be an ID that only the delivery record has: a number
// without # is the last of several meanings.
func mayBeID(a Answer, meanings []Question) bool {
	return a.Known() && a.Asked.Sequence != 0 && len(meanings) > 1 && a.Asked == meanings[len(meanings)-1]
}

// everywhere returns the questions, with those about an ID asked everywhere.
func everywhere(arguments [][]Question) [][]Question {
	asked := make([][]Question, len(arguments))
	for i, questions := range arguments {
		asked[i] = slices.Clone(questions)
		for j := range asked[i] {
			asked[i][j].Everywhere = asked[i][j].ID != ""
		}
	}
	return asked
}

func (f Finder) find(ctx context.Context, arguments [][]Question, numbers []int, answers []Answer) {
	var questions []Question
	for _, i := range numbers {
		questions = append(questions, arguments[i]...)
	}
	found := f.Ask(ctx, questions...)
	for _, i := range numbers {
		answers[i] = best(found[:len(arguments[i])])
		found = found[len(arguments[i]):]
	}
}

// best returns the first answer with events among the answers to one argument.
func best(meanings []Answer) Answer {
	if known := slices.IndexFunc(meanings, Answer.Known); known >= 0 {
		return meanings[known]
	}
	chosen := max(0, slices.IndexFunc(meanings, func(a Answer) bool { return a.Asked.ID != "" }))
	answer := meanings[chosen]
	for i, other := range meanings {
		if i != chosen {
			answer.Counted = append(answer.Counted, other.Counted...)
		}
	}
	return answer
}

// suggest adds the nearest category to answers without events, if the argument may be a category.
func (f Finder) suggest(ctx context.Context, arguments [][]Question, answers []Answer) {
	var categories []string
	for i := range answers {
		named := slices.IndexFunc(arguments[i], func(q Question) bool { return !q.Single() && q.Category != "" })
		if named < 0 || answers[i].Known() || ctx.Err() != nil {
			continue
		}
		if categories == nil {
			categories = withParents(f.Categories(ctx))
		}
		answers[i].Nearest = plain.Nearest(arguments[i][named].Category, categories)
	}
}

func withParents(categories []string) []string {
	all := slices.Clone(categories)
	for _, category := range categories {
		for at := strings.LastIndexByte(category, '.'); at > 0; at = strings.LastIndexByte(category[:at], '.') {
			all = append(all, category[:at])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
