package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/room"
)

// mostUnnamed bounds the queues of channels without a name here that are looked at: a room that others can write to may have many.
const mostUnnamed = 20

// queues finds consumers of the channels' queues that workers cannot use, and events that wait for channels that the settings do not name. A worker
// creates an absent consumer at the first event that waits.
func (c *check) queues(ctx context.Context) (findings []Finding) {
	channels, waiting := make(map[string]string), make(map[string]uint64) // by token
	if info, err := Info(ctx, c.js, c.Names.RoomStream, c.Names.Room().Waiting(room.Channel)); err == nil {
		for subject, events := range info.State.Subjects {
			if token, isQueue := c.Names.Room().ChannelOf(subject); isQueue && (waiting[token] > 0 || len(waiting) < mostUnnamed) {
				channels[token] = "a channel that the settings here do not name"
				waiting[token] += events
			}
		}
	}
	for _, channel := range c.further.Channels {
		channels[room.Token(channel)] = "the channel " + channel
		delete(waiting, room.Token(channel))
	}
	for _, token := range slices.Sorted(maps.Keys(channels)) {
		name := c.Names.ChannelConsumer(token)
		found := about("nats consumer %q of stream %q, of %s", name, c.Names.RoomStream, channels[token])
		consumer, err := c.js.Consumer(ctx, c.Names.RoomStream, name)
		if events := waiting[token]; events > 0 {
			findings = append(findings, found(fmt.Sprintf("%d events wait; every worker reads the queue", events), nil))
		}
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		case err != nil:
			return append(findings, found("", c.explain(err)))
		default:
			info := consumer.CachedInfo()
			if err := c.Names.fitQueue(info, leaseOf(info.Config)); err != nil { // workers correct the lease
				findings = append(findings, found("", err))
			}
		}
	}
	return findings
}
