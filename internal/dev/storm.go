package dev

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
)

const (
	maxStorm      = 10_000 // roughly how many sequential publishes per second JetStream sustains on a laptop
	stormTicks    = 20     // bursts per second
	muteAfter     = 5 * time.Second
	muteFor       = 30 * time.Second
	incidentRound = 30 * time.Second
)

// story has the incidents in the order of their times, and the categories, the loudest first. Incidents that must be sent come first, while
// slots are free. Two incidents are equal, so that one is a duplicate, and a third one has the same key, so that the key's limit denies it. The
// malformed event has no category in its subject, so the deny cache cannot drop it before it is decoded.
var story = func() (s struct {
	Incidents []incident
	Kinds     []stormKind
}) {
	if err := json.Unmarshal(stormJSON, &s); err != nil {
		panic(err) // the file is part of the program
	}
	return s
}()

//go:embed storm.json
var stormJSON []byte

// incident is an event with a story, published once in each round of the storm.
type incident struct {
	At       int    // in seconds since the start of the round
	Category string // "": the body names it
	Body     string // ROUND stands for the number of the round
}

// stormKind describes the events of a category. Each title follows its severity. The field's value ends with a random number.
type stormKind struct {
	Category, Source, Field, Value string
	Titles                         []string
}

// incidentAt returns when the n-th incident is due, counted from the start of the storm.
func incidentAt(n int) time.Duration {
	return time.Duration(n/len(story.Incidents))*incidentRound + time.Duration(story.Incidents[n%len(story.Incidents)].At)*time.Second
}

// publishStorm publishes events evenly, and incidents at their times, until the context ends.
func publishStorm(ctx context.Context, settings config.Config, js jetstream.JetStream, perSecond int, pane *screen.Pane) {
	start := time.Now()
	muting := time.AfterFunc(muteAfter, func() {
		bucket, err := overrides.Open(ctx, js, setup.Overrides(settings, slog.New(slog.DiscardHandler)))
		var s overrides.Snapshot
		if err == nil {
			s, err = bucket.Load(ctx)
		}
		if err == nil {
			mute := overrides.NewMute("errors", "a mute, as notifier mute errors --for 30s sets it", "")
			_, err = bucket.SetMute(ctx, s, mute, s.Read.Add(muteFor))
		}
		if err != nil && ctx.Err() == nil {
			pane.Line("cannot mute a category: %v", err)
		}
	})
	defer muting.Stop()
	publish := func(category, body string) {
		subject := strings.TrimSuffix(settings.NATS.Subject+"."+category, ".")
		if _, err := js.Publish(ctx, subject, []byte(body)); err != nil && ctx.Err() == nil {
			pane.Line("cannot store an event of the storm: %v", err)
		}
	}
	ticker := time.NewTicker(time.Second / stormTicks)
	defer ticker.Stop()
	for published, n := 0, 0; ctx.Err() == nil; {
		passed := time.Since(start)
		for ; passed >= incidentAt(n); n++ {
			due, round := story.Incidents[n%len(story.Incidents)], fmt.Sprintf("%d-%d", start.UnixMilli(), n/len(story.Incidents))
			publish(due.Category, strings.ReplaceAll(due.Body, "ROUND", round))
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

// drawStormEvent draws an event, of a loud category far more often than of a quiet one.
func drawStormEvent() (category, body string) {
	x := rand.Float64() //nolint:gosec // no secret depends on it
	kind := story.Kinds[int(x*x*x*float64(len(story.Kinds)))]
	severity, title, _ := strings.Cut(kind.Titles[rand.IntN(len(kind.Titles))], " ") //nolint:gosec // no secret depends on it
	encoded, _ := json.Marshal(map[string]any{                                       // cannot fail: texts
		"title": title, "severity": severity, "source": kind.Source,
		"fields": map[string]string{kind.Field: fmt.Sprintf("%s%d", kind.Value, 1+rand.IntN(99))}, //nolint:gosec // no secret depends on it
	})
	return kind.Category, string(encoded)
}
