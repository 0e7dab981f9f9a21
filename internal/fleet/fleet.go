// Package fleet tells how many instances of the notifier are alive.
//
// Each instance announces itself as a NATS micro service named "notifier", so that `nats micro ls` shows them, and asks
// from time to time who else of its deployment answers. The number needs no Redis: it divides the limits while Redis is away. While NATS
// does not answer, the last number stands. [Fleet.Alive] may be called at any time by anyone.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Name is the service's name.
const Name = "notifier"

// How often the others are asked, and how long their answers are waited for. Answers come within a round trip; an
// instance that is slower is counted the next time.
const (
	askEvery = 5 * time.Second
	askFor   = 500 * time.Millisecond
)

// Fleet is this instance's view of all of them.
type Fleet struct {
	conn    *nats.Conn
	service micro.Service
	group   string
	logger  *slog.Logger
	alive   atomic.Int64
}

// groupKey is the name in a service's metadata under which the deployment stands.
const groupKey = "deployment"

// Join announces this instance of a deployment; others of the same NATS account are not counted. The version has to be a semantic one, as the protocol demands; another is announced as
// 0.0.0.
func Join(conn *nats.Conn, deployment, version string, logger *slog.Logger) (*Fleet, error) {
	config := micro.Config{
		Name: Name, Version: strings.TrimPrefix(version, "v"), Description: "throttles notifications",
		Metadata: map[string]string{groupKey: deployment},
	}
	service, err := micro.AddService(conn, config)
	if errors.Is(err, micro.ErrConfigValidation) {
		config.Version = "0.0.0"
		service, err = micro.AddService(conn, config)
	}
	if err != nil {
		return nil, fmt.Errorf("announcing the micro service %q: %w", Name, err)
	}
	f := &Fleet{conn: conn, service: service, group: deployment, logger: logger}
	f.alive.Store(1)
	return f, nil
}

// Alive is how many instances answered last, this one included.
func (f *Fleet) Alive() int { return int(f.alive.Load()) }

// Watch keeps counting until the context ends.
func (f *Fleet) Watch(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		f.count(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Leave withdraws the announcement.
func (f *Fleet) Leave() {
	if err := f.service.Stop(); err != nil && !f.conn.IsClosed() {
		f.logger.Debug("the micro service did not stop cleanly", "error", err)
	}
}

// count asks who is there. No answer at all, not even this instance's own, says nothing: the last number stands.
func (f *Fleet) count(ctx context.Context) {
	if !f.conn.IsConnected() {
		return
	}
	subject, err := micro.ControlSubject(micro.PingVerb, Name, "")
	if err != nil {
		return
	}
	inbox := f.conn.NewRespInbox()
	answers, err := f.conn.SubscribeSync(inbox)
	if err != nil {
		return
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := f.conn.PublishRequest(subject, inbox, nil); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	alive := int64(0)
	for {
		answer, err := answers.NextMsgWithContext(ctx)
		if err != nil {
			break
		}
		var who micro.Ping
		if json.Unmarshal(answer.Data, &who) == nil && who.Metadata[groupKey] == f.group { // else: another's, or nobody is there
			alive++
		}
	}
	if alive > 0 && alive != f.alive.Swap(alive) {
		f.logger.Info("number of instances has changed", "instances", alive)
	}
}
