package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// Backlog counts the events that have no outcome.
type Backlog struct {
	Stream, Room *jetstream.StreamInfo

	Waiting int64 // not delivered to any worker
	Unacked int64 // delivered and not acknowledged
	InRoom  map[string]int64
	Queues  map[string]int64 // of channels, by room.Token
}

// Backlog asks how many events have no outcome. It takes and changes nothing.
func (n Names) Backlog(ctx context.Context, js jetstream.JetStream) (b Backlog, err error) {
	if b.Stream, err = streamInfo(ctx, js, n.Stream, ""); err != nil {
		return b, err
	}
	if b.Room, err = streamInfo(ctx, js, n.RoomStream, n.room().Waiting(room.Channel)); err != nil {
		return b, err
	}
	b.InRoom, b.Queues = map[string]int64{string(room.Channel): 0}, make(map[string]int64)
	for subject, messages := range b.Room.State.Subjects {
		if token, ok := n.room().ChannelOf(subject); ok {
			b.Queues[token] += int64(messages)                //nolint:gosec // a count of messages on a disk
			b.InRoom[string(room.Channel)] += int64(messages) //nolint:gosec // likewise
		}
	}
	if b.Waiting, b.Unacked, err = pending(ctx, js, n.Stream, n.Consumer); err != nil {
		return b, err
	}
	ready, unacked, err := pending(ctx, js, n.RoomStream, n.roomConsumer())
	if err != nil {
		return b, err
	}
	b.InRoom[readyReason] = ready + unacked
	for _, reason := range room.Scheduled() {
		waiting, _, err := pending(ctx, js, n.RoomStream, n.waitingConsumer(reason))
		if errors.Is(err, jetstream.ErrConsumerNotFound) { // no worker has looked yet
			continue
		}
		if err != nil {
			return b, err
		}
		b.InRoom[string(reason)] = waiting
	}
	return b, nil
}

// streamInfo asks for the state of a stream, with its messages on each of some subjects.
func streamInfo(ctx context.Context, js jetstream.JetStream, name, subjects string) (*jetstream.StreamInfo, error) {
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

func pending(ctx context.Context, js jetstream.JetStream, stream, name string) (waiting, unacked int64, err error) {
	consumer, err := js.Consumer(ctx, stream, name)
	if err != nil {
		return 0, 0, fmt.Errorf("asking for the state of consumer %q: %w", name, err)
	}
	info := consumer.CachedInfo()
	return int64(info.NumPending), int64(info.NumAckPending), nil //nolint:gosec // a count of messages on a disk
}

// DeadLetterCounts counts the dead letters by reason.
func (n Names) DeadLetterCounts(ctx context.Context, js jetstream.JetStream) (*jetstream.StreamInfo, map[string]int64, error) {
	info, err := streamInfo(ctx, js, n.DeadLetterStream, n.DeadLetterSubject+".>")
	if err != nil {
		return nil, nil, err
	}
	counts := make(map[string]int64)
	for subject, messages := range info.State.Subjects {
		reason, _, _ := strings.Cut(strings.TrimPrefix(subject, n.DeadLetterSubject+"."), ".")
		counts[reason] += int64(messages) //nolint:gosec // a count of messages on a disk
	}
	return info, counts, nil
}
