package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// ReadyReason is the label of events in the room that a worker may take at once.
const ReadyReason = "ready"

// Backlog counts the events without an outcome.
type Backlog struct {
	Stream, Room *jetstream.StreamInfo

	Waiting int64 // not delivered to any worker
	Unacked int64 // delivered and not acknowledged
	InRoom  map[string]int64
	Queues  map[string]int64 // of channels, by room.Token
	Paused  []Pause
}

// Pause is a consumer that delivers nothing, because somebody paused it.
type Pause struct {
	Stream   string    `json:"stream"`
	Consumer string    `json:"consumer"`
	Until    time.Time `json:"until"`
}

// String names the consumer and the command that ends the pause.
func (p Pause) String() string {
	return fmt.Sprintf("consumer %s of stream %s delivers nothing until %s; nats consumer resume %s %s", p.Consumer, p.Stream,
		p.Until.Format(time.RFC3339), p.Stream, p.Consumer)
}

// Backlog asks the server how many events have no outcome. It takes and changes nothing.
func (n Names) Backlog(ctx context.Context, js jetstream.JetStream) (b Backlog, err error) {
	if b.Stream, err = Info(ctx, js, n.Stream, ""); err != nil {
		return b, err
	}
	if b.Room, err = Info(ctx, js, n.RoomStream, n.Room().Waiting(room.Channel)); err != nil {
		return b, err
	}
	b.InRoom, b.Queues = map[string]int64{string(room.Channel): 0}, make(map[string]int64)
	for subject, messages := range b.Room.State.Subjects {
		if token, ok := n.Room().ChannelOf(subject); ok {
			b.Queues[token] += int64(messages)                //nolint:gosec // a count of messages on a disk
			b.InRoom[string(room.Channel)] += int64(messages) //nolint:gosec // likewise
		}
	}
	if b.Waiting, b.Unacked, err = b.pending(ctx, js, n.Stream, n.Consumer); err != nil {
		return b, err
	}
	ready, unacked, err := b.pending(ctx, js, n.RoomStream, n.roomConsumer())
	if err != nil {
		return b, err
	}
	b.InRoom[ReadyReason] = ready + unacked
	for _, reason := range room.Scheduled() {
		waiting, _, err := b.pending(ctx, js, n.RoomStream, n.waitingConsumer(reason))
		if errors.Is(err, jetstream.ErrConsumerNotFound) { // no worker has created the consumer yet
			continue
		}
		if err != nil {
			return b, err
		}
		b.InRoom[string(reason)] = waiting
	}
	return b, nil
}

// Info requests the state of a stream, with the number of messages on each of the subjects.
func Info(ctx context.Context, js jetstream.JetStream, name, subjects string) (*jetstream.StreamInfo, error) {
	stream, err := js.Stream(ctx, name)
	if err == nil && subjects == "" {
		return stream.CachedInfo(), nil
	}
	var info *jetstream.StreamInfo
	if err == nil {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the state of stream %q: %w", name, err)
	}
	return info, nil
}

// pending counts the messages of a consumer, and adds its pause to the backlog.
func (b *Backlog) pending(ctx context.Context, js jetstream.JetStream, stream, name string) (waiting, unacked int64, err error) {
	consumer, err := js.Consumer(ctx, stream, name)
	if err != nil {
		return 0, 0, fmt.Errorf("asking for the state of consumer %q: %w", name, err)
	}
	info := consumer.CachedInfo()
	if until := pausedUntil(info); !until.IsZero() {
		b.Paused = append(b.Paused, Pause{stream, name, until})
	}
	return int64(info.NumPending), int64(info.NumAckPending), nil //nolint:gosec // a count of messages on a disk
}
