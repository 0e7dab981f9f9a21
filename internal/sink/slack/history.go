package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/slack-go/slack"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/sink/client"
)

const (
	messagesInPage = 200
	// maxHistoryPages bounds the requests of one reading. At one message a second the pages hold more than an hour.
	maxHistoryPages = 25
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

// history reads the messages of channels and threads. Callers that ask about the same thread share a reading. No reading answers a caller
// that asked after the reading had begun.
type history struct {
	web   *web
	pacer Pacer // nil: none
	now   func() time.Time

	mu      sync.Mutex
	waiting map[thread]*reading // readings that have not begun
	newest  map[thread]*reading // readings that have not ended; a waiting reading follows the one before
	behind  time.Duration       // Slack's clock was behind the clock here by so much
}

func newHistory(w *web, pacer Pacer) *history {
	return &history{web: w, pacer: pacer, now: time.Now, waiting: make(map[thread]*reading), newest: make(map[thread]*reading)}
}

// reading is one pass over the messages since a time.
type reading struct {
	since   time.Time // guarded by history.mu until the reading begins
	callers int       // that wait for it; guarded by history.mu
	cancel  context.CancelFunc
	before  <-chan struct{} // closed when the reading of the thread before has ended; nil: there is none

	ended   chan struct{} // closed behind the fields below
	posts   map[string]string
	failure *sink.Error
}

// codeTooMany is the code of a list or a reading that did not reach its end.
const codeTooMany = "too_many"

// posts returns the ts of each named post since a time, by its name. The failure has the code codeTooMany if the thread has more messages
// than a reading reads.
func (h *history) posts(ctx context.Context, of thread, since time.Time) (map[string]string, *sink.Error) {
	r := h.join(of, since)
	select {
	case <-r.ended:
		return r.posts, r.failure
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		if r.callers--; r.callers == 0 {
			r.cancel()
			if h.waiting[of] == r {
				delete(h.waiting, of) // it will fail, so nobody else may join it
			}
		}
		return nil, &sink.Error{Class: sink.Transient, Channel: of.method(), Err: fmt.Errorf("not looked up: %w", ctx.Err())}
	}
}

// join returns the waiting reading of a thread. If there is none, it starts one.
func (h *history) join(of thread, since time.Time) *reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.waiting[of]; r != nil {
		r.callers++
		if since.Before(r.since) {
			r.since = since
		}
		return r
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reading{since: since, callers: 1, cancel: cancel, ended: make(chan struct{})}
	if before := h.newest[of]; before != nil {
		r.before = before.ended
	}
	h.waiting[of], h.newest[of] = r, r
	go h.run(ctx, of, r)
	return r
}

// run reads a thread when the reading before has ended and the pacer allows a request.
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
	if r.failure = h.awaitTurn(ctx, of); r.failure != nil {
		return
	}
	h.mu.Lock()
	if h.waiting[of] == r {
		delete(h.waiting, of)
	}
	since, behind := r.since, h.behind
	h.mu.Unlock()
	for {
		r.posts, r.failure = h.read(ctx, of, since.Add(-behind-clockMargin))
		h.mu.Lock()
		more := h.behind - behind
		behind = h.behind
		h.mu.Unlock()
		if r.failure != nil || more < clockMargin/2 {
			return
		}
	}
}

// awaitTurn waits until one more request is allowed.
func (h *history) awaitTurn(ctx context.Context, of thread) *sink.Error {
	if h.pacer == nil {
		return nil
	}
	if err := h.pacer.AwaitLookUp(ctx); err != nil {
		return &sink.Error{Class: sink.Transient, Channel: of.method(), Err: fmt.Errorf("not looked up: %w", err)}
	}
	return nil
}

// read reads the pages since a time of Slack's clock. The first request is allowed already.
func (h *history) read(ctx context.Context, of thread, since time.Time) (map[string]string, *sink.Error) {
	posts := make(map[string]string)
	cursor, limit := "", messagesInPage
	for pages := 0; pages < maxHistoryPages; {
		if pages > 0 || limit < messagesInPage {
			if failure := h.awaitTurn(ctx, of); failure != nil {
				return nil, failure
			}
		}
		page, failure := h.page(ctx, of, since, cursor, limit)
		switch {
		case failure != nil && page.cut && limit > 1:
			limit /= 2
			continue
		case failure != nil:
			if failure.Class == sink.RateLimited && h.pacer != nil {
				h.pacer.PauseLookUps(ctx, failure.RetryAfter)
			}
			return nil, failure
		}
		for _, message := range page.Messages {
			if name := message.name(); name != "" {
				posts[name] = message.Timestamp
			}
		}
		if cursor = page.Metadata.Cursor; cursor == "" {
			return posts, nil
		}
		pages++
	}
	return nil, &sink.Error{Class: sink.Unknown, Code: codeTooMany, Channel: of.method(), Err: fmt.Errorf("more than %d messages since %s", maxHistoryPages*messagesInPage, since.UTC().Format(time.RFC3339))}
}

// page is what is read of an answer. Everything else, such as blocks of other apps, does not matter.
type page struct {
	Messages []message `json:"messages"`
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
	if len(m.Metadata) == 0 || json.Unmarshal(m.Metadata, &carried) != nil || carried.EventType != metadataEvent || !messageTimestamp.MatchString(m.Timestamp) {
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
		a := decodeAnswer(r.Body)
		// slack-go reports an error for blocks that it does not know.
		a.proves = json.Unmarshal(r.Body, &p) == nil && p.Messages != nil
		return judge(r, err, a)
	}
	reply, failure := h.web.client.Ask(ctx, call)
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

// timeOf returns the time of a ts.
func timeOf(ts string) time.Time {
	seconds, _ := strconv.ParseFloat(ts, 64)
	return time.UnixMicro(int64(seconds * 1e6)).UTC()
}

// sleep waits, unless the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
