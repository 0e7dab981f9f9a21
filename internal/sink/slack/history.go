package slack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
)

const (
	messagesInPage = 200
	// maxHistoryPages bounds the requests of one reading. At one message a second the pages hold more than a day.
	maxHistoryPages = 500
	// maxHistoryPage bounds one page, in bytes. A page that is larger is read again with fewer messages.
	maxHistoryPage = 8 << 20
	// clockMargin is by how much the clocks of Slack and of this process may differ without a second reading.
	clockMargin = time.Minute
	// maxClockGap bounds what an answer can say about Slack's clock.
	maxClockGap = time.Hour
)

// thread is a channel or, with a timestamp, a thread in it.
type thread struct{ channel, timestamp string }

// method names the method that reads the messages.
func (t thread) method() string {
	if t.timestamp != "" {
		return "conversations.replies"
	}
	return "conversations.history"
}

// history reads the messages of channels and threads. Callers that ask about the same thread share a reading, and so do workers. A caller that
// asked after a reading had begun learns from it only that a post is there, never that a post is missing.
type history struct {
	web   *web
	share func(thread string) Reading
	now   func() time.Time

	mu      sync.Mutex
	waiting map[thread]*reading // readings that have not begun
	newest  map[thread]*reading // readings that have not ended; a waiting reading follows the one before
	behind  time.Duration       // Slack's clock was behind the clock here by so much
}

func newHistory(w *web, share func(thread string) Reading) *history {
	if share == nil {
		share = func(string) Reading { return alone{} }
	}
	return &history{web: w, share: share, now: time.Now, waiting: make(map[thread]*reading), newest: make(map[thread]*reading)}
}

// reading is one pass over the messages since a time, until every wanted post is found.
type reading struct {
	since   time.Time          // guarded by history.mu until the reading begins
	wanted  map[string]*wanted // what has no answer yet, by name; guarded by history.mu until the reading begins
	callers int                // that wait for it; guarded by history.mu
	joined  int                // callers that have ever waited for it; guarded by history.mu
	cancel  context.CancelFunc
	before  <-chan struct{} // closed when the reading of the thread before has ended; nil: there is none

	posts    map[string]string // the ts of all posts that this worker has read, by name; at most maxShared
	leftOut  bool              // posts lacks some of them
	readsAll bool              // this worker has read all messages since the time

	ended   chan struct{} // closed behind failure
	failure *sink.Error   // why the posts that are not found may be there
}

// wanted is a post that callers look for.
type wanted struct {
	joined   int           // number of the last caller that has joined
	answered chan struct{} // closed behind ts
	ts       string        // "": the post is not there
}

// codeTooMany is the code of a list or a reading that did not reach its end.
const codeTooMany = "too_many"

// find returns the ts of a post, "" if the post is certainly not among the messages since a time. A post that was found is an answer, whatever
// becomes of the rest of the reading. The failure has the code codeTooMany if the thread has more messages than a reading reads.
func (h *history) find(ctx context.Context, of thread, since time.Time, name string) (ts string, failure *sink.Error) {
	r, post := h.join(of, since, name)
	defer h.leave(of, r)
	select {
	case <-post.answered:
	case <-r.ended:
		if post.ts == "" {
			return "", r.failure
		}
	case <-ctx.Done():
		return "", notLookedUp(of.method(), ctx.Err())
	}
	return post.ts, nil
}

// join adds a caller to the waiting reading of a thread. If there is none, it starts one.
func (h *history) join(of thread, since time.Time, name string) (*reading, *wanted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.waiting[of]
	if r == nil {
		ctx, cancel := context.WithCancel(context.Background())
		r = &reading{since: since, wanted: make(map[string]*wanted), cancel: cancel, posts: make(map[string]string), ended: make(chan struct{})}
		if before := h.newest[of]; before != nil {
			r.before = before.ended
		}
		h.waiting[of], h.newest[of] = r, r
		go h.run(ctx, of, r)
	}
	r.callers++
	r.joined++
	if since.Before(r.since) {
		r.since = since
	}
	if r.wanted[name] == nil {
		r.wanted[name] = &wanted{answered: make(chan struct{})}
	}
	r.wanted[name].joined = r.joined
	return r, r.wanted[name]
}

// leave ends a reading that nobody waits for any more.
func (h *history) leave(of thread, r *reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.callers--; r.callers == 0 {
		r.cancel()
		if h.waiting[of] == r {
			delete(h.waiting, of) // it will fail, so nobody else may join it
		}
	}
}

// run reads a thread when the reading before has ended and the pacer allows a request, unless the readings of other workers answer all callers.
func (h *history) run(ctx context.Context, of thread, r *reading) {
	defer r.cancel()
	defer close(r.ended)
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.newest[of] == r {
			delete(h.newest, of)
		}
		if h.waiting[of] == r {
			delete(h.waiting, of)
		}
	}()
	if r.before != nil {
		select {
		case <-r.before:
		case <-ctx.Done():
		}
	}
	mine, areAnswered := h.awaitOthers(ctx, of, r)
	if areAnswered {
		return
	}
	defer func() { mine.End(context.WithoutCancel(ctx), r.posts, r.readsAll && !r.leftOut) }()
	if r.failure = h.web.awaitTurn(ctx, of.method()); r.failure != nil {
		return
	}
	r.failure = h.passes(ctx, of, r, mine)
}

