//go:build !nodev

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// maxStorm is about what one laptop's JetStream stores in a second, one event after the other.
const maxStorm = 10_000

// stormCategories are what the storm is about.
var stormCategories = []string{
	"payments", "errors", "deploys", "signups", "security", "latency", "disk", "memory", "backups", "cron",
	"database", "queue", "cache", "search", "email", "billing", "login", "api", "network", "certificates",
}

// stormTicks is how many times a second the storm publishes.
const stormTicks = 20

// publishStorm publishes events evenly until the context ends.
func (d *dev) publishStorm(ctx context.Context, settings config.Config, logger *slog.Logger) {
	connection, err := connectNATS(settings.NATS, slog.New(slog.DiscardHandler))
	if err != nil {
		logger.Error("the storm cannot start", "error", err)
		return
	}
	defer connection.Conn.Close()
	js, err := jetstream.New(connection.Conn)
	if err != nil {
		logger.Error("the storm cannot start", "error", err)
		return
	}
	ticker := time.NewTicker(time.Second / stormTicks)
	defer ticker.Stop()
	published, start := 0, time.Now()
	for {
		due := int(time.Since(start).Seconds() * float64(d.storm))
		for ; published < due && ctx.Err() == nil; published++ {
			if err := publishGust(ctx, js, settings.NATS.Subject, published); err != nil && ctx.Err() == nil {
				logger.Warn("an event of the storm was not stored", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func publishGust(ctx context.Context, js jetstream.JetStream, subject string, n int) error {
	category := stormCategories[pick(len(stormCategories))]
	severities := []string{"info", "warning", "error", "critical"}
	body, err := json.Marshal(map[string]any{
		"title":    fmt.Sprintf("%s event %d", category, n+1),
		"severity": severities[n%len(severities)],
		"source":   "storm",
	})
	if err != nil {
		return err
	}
	_, err = js.PublishMsg(ctx, &nats.Msg{Subject: subject + "." + category, Data: body})
	return err
}

// pick draws a number below n, the small ones far more often: some categories are always louder than others.
func pick(n int) int {
	x := rand.Float64() //nolint:gosec // no secret depends on it
	return int(x * x * x * float64(n))
}
