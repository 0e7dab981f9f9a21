package consume

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// channelAckPending bounds the messages of one channel's queue that all instances together have unacknowledged.
const channelAckPending = 1024

// RoomConfig is the room as it is provisioned. A stream with message schedules can only throw away its oldest messages when it is
// full, so it has no bound: workers bound what each first-level category has there.
func (n Names) RoomConfig() jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:              n.RoomStream,
		Subjects:          []string{n.room().All()},
		Retention:         jetstream.WorkQueuePolicy,
		Storage:           jetstream.FileStorage,
		Duplicates:        duplicateWindow,
		AllowMsgSchedules: true,
		AllowRollup:       true,
	}
	if n.MaxAge > 0 {
		config.MaxAge = n.MaxAge + n.LongestDelay
		config.Duplicates = min(duplicateWindow, config.MaxAge)
	}
	return config
}

func (n Names) roomConsumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: n.roomConsumer(), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
		MaxAckPending: maxAckPending, FilterSubjects: n.room().Ready(),
	}
}

// roomTopology is the room as it was found or made.
type roomTopology struct {
	stream   jetstream.Stream
	consumer jetstream.Consumer // of what may be taken at once
	names    Names
	js       jetstream.JetStream
	ackWait  time.Duration

	mu        sync.Mutex
	consumers map[string]jetstream.Consumer // by name, those that were found or made
}

// provisionRoom finds the room, or makes it. What exists is never altered.
func (n Names) provisionRoom(ctx context.Context, js jetstream.JetStream, ackWait time.Duration, create bool, logger *slog.Logger) (*roomTopology, error) {
	stream, err := n.ensureStream(ctx, js, n.RoomConfig(), create, logger)
	if err != nil {
		return nil, fmt.Errorf("looking for the room, stream %q: %w", n.RoomStream, err)
	}
	if err := n.fitRoom(stream.CachedInfo().Config); err != nil {
		return nil, err
	}
	at := &roomTopology{stream: stream, names: n, js: js, ackWait: ackWait, consumers: make(map[string]jetstream.Consumer)}
	if at.consumer, err = at.find(ctx, n.roomConsumerConfig(ackWait)); err != nil {
		return nil, err
	}
	return at, n.fitRoomConsumer(at.consumer.CachedInfo().Config)
}

// channel is the consumer of a channel's queue, by the channel's token.
func (p *roomTopology) channel(ctx context.Context, token string) (jetstream.Consumer, error) {
	return p.find(ctx, jetstream.ConsumerConfig{
		Durable: p.names.channelConsumer(token), AckPolicy: jetstream.AckExplicitPolicy, AckWait: p.ackWait, MaxDeliver: -1,
		MaxAckPending: channelAckPending, FilterSubject: p.names.room().ChannelFilter(token),
	})
}

// waiting counts the schedules of a reason that are not due, by a consumer that takes no messages.
func (p *roomTopology) waiting(ctx context.Context, reason room.Reason) (int, error) {
	consumer, err := p.find(ctx, jetstream.ConsumerConfig{
		Durable: p.names.waitingConsumer(reason), AckPolicy: jetstream.AckExplicitPolicy, AckWait: p.ackWait,
		MaxDeliver: -1, FilterSubject: p.names.room().Waiting(reason),
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	info, err := consumer.Info(ctx)
	if err != nil {
		p.forget(consumer.CachedInfo().Name)
		return 0, fmt.Errorf("counting what waits for a %s: %w", reason, err)
	}
	return int(info.NumPending), nil //nolint:gosec // far below the end of an int
}

// find finds a consumer of the room, or makes it.
func (p *roomTopology) find(ctx context.Context, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	p.mu.Lock()
	known := p.consumers[config.Durable]
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	consumer, _, err := ensureConsumer(ctx, p.js, p.names.RoomStream, config, true)
	if err != nil {
		return nil, fmt.Errorf("looking for consumer %q of the room: %w", config.Durable, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.consumers[config.Durable] = consumer
	return consumer, nil
}

// forget has a consumer looked for anew.
func (p *roomTopology) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.consumers, name)
}
