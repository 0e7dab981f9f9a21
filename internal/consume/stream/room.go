package stream

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// channelAckPending bounds the unacknowledged messages of one channel's queue, for all instances together.
const channelAckPending = 1024

// RoomConfig returns the provisioned configuration of the room. A full stream with message schedules can only discard its oldest messages,
// so the room has no bound: workers bound the share of each first-level category.
func (n Names) RoomConfig() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:              n.RoomStream,
		Subjects:          []string{n.Room().All()},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		Duplicates:        duplicateWindow,
		AllowMsgSchedules: true,
		AllowRollup:       true,
	}
	if n.MaxAge > 0 {
		config.MaxAge = n.MaxAge + n.LongestWait
		config.Duplicates = min(duplicateWindow, config.MaxAge)
	}
	return config
}

// RoomConsumerConfig returns the configuration of the consumer that takes due schedules, the parts of split bodies, and replays.
func (n Names) RoomConsumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: n.roomConsumer(), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: MaxAckPending, FilterSubjects: n.Room().Ready(),
	}
}

// Room is the stream of waiting events, with its consumers.
type Room struct {
	Stream    jetstream.Stream
	Consumer  jetstream.Consumer // takes due schedules, parts and replays
	names     Names
	js        jetstream.JetStream
	ackWait   time.Duration // the shortest of the worker's consumers
	consumers sync.Map      // a jetstream.Consumer for each name that was found or created
}

// room finds the room and its consumer, for a worker whose other messages have a lease. It also creates the consumer of an existing room.
func (c *Client) room(ctx context.Context, lease time.Duration) (*Room, error) {
	n := c.Names
	stream, err := c.stream(ctx, n.RoomConfig())
	if err != nil {
		return nil, fmt.Errorf("looking for the room, stream %q: %w", n.RoomStream, err)
	}
	if err := n.fitRoom(stream.CachedInfo().Config); err != nil {
		return nil, err
	}
	at := &Room{Stream: stream, names: n, js: c.JetStream, ackWait: c.options.AckWait}
	if at.Consumer, err = at.find(ctx, n.RoomConsumerConfig(c.options.AckWait)); err != nil {
		return nil, err
	}
	config := at.Consumer.CachedInfo().Config
	at.ackWait = min(lease, leaseOf(config))
	return at, n.fitRoomConsumer(config)
}

// ChannelConsumerConfig returns the configuration of the consumer of a channel's queue, by the channel's token.
func (n Names) ChannelConsumerConfig(token string, ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: n.ChannelConsumer(token), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: channelAckPending, FilterSubject: n.Room().ChannelFilter(token),
	}
}

// Channel returns the consumer of a channel's queue, by the channel's token. It creates an absent one. Only workers make these consumers, so
// Channel also gives them the lease of the worker's other messages, which may have changed.
func (r *Room) Channel(ctx context.Context, token string) (jetstream.Consumer, error) {
	consumer, err := r.find(ctx, r.names.ChannelConsumerConfig(token, r.ackWait))
	if err != nil || leaseOf(consumer.CachedInfo().Config) == r.ackWait {
		return consumer, err
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	config := consumer.CachedInfo().Config
	config.AckWait = r.ackWait
	if consumer, err = r.js.UpdateConsumer(ctx, r.names.RoomStream, config); err != nil {
		r.consumers.Delete(config.Durable) // the next use looks it up
		return nil, fmt.Errorf("changing the acknowledgement wait of consumer %q of the room: %w", config.Durable, err)
	}
	r.consumers.Store(config.Durable, consumer)
	return consumer, nil
}

// Waiting counts the schedules of a reason that are not due, by a consumer that takes no messages.
func (r *Room) Waiting(ctx context.Context, reason room.Reason) (int, error) {
	consumer, err := r.find(ctx, jetstream.ConsumerConfig{
		Durable: r.names.waitingConsumer(reason), AckPolicy: jetstream.AckExplicitPolicy, AckWait: r.ackWait,
		MaxDeliver: -1, FilterSubject: r.names.Room().Waiting(reason),
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	info, err := consumer.Info(ctx)
	if err != nil {
		r.consumers.Delete(consumer.CachedInfo().Name)
		return 0, fmt.Errorf("counting what waits for a %s: %w", reason, err)
	}
	return int(info.NumPending), nil //nolint:gosec // far below the end of an int
}

// Messages counts all messages of the room.
func (r *Room) Messages(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	info, err := r.Stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("counting the messages of the room: %w", err)
	}
	return info.State.Msgs, nil
}

func (r *Room) find(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	known, _ := r.consumers.Load(config.Durable)
	if consumer, isKnown := known.(jetstream.Consumer); isKnown {
		return consumer, nil
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	consumer, _, err := ensureConsumer(ctx, r.js, r.names.RoomStream, config)
	if err != nil {
		return nil, fmt.Errorf("looking for consumer %q of the room: %w", config.Durable, err)
	}
	r.consumers.Store(config.Durable, consumer)
	return consumer, nil
}
