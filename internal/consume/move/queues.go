package move

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/streamscan"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

const mostUnserved = 4096

// Queues knows which channels' queues in the room this worker pulls from. Its methods may be called concurrently.
type Queues struct {
	streams  *stream.Client
	named    func() []string // the channels of the settings
	logger   *slog.Logger
	served   sync.Map             // tokens of the channels whose queues are served: the channel, "" if not known
	Unserved chan received.Source // queues waiting for a puller
}

// NewQueues returns queues of which none is served. Named returns the channels of the settings.
func NewQueues(streams *stream.Client, named func() []string, logger *slog.Logger) *Queues {
	return &Queues{streams: streams, named: named, logger: logger, Unserved: make(chan received.Source, mostUnserved)}
}

// Serve has a channel's queue served, once.
func (q *Queues) Serve(queue received.Source) {
	if _, served := q.served.LoadOrStore(queue.Token, queue.Channel); !served {
		q.Unserved <- queue
	}
}

// lookedAtOnce bounds the tokens whose queues are looked at concurrently.
const lookedAtOnce = 16

// Each calls take for each channel queue that is served from the start: the channels of the settings, then, by token, the channels with events
// in the room. A token with forged messages alone has no queue: each queue takes a consumer. It calls take from one goroutine at a time.
func (q *Queues) Each(ctx context.Context, take func(received.Source)) {
	var known []string
	for _, channel := range q.named() {
		queue := received.QueueOf(channel)
		known = append(known, queue.Token)
		take(queue)
	}
	tokens, err := q.tokens(ctx)
	var (
		looking sync.WaitGroup
		mu      sync.Mutex
	)
	atOnce := make(chan struct{}, lookedAtOnce)
	for _, token := range tokens {
		if slices.Contains(known, token) {
			continue
		}
		atOnce <- struct{}{}
		looking.Go(func() {
			defer func() { <-atOnce }()
			found, failure := q.hasEvents(ctx, token)
			mu.Lock()
			defer mu.Unlock()
			if found {
				take(received.Source{InRoom: true, Token: token})
			}
			err = cmp.Or(err, failure)
		})
	}
	if looking.Wait(); err != nil && ctx.Err() == nil {
		q.logger.Warn("queues of channels that the settings no longer name are not served", "error", err)
	}
}

func (q *Queues) tokens(ctx context.Context) (tokens []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	subjects := q.streams.Names.Room()
	info, err := q.streams.Layout().Room.Stream.Info(ctx, jetstream.WithSubjectFilter(subjects.ChannelFilter("*")))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		if token, isQueue := subjects.ChannelOf(subject); isQueue {
			tokens = append(tokens, token)
		}
	}
	slices.Sort(tokens)
	return slices.Compact(tokens), nil // a queue has a subject for each first level
}

// hasEvents reports whether a worker has written a message of the queue with a token.
func (q *Queues) hasEvents(ctx context.Context, token string) (bool, error) {
	for m, err := range streamscan.From(ctx, q.streams.Layout().Room.Stream, q.streams.Names.Room().ChannelFilter(token), 1) {
		switch {
		case err != nil:
			return false, fmt.Errorf("reading the queue %s: %w", token, err)
		case trusted.IsMarked(m.Header):
			return true, nil
		}
	}
	return false, nil
}

// EachToken calls take for the token of each queue, as Each does.
func (q *Queues) EachToken(ctx context.Context, take func(token string)) {
	q.Each(ctx, func(queue received.Source) { take(queue.Token) })
}

// Serves reports whether the queue with a token is served.
func (q *Queues) Serves(token string) bool {
	_, served := q.served.Load(token)
	return served
}

// Learn remembers the channel of a token.
func (q *Queues) Learn(token, channel string) { q.served.Store(token, channel) }

// ChannelOf returns the channel of a token; "" if it is not known.
func (q *Queues) ChannelOf(token string) string {
	channel, _ := q.served.Load(token)
	known, _ := channel.(string)
	return known
}
