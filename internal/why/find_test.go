package why

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMeanings(t *testing.T) {
	t.Parallel()
	const long = "arn:aws:lambda:eu-central-1:123456789012:function:payments-refunds-prod:42"
	for text, want := range map[string][]Question{
		"order-4711": {{Category: "order-4711"}, {ID: "order-4711"}},
		"#371":       {{Sequence: 371}, {ID: "#371"}},
		"371":        {{Category: "371"}, {ID: "371"}, {Sequence: 371}},
		" 371 ":      {{Category: "371"}, {ID: " 371 "}, {Sequence: 371}},
		"0":          {{Category: "0"}, {ID: "0"}},
		"#0":         {{ID: "#0"}},
		"-1":         {{Category: "-1"}, {ID: "-1"}},
		"a  b":       {{ID: "a  b"}},
		long:         {{ID: long}},
		"Payments":   {{Category: "payments"}, {ID: "Payments"}},
		"":           {{}},
	} {
		testkit.EqualSlices(t, Meanings(text, Question{}), want, "meanings of %q", text)
	}
	since := at("09:00:00")
	testkit.EqualSlices(t, Meanings("371", Question{Category: "payments", Since: since}), []Question{
		{ID: "371", Category: "payments", Since: since}, {Sequence: 371, Category: "payments", Since: since},
	}, "meanings with a category")
}

// asked is a source of answers that counts.
type asked struct {
	answers map[Question]Answer
	knows   time.Time // before that it knows of nothing
	named   int       // how often it was asked for categories
}

func (a *asked) ask(_ context.Context, questions ...Question) []Answer {
	answers := make([]Answer, len(questions))
	for i, q := range questions {
		q.Everywhere = false
		if !time.Now().Before(a.knows) {
			answers[i] = a.answers[q]
		}
		answers[i].Asked = q
	}
	return answers
}

func (a *asked) categories(context.Context) []string {
	a.named++
	return []string{"payments.refunds", "search"}
}

func (a *asked) find(t *testing.T, texts ...string) []Answer {
	t.Helper()
	var arguments [][]Question
	for _, text := range texts {
		arguments = append(arguments, Meanings(text, Question{}))
	}
	return Finder{Ask: a.ask, Categories: a.categories}.Find(t.Context(), arguments...)
}

// TestFind asks several texts at once. Each is answered by its first meaning of which something is known.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := Answer{Events: []Event{{State: "sent"}}}
		a := &asked{answers: map[Question]Answer{
			{ID: "evt-1"}:          found,
			{ID: "payments"}:       found,
			{ID: "#371"}:           found,
			{Category: "payments"}: {Totals: []Total{{Result: "sent", Count: 1}}},
			{Sequence: 371}:        found,
			{Sequence: 372}:        {Counted: []string{"at least 9 events may be meant"}},
		}}
		answers := a.find(t, "evt-1", "payments", "371", "#371", "372")
		for i, want := range []Question{{ID: "evt-1"}, {Category: "payments"}, {Sequence: 371}, {Sequence: 371}, {ID: "372"}} {
			testkit.Equal(t, answers[i].Asked, want, "the meaning that is answered")
		}
		testkit.EqualSlices(t, answers[4].Counted, a.answers[Question{Sequence: 372}].Counted, "counts that may hold a message")
		testkit.Equal(t, a.named, 1, "questions for the categories")
	})
}

// TestFindAsksAgain has an event of which the journal hears a second later.
func TestFindAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asked{answers: make(map[Question]Answer)}
		a.knows = time.Now().Add(time.Second)
		a.answers[Question{ID: "evt-1"}] = Answer{Events: []Event{{State: "sent"}}}
		testkit.Equal(t, a.find(t, "evt-1")[0].Known(), true, "known")
		testkit.Equal(t, a.named, 0, "questions for the categories")
	})
}

// TestFindRepeatsNoTimeout has a search time out. It is not repeated, and the answer reports it.
func TestFindRepeatsNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		searches := 0
		sources := known{}.sources()
		sources.Pending = func(context.Context, uint64, func(Pending)) error {
			searches++
			return fmt.Errorf("reading stream %q: %w", "EVENTS", errTooMany)
		}
		finder := Finder{
			Ask:        func(ctx context.Context, questions ...Question) []Answer { return Ask(ctx, sources, questions...) },
			Categories: func(context.Context) []string { return nil },
		}
		answer := finder.Find(t.Context(), Meanings("evt-1", Question{}))[0]
		testkit.Equal(t, searches, 1, "searches")
		testkit.EqualSlices(t, answer.Unknown, []string{
			`not every event that waits was looked at: reading stream "EVENTS": it has more messages than can be read in time`,
		}, "what is not known")
	})
}

func TestNearest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asked{}
		texts := []string{"payments.refund", "paymets", "serch", "search", "unlike", "Some ID"}
		var got []string
		for _, answer := range a.find(t, texts...) {
			got = append(got, answer.Nearest)
		}
		testkit.EqualSlices(t, got, []string{"payments.refunds", "payments", "search", "", "", ""}, "nearest categories")
	})
}
