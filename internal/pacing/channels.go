package pacing

import (
	"context"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// Channels knows the IDs of channels and the routes to them, as any instance has noted them. Its methods may be called concurrently. Their
// errors have the classes of the package script: no instance can tell alone what another one has noted.
type Channels struct {
	shared    shared
	available func() bool // whether to ask Redis; nil: always
}

// NewChannels makes a Channels. It does not talk to the server.
func NewChannels(runner *script.Runner, available func() bool) *Channels {
	return &Channels{shared{runner: runner}, available}
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

// Routes notes the routes of this instance, as text, and returns those of other instances, the last noted first.
func (c *Channels) Routes(ctx context.Context, own string) (others []string, err error) {
	if err := c.reachable(); err != nil {
		return nil, err
	}
	return c.shared.routes(ctx, own)
}

func (c *Channels) call(ctx context.Context, channel, id string) (string, error) {
	if err := c.reachable(); err != nil {
		return "", err
	}
	return c.shared.channelID(ctx, channel, id)
}

// reachable returns an error while Redis is not to be asked.
func (c *Channels) reachable() error {
	if c.available != nil && !c.available() {
		return script.ErrUnavailable
	}
	return nil
}
