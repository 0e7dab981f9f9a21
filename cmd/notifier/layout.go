package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/inspect"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/lua"
)

// layoutAgain is the time between attempts to store the layout.
const layoutAgain = 5 * time.Second

// layout keeps workers of two layouts apart. A worker announces its layout before it looks for other layouts, and a worker that replaces a
// layout looks again afterwards. So of two workers that start at once, at least one finds the other.
type layout struct {
	connection *stream.Connection
	positions  *store.Positions
	deployment string
	logger     *slog.Logger
}

// join refuses to run beside workers that store state in another layout. If Redis does not answer or stores nothing at present, such as a
// replica during a failover or a full server, stored is false, and only the announcements of running workers are compared.
func (l layout) join(ctx context.Context) (stored bool, err error) {
	before, err := l.positions.Layout(ctx)
	if err == nil {
		err = l.use(ctx, before)
		if !errors.Is(err, script.ErrUnavailable) && !errors.Is(err, script.ErrRefused) {
			return true, err
		}
	}
	return false, l.awaitNoOther(ctx)
}

// keep joins until the layout is stored, and ends the worker if it finds another layout.
func (l layout) keep(ctx context.Context, end context.CancelCauseFunc) {
	for await.For(ctx, layoutAgain) {
		stored, err := l.join(ctx)
		if err != nil && ctx.Err() == nil {
			end(unfit{err})
		}
		if stored || err != nil {
			return
		}
	}
}

// use stores the layout of this program in Redis, unless workers of another layout are running.
func (l layout) use(ctx context.Context, before int) error {
	replaces := before != 0 && before != lua.Layout
	if replaces {
		if err := l.awaitNoOther(ctx); err != nil {
			return err
		}
	}
	used, err := l.positions.UseLayout(ctx, before, lua.Layout)
	if err == nil && !used {
		err = fmt.Errorf("a worker of another layout has started at the same time; this program has layout %d", lua.Layout)
	}
	if err == nil && replaces {
		l.logger.Info("no worker of the previous layout is running; taking over", "layout", lua.Layout, "before", before)
		err = l.awaitNoOther(ctx)
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
		if !await.For(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
