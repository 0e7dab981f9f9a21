package consume

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
)

// mostUnserved bounds the channel queues that wait for a puller.
const mostUnserved = 4096

// channelQueues knows which channels' queues in the room this worker pulls from. Its methods may be called concurrently.
type channelQueues struct {
	streams  *stream.Client
	sink     Sink
	logger   *slog.Logger
	served   sync.Map    // tokens of the channels whose queues are served: the channel, "" if not known
	unserved chan source // queues waiting for a puller
}

func newChannelQueues(streams *stream.Client, by Sink, logger *slog.Logger) *channelQueues {
	return &channelQueues{streams: streams, sink: by, logger: logger, unserved: make(chan source, mostUnserved)}
}

// serve starts a puller for a channel's queue, once.
func (q *channelQueues) serve(queue source) {
	if _, served := q.served.LoadOrStore(queue.token(), queue.channel); !served {
		q.unserved <- queue
	}
}

// list lists the channel queues that are served from the start: the channels of the settings, and, by token, the channels with events in
// the room.
func (q *channelQueues) list(ctx context.Context) []source {
	var queues []source
	for _, channel := range q.sink.Destinations() {
		queues = append(queues, source{inRoom: true, channel: channel})
	}
	subjects := q.streams.Names.Room()
	asking, cancel := context.WithTimeout(ctx, stream.APITimeout)
	defer cancel()
	info, err := q.streams.Layout().Room.Stream.Info(asking, jetstream.WithSubjectFilter(subjects.ChannelFilter("*")))
	if ctx.Err() != nil {
		return queues // the worker stops
	}
	if err != nil {
		q.logger.Warn("queues of channels that the settings no longer name are not served", "error", err)
		return queues
	}
	for subject := range info.State.Subjects {
		token, isQueue := subjects.ChannelOf(subject)
		if isQueue && !slices.ContainsFunc(queues, func(queue source) bool { return queue.token() == token }) {
			queues = append(queues, source{inRoom: true, onlyToken: token})
		}
	}
	return queues
}

// serves reports whether this worker pulls from the queue with a token.
func (q *channelQueues) serves(token string) bool {
	_, served := q.served.Load(token)
	return served
}

// next passes on queues that a puller is to serve.
func (q *channelQueues) next() <-chan source { return q.unserved }

// learn records the channel of a token.
func (q *channelQueues) learn(token, channel string) { q.served.Store(token, channel) }

// channelOf returns the channel of a token; "" if it is not known.
func (q *channelQueues) channelOf(token string) string {
	channel, _ := q.served.Load(token)
	known, _ := channel.(string)
	return known
}
