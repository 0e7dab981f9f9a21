package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

// power names the row of docs/delivery.md that shows what a power failure costs this deployment, or the settings that are not known. It adds
// no finding without JetStream.
func (c *check) power(ctx context.Context, connection *stream.Connection, client redis.UniversalClient) {
	var row, unknown []string
	note := func(setting, value, remedy string) {
		if value == "" {
			unknown = append(unknown, setting+" ("+remedy+")")
		} else {
			row = append(row, setting+" "+value)
		}
	}
	servers, err := c.keepers(ctx, setup.JetStream(connection))
	if stream.LacksJetStream(err) { // the check of the streams reports it
		return
	}
	fsync := c.appendfsync(ctx, client)
	interval, _ := stream.SyncInterval(ctx, connection.Conn)
	note("servers of NATS", servers, "the stream cannot be read")
	note("sync_interval", interval, "the NATS user may not ask for it")
	note("appendfsync", fsync, "the Redis user may not ask for it")
	text := strings.Join(row, ", ")
	if len(unknown) > 0 {
		c.ok("power failures", fmt.Sprintf("%s; the table of docs/delivery.md#power-failures has what each setting loses",
			strings.TrimPrefix(text+"; unknown: "+strings.Join(unknown, ", "), "; ")))
		return
	}
	c.ok("power failures", fmt.Sprintf("%s: %s of docs/delivery.md#power-failures", text, powerRow(servers, interval, fsync)))
}

// powerRow names the row of docs/delivery.md#power-failures for these settings. If there is none, it names the next row that loses less.
func powerRow(servers, interval, fsync string) string {
	row, more := []string{"1", "always", "everysec"}, ""
	if servers >= "3" { // JetStream keeps at most five replicas
		row[0] = "3"
	}
	if every, err := time.ParseDuration(interval); err == nil {
		row[1] = "10s"
		if every > 10*time.Second {
			row[1] = "2m"
		}
		if every > 2*time.Minute {
			more = "more than "
		}
	}
	switch fsync {
	case "always":
		row[2] = fsync
	case "everysec":
	default:
		more = "more than "
	}
	return more + "row " + strings.Join(row, ", ")
}

// keepers returns how many servers keep the events.
func (c *check) keepers(ctx context.Context, js jetstream.JetStream) (string, error) {
	events, err := js.Stream(ctx, setup.Names(c.settings).Stream)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(events.CachedInfo().Config.Replicas), nil
}

// appendfsync is how often Redis syncs its append-only file, "none" without such a file, and "" if the user may not ask.
func (c *check) appendfsync(ctx context.Context, client redis.UniversalClient) string {
	node, err := setup.RedisOwner(ctx, client, c.settings.Redis)
	if err != nil {
		return ""
	}
	settings, err := node.ConfigGet(ctx, "append*").Result()
	switch {
	case err != nil:
		return ""
	case settings["appendonly"] == "no":
		return "none"
	}
	return settings["appendfsync"]
}