// passes reads a thread. If Slack's clock turns out to be further behind than was known, it reads the thread again, from an earlier time.
func (h *history) passes(ctx context.Context, of thread, r *reading, mine Reading) *sink.Error {
	h.mu.Lock()
	if h.waiting[of] == r {
		delete(h.waiting, of)
	}
	now, since, behind := h.now(), r.since, h.behind
	h.mu.Unlock()
	since = now.Add(-mine.Begin(ctx, now.Sub(since)))
	for {
		allFound, failure := h.read(ctx, of, r, since.Add(-behind-clockMargin))
		h.mu.Lock()
		more := h.behind - behind
		behind = h.behind
		h.mu.Unlock()
		isFarEnough := more < clockMargin/2
		r.readsAll = r.readsAll && isFarEnough
		if failure != nil || allFound || isFarEnough {
			return failure
		}
		if failure := h.web.awaitTurn(ctx, of.method()); failure != nil {
			return failure
		}
	}
}

// read reads the pages since a time of Slack's clock, until every wanted post is found. The first request is allowed already.
func (h *history) read(ctx context.Context, of thread, r *reading, since time.Time) (allFound bool, failure *sink.Error) {
	cursor, limit := "", messagesInPage
	r.readsAll = false
	for pages := 0; pages < maxHistoryPages; {
		if pages > 0 || limit < messagesInPage {
			if failure := h.web.awaitTurn(ctx, of.method()); failure != nil {
				return false, failure
			}
		}
		page, failure := h.page(ctx, of, since, cursor, limit)
		switch {
		case failure != nil && page.cut && limit > 1:
			limit /= 2
			continue
		case failure != nil:
			return false, failure
		}
		cursor = page.Metadata.Cursor
		r.note(page.Messages)
		r.readsAll = cursor == "" && !page.More
		if allFound = len(r.wanted) == 0; allFound || r.readsAll {
			return allFound, nil
		}
		if cursor == "" {
			err := errors.New("there are more messages, and no cursor to read them")
			return false, &sink.Error{Class: sink.Transient, Channel: of.method(), Err: err}
		}
		pages++
	}
	err := fmt.Errorf("more than %d messages since %s", maxHistoryPages*messagesInPage, since.UTC().Format(time.RFC3339))
	return false, &sink.Error{Class: sink.Unknown, Code: codeTooMany, Channel: of.method(), Err: err}
}

// page is what is read of an answer. Everything else, such as blocks of other apps, does not matter.
type page struct {
	Messages []message `json:"messages"`
	More     bool      `json:"has_more"`
	Metadata struct {
		Cursor string `json:"next_cursor"`
	} `json:"response_metadata"`

	cut bool // the answer was larger than maxHistoryPage
}

type message struct {
	Timestamp string          `json:"ts"`
	Metadata  json.RawMessage `json:"metadata"` // of any app, in any form
}

// name returns the name of a post of any deployment; "" for other messages.
func (m message) name() string {
	var carried struct {
		EventType string            `json:"event_type"`
		Payload   map[string]string `json:"event_payload"`
	}
	if len(m.Metadata) == 0 || json.Unmarshal(m.Metadata, &carried) != nil || carried.EventType != metadataEvent || !sink.IsTimestamp(m.Timestamp) {
		return ""
	}
	return carried.Payload[metadataName]
}

// page makes one request.
func (h *history) page(ctx context.Context, of thread, since time.Time, cursor string, limit int) (p page, failure *sink.Error) {
	oldest := fmt.Sprintf("%d.%06d", since.Unix(), since.Nanosecond()/1000)
	call := h.web.method(of.method(), func(ctx context.Context) error {
		if of.timestamp != "" {
			_, _, _, err := h.web.api.GetConversationRepliesContext(ctx, &slack.GetConversationRepliesParameters{
				ChannelID: of.channel, Timestamp: of.timestamp, Cursor: cursor, Oldest: oldest, Limit: limit, IncludeAllMetadata: true,
			})
			return err
		}
		_, err := h.web.api.GetConversationHistoryContext(ctx, &slack.GetConversationHistoryParameters{
			ChannelID: of.channel, Cursor: cursor, Oldest: oldest, Limit: limit, IncludeAllMetadata: true,
		})
		return err
	})
	call.Limit = maxHistoryPage
	call.Judge = func(r client.Reply, err error) client.Verdict {
		// slack-go reports an error for blocks that it does not know.
		return judgeLookUp(r, err, json.Unmarshal(r.Body, &p) == nil && p.Messages != nil)
	}
	reply, failure := h.web.lookUp(ctx, call)
	p.cut = len(reply.Body) >= maxHistoryPage
	h.compareClocks(reply.Header)
	return p, failure
}

// compareClocks notes by how much Slack's clock is behind the clock here: the history is read from that much earlier.
func (h *history) compareClocks(header http.Header) {
	date, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return
	}
	behind := h.now().Sub(date).Truncate(time.Second)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behind = min(max(0, behind), maxClockGap)
}
