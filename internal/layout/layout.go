// Package layout keeps workers apart that store their state in different layouts. The number of this program's layout is [lua.Layout].
//
// A worker announces its layout before it looks for other layouts, and a worker that replaces a layout looks again afterwards. So of two
// workers that start at once, at least one finds the other. A [Guard] owns nothing and may be used by any goroutine. While Redis does not
// answer, only the announcements of running workers are compared.
package layout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/lua"
)

// storeAgain is the time between attempts to store the layout.
const storeAgain = 5 * time.Second

// Guard refuses to run beside workers of another layout.
type Guard struct {
	Conn       *nats.Conn
	Positions  *store.Positions
	Deployment string
	Logger     *slog.Logger
}

// Join returns an error if workers of another layout are running. If Redis does not answer or stores nothing at present, such as a replica
// during a failover or a full server, stored is false, and only the announcements of running workers are compared.
func (g Guard) Join(ctx context.Context) (stored bool, err error) {
	before, err := g.Positions.Layout(ctx)
	if err == nil {
		err = g.use(ctx, before)
		if !errors.Is(err, script.ErrUnavailable) && !errors.Is(err, script.ErrRefused) {
			return true, err
		}
	}
	return false, g.awaitNoOther(ctx)
}

// Keep joins until the layout is stored or the context ends. It returns an error if it finds another layout before.
func (g Guard) Keep(ctx context.Context) error {
	for await.For(ctx, storeAgain) {
		if stored, err := g.Join(ctx); stored || err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// use stores the layout of this program in Redis, unless workers of another layout are running.
func (g Guard) use(ctx context.Context, before int) error {
	replaces := before != 0 && before != lua.Layout
	if replaces {
		if err := g.awaitNoOther(ctx); err != nil {
			return err
		}
	}
	used, err := g.Positions.UseLayout(ctx, before, lua.Layout)
	if err == nil && !used {
		err = fmt.Errorf("a worker of another layout has started at the same time; this program has layout %d", lua.Layout)
	}
	if err == nil && replaces {
		g.Logger.Info("no worker of the previous layout is running; taking over", "layout", lua.Layout, "before", before)
		err = g.awaitNoOther(ctx)
	}
	return err
}

// awaitNoOther asks for workers of other layouts as soon as NATS is connected.
func (g Guard) awaitNoOther(ctx context.Context) error {
	for {
		err := Others(ctx, g.Conn, g.Deployment)
		if !errors.Is(err, nats.ErrDisconnected) {
			return err
		}
		if !await.For(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// Others returns an error if running workers have another layout. The error names them.
func Others(ctx context.Context, conn *nats.Conn, deployment string) error {
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
