package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/lua"
)

// layoutAgain is the time between attempts to store the layout.
const layoutAgain = 5 * time.Second

// layout keeps workers of two layouts apart.
type layout struct {
	*servers
	deployment string
	logger     *slog.Logger
}

// join refuses to run beside workers that store state in another layout. If Redis does not answer, the worker starts, and compares the
// layouts as soon as Redis answers.
func (l layout) join(ctx context.Context, life *lifecycle) error {
	shared := store.NewRedis(l.runner, store.Settings{})
	stored, err := shared.Positions.Layout(ctx)
	if err == nil {
		return l.use(ctx, shared, stored)
	}
	life.background("storing the layout", func(ctx context.Context) {
		for {
			select {
			case <-time.After(layoutAgain):
			case <-ctx.Done():
				return
			}
			stored, err := shared.Positions.Layout(ctx)
			if err != nil {
				continue // the limiter logs that Redis is unavailable
			}
			if err := l.use(ctx, shared, stored); err != nil && ctx.Err() == nil {
				l.logger.Error("this worker runs beside a deployment of another layout, stop it", "error", err)
			}
			return
		}
	})
	return nil
}

// use stores the layout of this program in Redis, unless workers of the stored layout are running.
func (l layout) use(ctx context.Context, shared *store.Redis, stored int) error {
	if stored != 0 && stored != lua.Layout {
		if err := l.awaitNoOther(ctx); err != nil {
			return err
		}
		l.logger.Info("no worker of the layout before is left, this layout takes its place", "layout", lua.Layout, "before", stored)
	}
	used, err := shared.Positions.UseLayout(ctx, stored, lua.Layout)
	if err == nil && !used {
		err = fmt.Errorf("a worker of another layout has started at the same time; this program has layout %d", lua.Layout)
	}
	return err
}

// awaitNoOther asks for workers of other layouts as soon as NATS is connected.
func (l layout) awaitNoOther(ctx context.Context) error {
	for {
		err := inspect.OtherLayouts(ctx, l.connection.Conn, l.deployment)
		if !errors.Is(err, nats.ErrDisconnected) {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
