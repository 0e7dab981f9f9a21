package consume

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestCluster makes everything with three replicas in a cluster of three. Under load, the leader is killed, and then another server loses
// its disk. Each stored event is delivered, and each dead letter is stored.
func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartNATSCluster(t, 3)
	f := newFixtureOn(t, &servertest.NATS{URL: cluster.URL})
	w := f.newWorker(func(o *setup) { o.client.AckWait = 3 * time.Second })
	testkit.Must(overrides.Open(t.Context(), f.js, overrides.Options{Name: "limits", Provision: true, Logger: slog.New(slog.DiscardHandler)}))(t)
	testkit.Must(w.streams.Layout().Room.Channel(t.Context(), room.Token("#payments")))(t)
	testkit.NoError(t, testNames.Journal.Provision(t.Context(), f.js))
	f.requireReplicas(3, testNames.Journal.Stream, testNames.Stream, testNames.RoomStream, testNames.DeadLetterStream, "KV_limits")
	c := f.connect(cluster.URL)
	f.eventually("it is connected", c.Conn.IsConnected)
	for _, finding := range stream.Check(t.Context(), stream.Options{Connection: c, Names: testNames, AckWait: 3 * time.Second}, stream.Further{Bucket: "notifier-limits"}) {
		if finding.Err != nil && finding.Subject != "nats account" {
			t.Errorf("check of %s: got %v, want no error", finding.Subject, finding.Err)
		}
	}

	f.run(w)
	load := f.load()
	// A request that arrives during an election gets no answer.
	leader := func(stream string) (server *servertest.NATS) {
		f.eventually(stream+" has a leader", func() bool {
			ctx, done := context.WithTimeout(t.Context(), time.Second)
			defer done()
			s, err := f.js.Stream(ctx, stream)
			if err != nil || s.CachedInfo().Cluster.Leader == "" {
				return false
			}
			server = cluster.Named(s.CachedInfo().Cluster.Leader)
			return true
		})
		return server
	}
	killed := leader(testNames.Stream)
	some := int64(hostile.Times(t, 100, 1000))
	load.await(some)
	killed.Kill()
	load.await(some)
	killed.Restart()
	cluster.AwaitReady()
	load.await(200)
	// A server without its disk may elect one that is behind, and then what both lack is lost.
	f.requireReplicas(3, testNames.Stream, testNames.RoomStream, testNames.DeadLetterStream)
	bare := leader(testNames.DeadLetterStream)
	cluster.LoseDisk(bare)
	load.await(some)
	bare.Restart()
	cluster.AwaitReady()
	load.await(200)
	events, letters := load.stop()
	t.Logf("stored: %d events and %d letters", len(events), letters)

	f.eventually("all events are delivered", func() bool {
		f.sink.mu.Lock()
		defer f.sink.mu.Unlock()
		for _, id := range events {
			if f.sink.attempts[id] == 0 {
				return false
			}
		}
		return true
	})
	f.eventually("nothing is left", func() bool {
		stream, err := f.js.Stream(t.Context(), testNames.Stream)
		return err == nil && stream.CachedInfo().State.Msgs == 0
	})
	if got := len(f.deadLetters()); got < min(letters, testNames.DeadLetters.PerSubject) {
		t.Errorf("dead letters: got %d, want at least %d", got, min(letters, testNames.DeadLetters.PerSubject))
	}
	f.requireReplicas(3, testNames.Stream, testNames.RoomStream, testNames.DeadLetterStream)
}

// loadPause follows each try, which leaves processors to the servers: without a leader a try ends at once.
const loadPause = 5 * time.Millisecond

// load publishes events, and now and then a broken body.
type load struct {
	f       *fixture
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	stored  atomic.Int64
	events  []string
	letters int
}

func (f *fixture) load() *load {
	f.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	l := &load{f: f, cancel: cancel}
	f.Cleanup(func() { cancel(); l.ended.Wait() })
	l.ended.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprintf("event-%d", i)
			body := fmt.Sprintf(`{"id": %q, "title": "an event"}`, id)
			broken := i%50 == 0
			if broken {
				body = "{"
			}
			// The message ID makes it safe to publish again until the server confirms the message.
			for ctx.Err() == nil {
				trying, done := context.WithTimeout(ctx, time.Second)
				_, err := f.js.Publish(trying, "notify.payments", []byte(body), jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0))
				done()
				time.Sleep(loadPause)
				if err != nil {
					continue
				}
				if broken {
					l.letters++
				} else {
					l.events = append(l.events, id)
				}
				l.stored.Add(1)
				break
			}
		}
	})
	return l
}

// await waits until a number of further messages is stored. Only the wait for each message has a bound.
func (l *load) await(more int64) {
	l.f.Helper()
	for until := l.stored.Load() + more; l.stored.Load() < until; {
		before := l.stored.Load()
		l.f.eventually("another one is stored", func() bool { return l.stored.Load() > before })
	}
}

func (l *load) stop() (events []string, letters int) {
	l.cancel()
	l.ended.Wait()
	return l.events, l.letters
}

// requireReplicas waits until streams and their consumers have a number of current replicas.
func (f *fixture) requireReplicas(want int, streams ...string) {
	f.Helper()
	for _, name := range streams {
		f.eventually(fmt.Sprintf("stream %s has %d replicas", name, want), func() bool {
			stream, err := f.js.Stream(f.Context(), name)
			if err != nil {
				return false
			}
			info := stream.CachedInfo()
			current := 1
			for _, peer := range info.Cluster.Replicas {
				if peer.Current && !peer.Offline {
					current++
				}
			}
			consumers := stream.ListConsumers(f.Context())
			replicated := true // those that workers make for a moment are not
			for consumer := range consumers.Info() {
				if consumer.Config.Durable != "" && (consumer.Cluster == nil || len(consumer.Cluster.Replicas) != want-1) {
					replicated = false
				}
			}
			return info.Config.Replicas == want && current == want && replicated
		})
	}
}
