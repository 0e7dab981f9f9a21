package slack

import (
	"context"
	"regexp"
	"time"

	"github.com/seed-4578ace9/notifier/internal/sink"
)

// maxShared bounds the posts of a reading that are shared. A post takes about 50 bytes.
const maxShared = 1000

// postName is the form of the names of posts: see sink.NameOf.
var postName = regexp.MustCompile(`^[a-z2-7]{32}$`)

// Reading is the part of this worker in the reading of a thread by all workers: pacing.Reading. One goroutine uses it, for one reading.
type Reading interface {
	// Await returns the posts of another worker's reading, their ts by their names. When the questions up to number answered were asked, no
	// other posts were there. next returns the number of the newest question, and how long ago the oldest message is that matters; it may be
	// called repeatedly. If posts is nil, this worker has to read. After an error it reads for itself alone.
	Await(ctx context.Context, next func() (number int, ago time.Duration)) (posts map[string]string, answered int, err error)
	// Begin records that this worker's reading begins, and returns for how long it has to go back: for ago or longer.
	Begin(ctx context.Context, ago time.Duration) time.Duration
	// End shares what this worker has read. isAll is true if there were no other posts.
	End(ctx context.Context, posts map[string]string, isAll bool)
}

// name returns the name of a thread for all workers.
func (t thread) name() string {
	if t.timestamp != "" {
		return t.channel + ":" + t.timestamp
	}
	return t.channel
}

// awaitOthers answers the callers of a waiting reading from the readings of other workers. If that leaves a caller without an answer, it
// returns false, and this worker reads.
func (h *history) awaitOthers(ctx context.Context, of thread, r *reading) (mine Reading, areAnswered bool) {
	mine = h.share(of.name())
	next := func() (int, time.Duration) {
		h.mu.Lock()
		defer h.mu.Unlock()
		return r.joined, h.now().Sub(r.since)
	}
	for {
		posts, answered, err := mine.Await(ctx, next)
		switch {
		case err != nil:
			return alone{}, false
		case posts == nil:
			return mine, false
		case h.answer(of, r, posts, answered):
			return alone{}, true
		}
	}
}

// answer answers callers of a waiting reading with another worker's posts. A post that is missing is an answer for the callers that have joined as
// the first ones, up to a number. It reports whether every caller has an answer.
func (h *history) answer(of thread, r *reading, posts map[string]string, answered int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, post := range r.wanted {
		if ts := posts[name]; sink.IsTimestamp(ts) {
			r.answer(name, ts)
		} else if ts == "" && post.joined <= answered {
			r.answer(name, "")
		}
	}
	areAnswered := len(r.wanted) == 0
	if areAnswered && h.waiting[of] == r {
		delete(h.waiting, of)
	}
	return areAnswered
}

// note answers the callers whose posts are among the messages, and collects the posts for other workers.
func (r *reading) note(messages []message) {
	for _, message := range messages {
		name := message.name()
		r.answer(name, message.Timestamp)
		switch {
		case r.posts[name] != "" || !postName.MatchString(name): // nobody looks for a name of another form
		case len(r.posts) == maxShared:
			r.leftOut = true
		default:
			r.posts[name] = message.Timestamp
		}
	}
}

// answer answers the callers that look for a post; ts is "" if the post is not there.
func (r *reading) answer(name, ts string) {
	if post := r.wanted[name]; post != nil {
		post.ts = ts
		close(post.answered)
		delete(r.wanted, name)
	}
}
