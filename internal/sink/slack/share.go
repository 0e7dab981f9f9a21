package slack

import (
	"context"
	"regexp"
	"time"
)

// maxShared bounds the posts of a reading that are shared. A post takes about 50 bytes.
const maxShared = 1000

// postName is the form of the names of posts: see sink.NameOf.
var postName = regexp.MustCompile(`^[a-z2-7]{32}$`)

// Reading is the part of this worker in the reading of a thread by all workers: pacing.Reading. One goroutine uses it, for one reading.
type Reading interface {
	// Await returns the posts of another worker's reading, their ts by their names. If isAll is true, no other posts were there when the
	// question was asked, since a time that long ago; calls with the same number ask the same question. If posts is nil, this worker has to read.
	// After an error it reads for itself alone.
	Await(ctx context.Context, question int, ago time.Duration) (posts map[string]string, isAll bool, err error)
	// Begin records that this worker's reading begins, and returns for how long it has to go back: for ago or longer.
	Begin(ctx context.Context, ago time.Duration) time.Duration
	// End shares what this worker has read. isAll is true if there were no other posts.
	End(ctx context.Context, posts map[string]string, isAll bool)
}

// unshared is the Reading of a worker that reads for itself alone.
type unshared struct{}

// Await implements Reading.
func (unshared) Await(context.Context, int, time.Duration) (map[string]string, bool, error) {
	return nil, false, nil
}

// Begin implements Reading.
func (unshared) Begin(_ context.Context, ago time.Duration) time.Duration { return ago }

// End implements Reading.
func (unshared) End(context.Context, map[string]string, bool) {}

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
	for {
		h.mu.Lock()
		question, ago := r.joined, h.now().Sub(r.since)
		h.mu.Unlock()
		posts, isAll, err := mine.Await(ctx, question, ago)
		switch {
		case err != nil:
			return unshared{}, false
		case posts == nil:
			return mine, false
		case h.answer(of, r, posts, isAll, question):
			return unshared{}, true
		}
	}
}

// answer answers the callers of a waiting reading with another worker's posts. It reports whether every caller has an answer. A caller that
// joined after the question has none from a post that is missing.
func (h *history) answer(of thread, r *reading, posts map[string]string, isAll bool, question int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range r.wanted {
		if ts := posts[name]; messageTimestamp.MatchString(ts) {
			r.found(name, ts)
		}
	}
	areAnswered := r.isComplete() || isAll && r.joined == question
	if areAnswered && h.waiting[of] == r {
		delete(h.waiting, of)
	}
	return areAnswered
}

// note answers the callers whose posts are among the messages, and collects the posts for other workers.
func (r *reading) note(messages []message) {
	for _, message := range messages {
		name := message.name()
		r.found(name, message.Timestamp)
		switch {
		case r.posts[name] != "" || !postName.MatchString(name): // nobody looks for a name of another form
		case len(r.posts) == maxShared:
			r.leftOut = true
		default:
			r.posts[name] = message.Timestamp
		}
	}
}

// found answers the callers that look for a post.
func (r *reading) found(name, ts string) {
	if post := r.wanted[name]; post != nil && post.ts == "" {
		post.ts = ts
		close(post.found)
	}
}

// isComplete reports whether every wanted post is found.
func (r *reading) isComplete() bool {
	for _, post := range r.wanted {
		if post.ts == "" {
			return false
		}
	}
	return true
}
