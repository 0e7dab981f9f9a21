package pacing

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// Channels knows the IDs of channels and the routes to them, as any instance has noted them. Its methods may be called concurrently. Their
// errors have the classes of the package script: without Redis, an instance does not know what other instances have noted.
type Channels struct {
	shared shared
}

// NewChannels makes a Channels. It does not talk to the server.
func NewChannels(runner *script.Runner, available func() bool) *Channels {
	return &Channels{shared{runner: runner, available: available}}
}

// ID returns the ID of a channel; "" if no instance has noted it.
func (c *Channels) ID(ctx context.Context, channel string) (string, error) {
	return c.call(ctx, channel, "")
}

// Note notes the ID of a channel for all instances.
func (c *Channels) Note(ctx context.Context, channel, id string) error {
	_, err := c.call(ctx, channel, id)
	return err
}

// Routes notes the routes of this instance, as text, and returns the routes of other instances, the newest first.
func (c *Channels) Routes(ctx context.Context, own string) (others []string, err error) {
	if !c.shared.isAvailable() {
		return nil, script.ErrUnavailable
	}
	return c.shared.runner.RunTexts(ctx, "the routes of other workers", lua.Routes, c.shared.runner.Keys("routes"), []any{own})
}

// call returns the ID of a channel. If id is not empty, it becomes the ID of the channel.
func (c *Channels) call(ctx context.Context, channel, id string) (string, error) {
	if !c.shared.isAvailable() {
		return "", script.ErrUnavailable
	}
	ids, err := c.shared.runner.RunTexts(ctx, "the ID of a channel", lua.Channel, c.shared.runner.Keys("id:"+channel), []any{id})
	switch {
	case err != nil:
		return "", err
	case len(ids) != 1:
		return "", script.ErrReply
	}
	return ids[0], nil
}
