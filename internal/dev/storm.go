package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

const (
	maxStorm   = 10_000 // roughly how many sequential publishes per second JetStream sustains on a laptop
	stormTicks = 20     // bursts per second
)

// incident is an event with a story, published once in each round of the storm.
type incident struct {
	at       time.Duration // since the start of the round
	category string        // "": the body names it
	body     string        // ROUND stands for the number of the round
}

const (
	incidentRound = 30 * time.Second
	versionIsLive = `{"id":"deploy-ROUND","title":"Version 2.41 is live in eu-west","source":"ci","fields":{"commit":"9f31c2e"}}`
)

// incidents are in the order of their times. Those that must be sent come first, while slots are free. The malformed event has no category
// in its subject, so the deny cache cannot drop it before it is decoded.
var incidents = []incident{
	{0, "database", `{"title":"Replica is 41 s behind the primary","severity":"critical","source":"postgres","status":"firing","key":"db-02",` +
		`"fields":{"host":"db-02"},"link":"https://grafana.example.com/d/replication"}`},
	{0, "deploys", versionIsLive},
	{0, "deploys", versionIsLive}, // a duplicate
	{2 * time.Second, "", `{"category":"billing","title":"Invoice 20931 could not be`},
	{6 * time.Second, "database", `{"title":"Replica has caught up with the primary","source":"postgres","status":"resolved","key":"db-02"}`},
}

// incidentAt returns when the n-th incident is due, counted from the start of the storm.
func incidentAt(n int) time.Duration {
	return time.Duration(n/len(incidents))*incidentRound + incidents[n%len(incidents)].at
}

// publishStorm publishes events evenly, and incidents at their times, until the context ends.
func publishStorm(ctx context.Context, settings config.NATS, perSecond int, shown *display) {
	connection, err := setup.NATS(settings, "", slog.New(slog.DiscardHandler))
	if err != nil {
		shown.Line("the storm cannot start: %v", err)
		return
	}
	defer connection.Conn.Close()
	js, start := setup.JetStream(connection), time.Now()
	publish := func(category, body string) {
		subject := strings.TrimSuffix(settings.Subject+"."+category, ".")
		if _, err := js.Publish(ctx, subject, []byte(body)); err != nil && ctx.Err() == nil {
			shown.Line("an event of the storm was not stored: %v", err)
		}
	}
	ticker := time.NewTicker(time.Second / stormTicks)
	defer ticker.Stop()
	for published, n := 0, 0; ctx.Err() == nil; {
		passed := time.Since(start)
		for ; passed >= incidentAt(n); n++ {
			due, round := incidents[n%len(incidents)], fmt.Sprintf("%d-%d", start.UnixMilli(), n/len(incidents))
			publish(due.category, strings.ReplaceAll(due.body, "ROUND", round))
		}
		for due := int(passed.Seconds() * float64(perSecond)); published < due && ctx.Err() == nil; published++ {
			publish(drawStormEvent())
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// stormKind describes the events of a category. Each title follows its severity. The field's value ends with a random number.
type stormKind struct{ category, source, field, value, titles string }

// stormKinds are the categories of the storm, the loudest first.
var stormKinds = []stormKind{
	{"payments", "checkout", "order", "48", "error Card declined by the bank|warning Payment took 9 s|critical Payment provider answers 503"},
	{"errors", "web", "path", "/checkout/", "error 500 from GET /checkout|error Unhandled exception: cart is nil|warning 404s have doubled"},
	{"api", "gateway", "route", "/v2/orders/", "error Upstream timed out after 30 s|warning p99 is above 2 s|error 502 from the orders service"},
	{"login", "auth", "user", "u-", "warning Five wrong passwords in a row|info Login from a new country|error Single sign-on does not answer"},
	{"latency", "slo-monitor", "service", "svc-", "warning p95 is above 800 ms|critical Error budget burns 14 times too fast"},
	{"queue", "rabbitmq", "queue", "orders-", "warning 12,000 messages wait|error No consumer is connected|critical Publishers are blocked"},
	{"database", "postgres", "host", "db-", "warning Query has run for 90 s|error Deadlock detected|critical Connections are exhausted"},
	{"deploys", "ci", "build", "40", "info Deployment to eu-west has started|info Deployment has finished|error Deployment was rolled back"},
	{"disk", "node-exporter", "host", "web-", "warning Disk is 85 % full|critical Disk is full in 2 hours"},
	{"memory", "node-exporter", "host", "web-", "warning Memory is 90 % used|error Process was killed: out of memory"},
	{"security", "ids", "address", "203.0.113.", "critical Port scan from one address|error Token of a former employee was used"},
	{"network", "switches", "port", "core-1/", "error Link is down|warning 2 % of packets are lost"},
	{"cache", "redis", "node", "cache-", "warning Hit rate fell below 60 %|error Failover to the replica"},
	{"search", "elastic", "index", "products-", "error Shard is not assigned|warning Indexing is 5 minutes behind"},
	{"email", "mailer", "domain", "mx", "warning 3 % of mails bounce|error Mail server refuses the sender"},
	{"billing", "invoicing", "invoice", "20", "error Invoice could not be sent|info Reminder was sent"},
	{"signups", "onboarding", "plan", "plan-", "info New customer signed up|warning Sign-up was abandoned at the last step"},
	{"cron", "scheduler", "job", "nightly-", "error Job failed with status 1|warning Job took twice as long as usual"},
	{"backups", "restic", "host", "db-", "critical No backup for 26 hours|info Backup has finished"},
	{"certificates", "cert-manager", "host", "shop-", "warning Certificate expires in 7 days|critical Certificate has expired"},
}

// drawStormEvent draws an event, of a loud category far more often than of a quiet one.
func drawStormEvent() (category, body string) {
	x := rand.Float64() //nolint:gosec // no secret depends on it
	kind := stormKinds[int(x*x*x*float64(len(stormKinds)))]
	titles := strings.Split(kind.titles, "|")
	severity, title, _ := strings.Cut(titles[rand.IntN(len(titles))], " ") //nolint:gosec // no secret depends on it
	encoded, err := json.Marshal(map[string]any{
		"title": title, "severity": severity, "source": kind.source,
		"fields": map[string]string{kind.field: fmt.Sprintf("%s%d", kind.value, 1+rand.IntN(99))}, //nolint:gosec // no secret depends on it
	})
	if err != nil {
		panic(err) // texts can always be encoded
	}
	return kind.category, string(encoded)
}
