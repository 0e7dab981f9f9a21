//go:build !nodev

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// maxStorm is about what one laptop's JetStream stores in a second, one event after the other.
const maxStorm = 10_000

// stormTicks is how many times a second the storm publishes.
const stormTicks = 20

// storm publishes events evenly, and incidents at their times.
type storm struct {
	js      jetstream.JetStream
	subject string
	logger  *slog.Logger
	start   time.Time
}

// publishStorm publishes events until the context ends.
func (d *dev) publishStorm(ctx context.Context, logger *slog.Logger) {
	connection, err := connectNATS(d.settings.NATS, "", slog.New(slog.DiscardHandler))
	if err != nil {
		logger.Error("the storm cannot start", "error", err)
		return
	}
	defer connection.Conn.Close()
	s := storm{js: jetStream(connection), subject: d.settings.NATS.Subject, logger: logger, start: time.Now()}
	ticker := time.NewTicker(time.Second / stormTicks)
	defer ticker.Stop()
	published, incidents := 0, 0
	for ctx.Err() == nil {
		passed := time.Since(s.start)
		for ; passed >= incidentAt(incidents); incidents++ {
			s.publishIncident(ctx, incidents)
		}
		due := int(passed.Seconds() * float64(d.storm))
		for ; published < due && ctx.Err() == nil; published++ {
			category, body := drawStormEvent()
			s.publish(ctx, category, body)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (s *storm) publish(ctx context.Context, category, body string) {
	subject := s.subject
	if category != "" {
		subject += "." + category
	}
	if _, err := s.js.Publish(ctx, subject, []byte(body)); err != nil && ctx.Err() == nil {
		s.logger.Warn("an event of the storm was not stored", "error", err)
	}
}

// incident is an event with a story, published at its time of each round.
type incident struct {
	at       time.Duration
	category string // "" if the body names it
	body     string // ROUND stands for what no other round has
}

const incidentRound = 30 * time.Second

// incidents are in the order of their times. Those that have to be sent come first, while slots are free. What cannot be read names no
// category in its subject: no limit drops it unread.
var incidents = []incident{
	{0, "database", `{"title":"Replica is 41 s behind the primary","severity":"critical","source":"postgres","status":"firing","key":"db-02",` +
		`"fields":{"host":"db-02"},"link":"https://grafana.example.com/d/replication"}`},
	{0, "deploys", versionIsLive},
	{0, "deploys", versionIsLive},
	{2 * time.Second, "", `{"category":"billing","title":"Invoice 20931 could not be`},
	{6 * time.Second, "database", `{"title":"Replica has caught up with the primary","source":"postgres","status":"resolved","key":"db-02"}`},
}

// versionIsLive is published twice, with one ID.
const versionIsLive = `{"id":"deploy-ROUND","title":"Version 2.41 is live in eu-west","source":"ci","fields":{"commit":"9f31c2e"}}`

// incidentAt is when the n-th incident is due, counted from the start of the storm.
func incidentAt(n int) time.Duration {
	round := n / len(incidents)
	return time.Duration(round)*incidentRound + incidents[n%len(incidents)].at
}

func (s *storm) publishIncident(ctx context.Context, n int) {
	round := fmt.Sprintf("%d-%d", s.start.UnixMilli(), n/len(incidents))
	due := incidents[n%len(incidents)]
	s.publish(ctx, due.category, strings.ReplaceAll(due.body, "ROUND", round))
}

func drawStormEvent() (category, body string) {
	kind := stormKinds[pick(len(stormKinds))]
	severity, title, _ := strings.Cut(kind.titles[rand.IntN(len(kind.titles))], " ") //nolint:gosec // no secret depends on it
	value := fmt.Sprintf(kind.value, 1+rand.IntN(kind.values))                       //nolint:gosec // likewise
	event := map[string]any{
		"title": title, "severity": severity, "source": kind.source, "fields": map[string]string{kind.field: value},
	}
	if kind.link != "" {
		event["link"] = kind.link + value
	}
	encoded, err := json.Marshal(event)
	if err != nil {
		panic(err) // texts can always be encoded
	}
	return kind.category, string(encoded)
}

// pick draws a number below n, the small ones far more often: some categories are always louder than others.
func pick(n int) int {
	x := rand.Float64() //nolint:gosec // no secret depends on it
	return int(x * x * x * float64(n))
}
