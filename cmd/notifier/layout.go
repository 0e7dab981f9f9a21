package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/throttle"
	"github.com/seed-4578ace9/notifier/lua"
)

// layoutAgain is the time between attempts to store the layout.
const layoutAgain = 5 * time.Second

// joinLayout refuses to run beside workers that store state in another layout. If Redis does not answer, the worker starts, and compares the layouts
// as soon as Redis answers.
func (w *worker) joinLayout(ctx context.Context) error {
	store := throttle.NewRedis(newRunner(w.redis, w.settings.Redis), throttle.Settings{})
	stored, err := store.Layout(ctx)
	if err == nil {
		return w.useLayout(ctx, store, stored)
	}
	w.life.background("storing the layout", func(ctx context.Context) {
		for {
			select {
			case <-time.After(layoutAgain):
			case <-ctx.Done():
				return
			}
			stored, err := store.Layout(ctx)
			if err != nil {
				continue // the limiter logs that Redis is unavailable
			}
			if err := w.useLayout(ctx, store, stored); err != nil && ctx.Err() == nil {
				w.logger.Error("this worker runs beside a deployment of another layout, stop it", "error", err)
			}
			return
		}
	})
	return nil
}

// useLayout stores the layout of this program in Redis, unless workers of the stored layout are running.
func (w *worker) useLayout(ctx context.Context, store *throttle.Redis, stored int) error {
	if stored != 0 && stored != lua.Layout {
		if err := w.awaitNoOtherLayout(ctx); err != nil {
			return err
		}
		w.logger.Info("no worker of the layout before is left, this layout takes its place", "layout", lua.Layout, "before", stored)
	}
	used, err := store.UseLayout(ctx, stored, lua.Layout)
	if err == nil && !used {
		err = fmt.Errorf("a worker of another layout has started at the same time; this program has layout %d", lua.Layout)
	}
	return err
}

// awaitNoOtherLayout asks for other layouts as soon as NATS is connected.
func (w *worker) awaitNoOtherLayout(ctx context.Context) error {
	for {
		err := otherLayouts(ctx, w.connection.Conn, w.settings.Redis.Prefix)
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

// otherLayouts returns an error that names the running workers of another layout, or nil.
func otherLayouts(ctx context.Context, conn *nats.Conn, deployment string) error {
	members, err := fleet.Members(ctx, conn, deployment)
	if err != nil {
		return err
	}
	var others []string
	for _, member := range members {
		if member.Layout != lua.Layout {
			others = append(others, fmt.Sprintf("%s (layout %d, version %s)", member.Instance, member.Layout, member.Version))
		}
	}
	if len(others) == 0 {
		return nil
	}
	return fmt.Errorf("this program stores its state in layout %d, and workers of another layout are running: %s; stop all of them before this version "+
		"starts, since workers of two layouts lose each other's events", lua.Layout, strings.Join(others, ", "))
}
