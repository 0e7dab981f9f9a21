//go:build soak

package soak

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// written is how long the journal may lack an outcome of a worker that goes on.
const written = 2 * time.Second

// outcomes counts the outcomes of an event in the journal of the workers.
type outcomes map[journal.Result]int

func (o outcomes) total() (n int) {
	for _, ofResult := range o {
		n += ofResult
	}
	return n
}

// readOutcomes reads the journal of the workers. Entries of many events and those of undecoded events name no event.
func (v *verdict) readOutcomes() {
	v.outcomes = make(map[string]outcomes)
	ctx, cancel := context.WithTimeout(v.d.t.Context(), time.Minute)
	defer cancel()
	reader := journal.Reader{JetStream: v.d.js, Names: journal.Names{Stream: journalName, Subject: "notify"}}
	_, err := reader.Search(ctx, []journal.Query{{}}, func(_ int, e journal.Entry) {
		published := v.entries[e.ID]
		if published == nil || published.Category != e.Category || e.Count > 0 || !e.Result.Ends() {
			return // the hostile producer uses IDs of others
		}
		if v.outcomes[e.ID] == nil {
			v.outcomes[e.ID] = make(outcomes)
		}
		v.outcomes[e.ID][e.Result]++
	})
	testkit.NoError(v.d.t, err)
}

// checkAnswers compares the journal of the workers with Slack and the dead letters. A killed worker loses its last outcomes, so the outcome of
// a post is demanded only if no fault was near. Each message has one outcome: of two messages of an event, the first one may be dropped and
// the second one sent. A message that a fault redelivers may have its outcome twice.
func (v *verdict) checkAnswers() {
	var wrong []string
	agreed, absent := 0, 0
	for id := range v.entries {
		found, posts := v.outcomes[id], v.posts[id]
		switch {
		case found[journal.Sent] > 0 && len(posts) == 0:
			wrong = append(wrong, fmt.Sprintf("%s was never posted, and the journal has %v", id, found))
		case found[journal.Dead] > 0 && v.dead[id] == 0:
			wrong = append(wrong, fmt.Sprintf("%s is no dead letter, and the journal has %v", id, found))
		case len(posts) == 0:
		case found[journal.Sent] == 1 && found.total() <= v.entries[id].Copies:
			agreed++
		case v.calm(v.entries[id].Began.Add(-shortly), posts[len(posts)-1].Received.Add(ackWait+written)):
			wrong = append(wrong, fmt.Sprintf("%s was posted at %v, and the journal has %v", id, clock(posts[0].Received), found))
		default:
			absent++
		}
	}
	v.add("the journal agrees", agreed, fmt.Sprintf("%d outcomes of posts; %d are absent or repeated beside a fault", agreed, absent), wrong)
}
