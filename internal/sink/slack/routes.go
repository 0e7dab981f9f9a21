package slack

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/sink"
)

// notedRoutes knows where the workers of this deployment post. After a change of the settings, a worker looks for a post in doubt where an earlier
// worker may have posted it.
type notedRoutes struct {
	own    string // as noted for other instances
	ids    IDs
	latest atomic.Pointer[readRoutes] // nil: other instances do not know the routes of this one either
}

// readRoutes are the routes of other instances, as read last.
type readRoutes struct {
	others []string
	asked  time.Time // also if Redis did not answer then
}

// routing is what an instance notes: a channel for each path pattern, and the default channel under "".
type routing map[string]string

func newRoutes(o *Options) *notedRoutes {
	own := routing{"": o.Channel}
	for _, route := range o.Routes.Entries() {
		own[route.Pattern.String()] = route.Value
	}
	text, _ := json.Marshal(own) // a map of strings always has a form, with its keys in order
	return &notedRoutes{own: string(text), ids: o.IDs}
}

// note makes the routes known to other instances before the first post, and again each noteEvery: Redis may have lost its data. While Redis has
// never answered, the next post tries again.
func (r *notedRoutes) note(ctx context.Context) {
	if latest := r.latest.Load(); latest == nil || time.Since(latest.asked) >= noteEvery {
		_, _ = r.others(ctx)
	}
}

// others returns the routes that other instances have noted, the newest first. While Redis does not answer, it returns the routes that it read
// last.
func (r *notedRoutes) others(ctx context.Context) ([]string, error) {
	others, err := r.ids.Routes(ctx, r.own)
	if latest := r.latest.Load(); err != nil && latest != nil {
		others, err = latest.others, nil
	}
	if err == nil {
		r.latest.Store(&readRoutes{others, time.Now()})
	}
	return others, err
}

// channelsOf returns the channels of a category by routes of other instances, each once.
func channelsOf(others []string, category string) (channels []string) {
	for _, text := range others {
		var noted routing
		if json.Unmarshal([]byte(text), &noted) != nil {
			continue // of another layout
		}
		o := Options{Channel: noted[""]}
		delete(noted, "")
		var entries []event.Entry[string]
		for text, channel := range noted {
			if pattern, err := event.ParsePattern(text); err == nil {
				entries = append(entries, event.Entry[string]{Pattern: pattern, Value: channel})
			}
		}
		o.Routes, _ = event.NewTable(entries)
		if channel := o.route(category); channel != "" && !slices.Contains(channels, channel) {
			channels = append(channels, channel)
		}
	}
	return channels
}

// findElsewhere looks for a post in the channels to which other instances would have posted it. It skips a channel that cannot be read: it may
// have been archived with the change of the routes.
func (s *Sink) findElsewhere(ctx context.Context, o search, own string, channels []string) (at thread, destination string, failure *sink.Error) {
	for _, channel := range channels {
		if channel == own {
			continue
		}
		at, found, failure := s.find(ctx, search{name: o.name, first: o.first, last: o.last, destination: channel})
		if failure != nil || found.Presence == sink.Present {
			return at, channel, failure
		}
	}
	return at, "", nil
}
