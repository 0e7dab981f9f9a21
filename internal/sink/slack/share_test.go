package slack

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// worker is a sink that shares its readings, and how many of its calls Redis has answered.
type worker struct {
	*Sink
	asked atomic.Int32
}

// workers share their readings in one Redis. No look-up is allowed before open is closed.
type workers struct {
	t     *testing.T
	all   []*worker
	redis *servertest.Redis
	pacer *gatedPacer
	finds sync.WaitGroup
}

func startWorkers(t *testing.T, count int, o Options) *workers {
	t.Helper()
	w := &workers{t: t, redis: servertest.StartRedis(t), pacer: &gatedPacer{open: make(chan struct{})}}
	o.Pacer = w.pacer
	for range count {
		made := new(worker)
		client := scripttest.NewClient(t, redis.Options{Addr: w.redis.Addr, MaxRetries: -1})
		client.AddHook(scripttest.Hook(func(command redis.Cmder, err error) {
			if err == nil && strings.HasPrefix(command.Name(), "eval") {
				made.asked.Add(1)
			}
		}))
		readings := pacing.NewReadings(script.NewRunner(script.Options{Client: client, Prefix: "workers", Timeout: scripttest.Patience}), nil)
		o.Readings = func(thread string) Reading { return readings.Of(thread) }
		made.Sink = newTestSlack(t, o)
		w.all = append(w.all, made)
	}
	return w
}

// look has a worker look for the post of an event, and wants the result. It returns when the question is in Redis. The first worker gets the claim.
func (w *workers) look(at int, id string, want sink.Presence) {
	w.t.Helper()
	worker, d := w.all[at], doubtful(eventNamed(id))
	w.finds.Go(func() { wantPresence(w.t, worker, d, want) })
	var asked int32
	testkit.Eventually(w.t, "the caller has joined", func() bool {
		worker.history.mu.Lock()
		defer worker.history.mu.Unlock()
		asked = worker.asked.Load()
		r := worker.history.waiting[thread{channel: "C0000001"}]
		return r != nil && r.wanted[d.Delivery.Name] != nil
	})
	if at == 0 {
		asked = -1
	}
	testkit.Eventually(w.t, "the question is in redis", func() bool { return worker.asked.Load() > asked+1 }) // a call that was under way may lack it
}

// allow lets the workers make requests to Slack.
func (w *workers) allow() { close(w.pacer.open) }

func eventNamed(id string) sink.Delivery {
	return named(event.Event{ID: id, Category: "payments", Title: "t"})
}

// wantOneRequest lets the workers read, and wants one request and one turn of all of them.
func (w *workers) wantOneRequest(t *testing.T, server *slacktest.Server) {
	t.Helper()
	w.allow()
	w.finds.Wait()
	testkit.Equal(t, server.Calls(slacktest.MethodHistory), 1, "requests of all workers")
	testkit.Equal(t, w.pacer.asked.Load(), 1, "turns of all workers")
}

// TestWorkersShareAReading has four workers in doubt about one channel, each about several posts. One request answers all of them.
func TestWorkersShareAReading(t *testing.T) {
	t.Parallel()
	server := slacktest.New(t)
	w := startWorkers(t, 4, lookingUp(server))
	for i := range w.all {
		testkit.Must(w.all[0].Send(t.Context(), eventNamed(fmt.Sprint("posted-", i))))(t)
	}
	for i := range w.all {
		w.look(i, fmt.Sprint("posted-", i), sink.Present)
		w.look(i, fmt.Sprint("missing-", i), sink.Absent)
	}
	w.wantOneRequest(t, server)
}

// TestSharedReadingBeganBefore has a worker ask during the reading of another worker, which does not show the post. It is not taken for missing,
// and neither is the post of a caller that joins a question that was asked in time.
func TestSharedReadingBeganBefore(t *testing.T) {
	t.Parallel()
	testkit.Each(t, map[string]bool{"the worker asks late": false, "a caller joins late": true}, func(t *testing.T, asksInTime bool) {
		server := slacktest.New(t)
		w := startWorkers(t, 2, lookingUp(server))
		release := make(chan struct{})
		server.RespondTo(slacktest.MethodHistory, func() slacktest.Answer {
			if server.Calls(slacktest.MethodHistory) == 1 {
				return slacktest.Hold(release, slacktest.Status(200, `{"ok":true,"messages":[]}`))
			}
			return slacktest.OK()
		})
		w.look(0, "one", sink.Absent)
		if asksInTime {
			w.look(1, "two", sink.Absent)
		}
		w.allow()
		testkit.Eventually(t, "the first request is under way", func() bool { return server.Calls(slacktest.MethodHistory) == 1 })
		testkit.Must(w.all[0].Send(t.Context(), eventNamed("late")))(t)
		w.look(1, "late", sink.Present)
		close(release)
		w.finds.Wait()
		testkit.Equal(t, server.Calls(slacktest.MethodHistory), 2, "requests of two workers")
	})
}

