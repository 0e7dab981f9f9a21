//go:build soak

package soak

import (
	"hash/fnv"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// answers draws Slack's answers, and notes the withheld ones. The seed, the event and the number of the attempt draw an answer, so the order
// of the requests does not matter.
type answers struct {
	seed uint64

	mu    sync.Mutex
	asked map[string]uint64 // by ID: attempts
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
	rough, r := a.draw(nameOf(post))
	if !rough {
		return slacktest.Delay(r.between(0, 60*time.Millisecond), slacktest.OK())
	}
	switch drawn := r.intN(100); {
	case drawn < 15:
		return slacktest.RateLimited(time.Duration(1+r.intN(2)) * time.Second)
	case drawn < 20:
		return slacktest.Hold(nil, slacktest.OK()) // the post is not accepted
	case drawn < 45:
		return unclear(r)
	case drawn < 65:
		a.note(post)
		return slacktest.Stored(unclear(r))
	default:
		return slacktest.Delay(r.between(0, slackTimeout*3/10), slacktest.OK())
	}
}

// unclear draws an answer after which a worker cannot know whether Slack took the post.
func unclear(r *random) slacktest.Answer {
	return []slacktest.Answer{
		slacktest.Status(500+r.intN(4), "try again"), slacktest.Code("internal_error"), slacktest.Code("fatal_error"), slacktest.HTML(502),
		slacktest.Truncated(1000, `{"ok`), slacktest.Reset(),
	}[r.intN(6)]
}

// toLookUp returns the answer to a look-up of posts.
func (a *answers) toLookUp() slacktest.Answer {
	rough, r := a.draw("look-up")
	switch drawn := r.intN(100); {
	case rough && drawn < 10:
		return slacktest.RateLimited(time.Second)
	case rough && drawn < 40:
		return unclear(r)
	default:
		return slacktest.OK()
	}
}

// draw returns whether Slack answers roughly, and the source of the answer to the next attempt at a request.
func (a *answers) draw(name string) (rough bool, source *random) {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[name]++
	return a.rough, newRandom(a.seed, hash.Sum64()+a.asked[name])
}

func (a *answers) note(post slacktest.Post) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := nameOf(post)
	a.lost[name] = append(a.lost[name], post.Received)
}

// withheld reports whether a post was accepted without an answer.
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
	doubtfulText = regexp.MustCompile(`; including (\d+) that an earlier digest may have reported`)
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
