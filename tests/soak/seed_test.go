//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// failing is a JetStream that refuses one of so many publishes, and notes the stored messages. The zero value refuses none.
type failing struct {
	jetstream.JetStream

	every int

	mu       sync.Mutex
	tries    int
	messages map[string]bool
}

func (f *failing) PublishMsg(_ context.Context, m *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tries++; f.every > 0 && f.tries%f.every == 0 {
		return nil, errors.New("refused")
	}
	f.messages[fmt.Sprint(m.Subject, m.Header, string(m.Data))] = true
	return &jetstream.PubAck{}, nil
}

func (f *failing) Stream(context.Context, string) (jetstream.Stream, error) {
	return nil, errors.New("nothing is watched")
}

// published returns the messages of one minute.
func published(t *testing.T, every int) (messages map[string]bool) {
	synctest.Test(t, func(*testing.T) {
		js := &failing{every: every, messages: make(map[string]bool)}
		p := &publisher{d: &deployment{js: js}, seed: 7, entries: make(map[string]*entry)}
		end := make(chan struct{})
		var actors sync.WaitGroup
		for _, run := range []func(<-chan struct{}){p.run, (&watcher{p: p}).run} {
			actors.Go(func() { run(end) })
		}
		time.Sleep(time.Minute) // of the bubble
		close(end)
		actors.Wait()
		messages = js.messages
	})
	return messages
}

// TestSeedRepeatsEvents has publishes fail: the seed draws the same messages all the same. The end of the minute may cut off a few.
func TestSeedRepeatsEvents(t *testing.T) {
	const publishesOfMinute, cutOff = 1000, 10
	want, got := published(t, 0), published(t, 10)
	missing := 0
	for message := range want {
		if !got[message] {
			missing++
		}
	}
	testkit.AtMost(t, publishesOfMinute, len(want), "messages")
	testkit.AtMost(t, missing, cutOff, "messages of %d that failed publishes have changed", len(want))
}
