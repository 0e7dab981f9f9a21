package why

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/plain"
)

// Meanings are the questions that somebody may ask with a text, the likeliest first: about the event with that ID, about the category, about
// the message of the producers' stream with that number, which may follow a "#". Every question has the conditions of q. With a category
// among these, the text names an event.
func Meanings(text string, q Question) []Question {
	ofID, ofCategory, ofMessage := q, q, q
	ofID.ID = text
	meanings := []Question{ofID}
	text = strings.TrimSpace(text)
	if q.Category == "" && event.ValidatePath(text) == nil {
		ofCategory.Category = text
		meanings = append(meanings, ofCategory)
	}
	if sequence, err := strconv.ParseUint(strings.TrimPrefix(text, "#"), 10, 64); err == nil && sequence > 0 {
		ofMessage.Sequence = sequence
		meanings = append(meanings, ofMessage)
	}
	return meanings
}

// Finder answers what people type. It may be used by many at once.
type Finder struct {
	Ask        func(ctx context.Context, questions ...Question) []Answer
	Categories func(ctx context.Context) []string // that exist, as far as they are found soon
}

// journalDelay is longer than the journal takes to hear of what a worker has just done.
const journalDelay = 2 * time.Second

// Find answers, for each argument, the first of its meanings of which something is known. If nothing is known of any, it answers the first
// one, with what the others may be among. Arguments of which asking again in a moment can tell more are asked again.
func (f Finder) Find(ctx context.Context, arguments ...[]Question) []Answer {
	answers := make([]Answer, len(arguments))
	var all []int
	for i := range arguments {
		all = append(all, i)
	}
	f.find(ctx, arguments, all, answers)
	if again := slices.DeleteFunc(all, func(i int) bool { return answers[i].Final() }); len(again) > 0 {
		select {
		case <-time.After(journalDelay):
			f.find(ctx, arguments, again, answers)
		case <-ctx.Done():
		}
	}
	f.suggest(ctx, arguments, answers)
	return answers
}

// find asks for the arguments with the given numbers, meaning by meaning.
func (f Finder) find(ctx context.Context, arguments [][]Question, numbers []int, answers []Answer) {
	for meaning := 0; len(numbers) > 0; meaning++ {
		var questions []Question
		for _, i := range numbers {
			questions = append(questions, arguments[i][meaning])
		}
		var unknown []int
		for k, answer := range f.Ask(ctx, questions...) {
			i := numbers[k]
			switch {
			case meaning == 0, answer.Known():
				answers[i] = answer
			default:
				answers[i].Counted = append(answers[i].Counted, answer.Counted...)
			}
			if !answer.Known() && meaning+1 < len(arguments[i]) {
				unknown = append(unknown, i)
			}
		}
		numbers = unknown
	}
}

// suggest names the nearest category where nothing is known of what may be one.
func (f Finder) suggest(ctx context.Context, arguments [][]Question, answers []Answer) {
	var categories []string
	for i := range answers {
		named := slices.IndexFunc(arguments[i], func(q Question) bool { return !q.single() && q.Category != "" })
		if named < 0 || answers[i].Known() || ctx.Err() != nil {
			continue
		}
		if categories == nil {
			categories = withParents(f.Categories(ctx))
		}
		answers[i].Nearest = plain.Nearest(arguments[i][named].Category, categories)
	}
}

// withParents adds the paths above categories.
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
