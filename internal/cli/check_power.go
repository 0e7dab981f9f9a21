package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// power names the row of docs/delivery.md that shows what a power failure costs this deployment, as far as the servers tell.
func (c *check) power(ctx context.Context, connection *stream.Connection, client redis.UniversalClient) {
	var row, unknown []string
	note := func(setting, value, remedy string) {
		if value == "" {
			unknown = append(unknown, setting+" ("+remedy+")")
		} else {
			row = append(row, setting+" "+value)
		}
	}
	interval, _ := stream.SyncInterval(ctx, connection.Conn)
	note("servers of NATS", c.keepers(ctx, setup.JetStream(connection)), "the stream cannot be read")
	note("sync_interval", interval, "the NATS user may not ask for it")
	note("appendfsync", appendfsync(ctx, client), "the Redis user may not ask for it")
	text := strings.Join(row, ", ")
	if len(unknown) > 0 {
		text += "; unknown: " + strings.Join(unknown, ", ")
	}
	c.ok("power failures", fmt.Sprintf("%s; the table of docs/delivery.md#power-failures has what each setting loses", strings.TrimPrefix(text, "; ")))
}

// keepers is how many servers keep the events; "" if that is unknown.
func (c *check) keepers(ctx context.Context, js jetstream.JetStream) string {
	events, err := js.Stream(ctx, setup.Names(c.settings).Stream)
	if err != nil {
		return ""
	}
	return fmt.Sprint(events.CachedInfo().Config.Replicas)
}

// appendfsync is how often Redis syncs its append-only file, "none" without such a file, and "" if the user may not ask.
func appendfsync(ctx context.Context, client redis.UniversalClient) string {
	settings, err := client.ConfigGet(ctx, "append*").Result()
	switch {
	case err != nil:
		return ""
	case settings["appendonly"] == "no":
		return "none"
	}
	return settings["appendfsync"]
}