func pageOf(cursor string, ids ...string) string {
	var messages []string
	for _, id := range ids {
		messages = append(messages, fmt.Sprintf(`{"ts":"1.3","metadata":{"event_type":"notifier_event","event_payload":{"name":"%s"}}}`, eventNamed(id).Name))
	}
	return fmt.Sprintf(`{"ok":true,"messages":[%s],"response_metadata":{"next_cursor":"%s"}}`, strings.Join(messages, ","), cursor)
}

// TestSharedReadingIsCut has a reading that does not reach the end: it has found its post, it fails, or it has more posts than it shares. Another
// worker learns from it what is there, and reads for itself what is not.
func TestSharedReadingIsCut(t *testing.T) {
	t.Parallel()
	many := []string{"there"}
	for i := range maxShared {
		many = append(many, fmt.Sprint("many-", i))
	}
	for name, test := range map[string]struct {
		first string // page
		looks string // for what the first worker looks
		fails bool   // the first request for the second page fails
		calls int32  // for a post that is there, and then for one that is not
	}{
		"has found its post":            {pageOf("more", "there", "own"), "own", false, 1 + 2},
		"fails":                         {pageOf("more", "there"), "missing", true, 2 + 2},
		"has more posts than it shares": {pageOf("", many...), "own", false, 1 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			failed := make(chan struct{}, 1)
			o := answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				switch {
				case r.FormValue("cursor") == "":
					_, _ = io.WriteString(w, test.first)
				case test.fails && len(failed) == 0:
					failed <- struct{}{}
					w.WriteHeader(http.StatusInternalServerError)
				default:
					_, _ = io.WriteString(w, pageOf(""))
				}
			})
			o.Channel, o.LookUp = "C0000001", true
			w := startWorkers(t, 3, o)
			w.finds.Go(func() { _, _ = w.all[0].Find(t.Context(), doubtful(eventNamed(test.looks))) })
			testkit.Eventually(t, "the first worker has the claim", func() bool { return w.all[0].asked.Load() > 0 })
			w.look(1, "there", sink.Present)
			w.look(2, "missing", sink.Absent)
			w.allow()
			w.finds.Wait()
			testkit.Equal(t, calls.Load(), test.calls, "requests")
		})
	}
}

// TestSharedReadingWithAWrongClock has the clock of a worker ahead of Slack's clock. The worker finds its post, but has not gone back as far as the
// question of another worker does.
func TestSharedReadingWithAWrongClock(t *testing.T) {
	t.Parallel()
	const ahead, ago = 5 * time.Minute, 10 * time.Minute
	var calls atomic.Int32
	o := answeredBy(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		ids := []string{"own"}
		if timeOf(r.FormValue("oldest")).Before(time.Now().Add(-ago + time.Minute)) {
			ids = append(ids, "older")
		}
		_, _ = io.WriteString(w, pageOf("", ids...))
	})
	o.Channel, o.LookUp = "C0000001", true
	w := startWorkers(t, 2, o)
	now := time.Now
	w.all[0].history.now = func() time.Time { return now().Add(ahead) }
	d := sink.Doubt{Delivery: eventNamed("own"), First: now().Add(ahead - ago)}
	w.finds.Go(func() { wantPresence(t, w.all[0], d, sink.Present) })
	testkit.Eventually(t, "the first worker has the claim", func() bool { return w.all[0].asked.Load() > 0 })
	d = sink.Doubt{Delivery: eventNamed("older"), First: now().Add(-ago)}
	w.finds.Go(func() { wantPresence(t, w.all[1], d, sink.Present) })
	testkit.Eventually(t, "the question is in redis", func() bool { return w.all[1].asked.Load() > 0 })
	w.allow()
	w.finds.Wait()
	testkit.Equal(t, calls.Load(), 2, "requests of two workers")
}

// TestSharingFails has Redis be unavailable from the start, and after a worker has claimed the reading. Each worker reads for itself.
func TestSharingFails(t *testing.T) {
	t.Parallel()
	for _, claimed := range []bool{false, true} {
		server := slacktest.New(t)
		w := startWorkers(t, 2, lookingUp(server))
		testkit.Must(w.all[0].Send(t.Context(), eventNamed("posted")))(t)
		if claimed {
			w.look(0, "missing", sink.Absent)
			w.look(1, "posted", sink.Present)
		}
		w.redis.Kill()
		if !claimed {
			w.finds.Go(func() { wantPresence(t, w.all[0], doubtful(eventNamed("missing")), sink.Absent) })
			w.finds.Go(func() { wantPresence(t, w.all[1], doubtful(eventNamed("posted")), sink.Present) })
		}
		w.allow()
		w.finds.Wait()
		testkit.Equal(t, server.Calls(slacktest.MethodHistory), 2, "requests of two workers")
	}
}

func timeOf(ts string) time.Time {
	seconds, _ := strconv.ParseFloat(ts, 64)
	return time.UnixMicro(int64(seconds * 1e6)).UTC()
}
