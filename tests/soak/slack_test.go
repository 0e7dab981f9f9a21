//go:build soak

package soak

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// answers draws Slack's answers, and notes the withheld ones.
type answers struct {
	r *random

	mu    sync.Mutex
	rough bool
	lost  map[string][]time.Time // by ID: times of accepted posts without an answer
}

func (a *answers) setRough(rough bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rough = rough
}

// to returns the answer to a post.
func (a *answers) to(post slacktest.Post) slacktest.Answer {
	if strings.Contains(post.Text, "reject me") {
		return slacktest.Code("invalid_blocks")
	}
	a.mu.Lock()
	rough := a.rough
	a.mu.Unlock()
	if !rough {
		return slacktest.Delay(a.r.between(0, 60*time.Millisecond), slacktest.OK())
	}
	switch drawn := a.r.intN(100); {
	case drawn < 15:
		return slacktest.RateLimited(time.Duration(1+a.r.intN(2)) * time.Second)
	case drawn < 30:
		return slacktest.Status(500+a.r.intN(4), "try again")
	case drawn < 40:
		return slacktest.Reset()
	case drawn < 50:
		a.note(post)
		return slacktest.Stored(slacktest.Reset())
	case drawn < 55:
		return slacktest.Hold(nil, slacktest.OK()) // the post is not accepted
	case drawn < 60:
		return slacktest.HTML(502)
	case drawn < 65:
		return slacktest.Code("internal_error")
	default:
		return slacktest.Delay(a.r.between(0, slackTimeout*3/10), slacktest.OK())
	}
}

func (a *answers) note(post slacktest.Post) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := nameOf(post)
	a.lost[name] = append(a.lost[name], post.Received)
}

// withheld tells whether a post was accepted without an answer.
func (a *answers) withheld(post slacktest.Post) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.lost[nameOf(post)] {
		if at.Equal(post.Received) {
			return true
		}
	}
	return false
}

// idOf returns the ID of a post in the ledger: the event's ID, or its identity for the hostile producer.
func idOf(post slacktest.Post) string {
	id, category := post.Origin("id"), post.Origin("category")
	if isHostile(category) {
		return event.Event{Category: category, ID: id}.Identity()
	}
	return id
}

// nameOf returns the ID of a post, or its text.
func nameOf(post slacktest.Post) string {
	if id := idOf(post); id != "" {
		return id
	}
	return post.Text
}

// Counts in the text of a digest.
var (
	digestText   = regexp.MustCompile(`^(?:at least )?(\d+) notifications? (?:was|were) suppressed `)
	doubtfulText = regexp.MustCompile(`; including (\d+) that may have been told before`)
)

// digestOf reads the drops and the doubtful drops of a digest.
func digestOf(post slacktest.Post) (dropped, doubtful int, isDigest bool) {
	parts := digestText.FindStringSubmatch(post.Text)
	if parts == nil {
		return 0, 0, false
	}
	dropped, _ = strconv.Atoi(parts[1])
	if parts := doubtfulText.FindStringSubmatch(post.Text); parts != nil {
		doubtful, _ = strconv.Atoi(parts[1])
	}
	return dropped, doubtful, true
}

// workerOf returns the worker that made a post.
func workerOf(post slacktest.Post) string {
	_, version, _ := strings.Cut(post.Header.Get("User-Agent"), "/")
	return version
}
