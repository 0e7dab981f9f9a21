package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// layoutKept is how long Redis keeps the number of the layout after a worker has started.
const layoutKept = 366 * 24 * time.Hour

// Layout returns the layout that the workers of this deployment use to store state (see [lua.Layout]). It returns 0 if no worker has stored
// a layout.
func (r *Positions) Layout(ctx context.Context) (layout int, err error) {
	err = r.d.runner.Read(ctx, "asking for the layout", func(ctx context.Context, client redis.Cmdable) (err error) {
		layout, err = client.Get(ctx, r.d.keys.layout).Int()
		return err
	})
	return layout, err
}

// UseLayout replaces the layout `seen`. It returns false if another layout is stored by now.
func (r *Positions) UseLayout(ctx context.Context, seen, layout int) (used bool, err error) {
	err = r.d.runner.Read(ctx, "storing the layout", func(ctx context.Context, client redis.Cmdable) error {
		if seen == 0 {
			// If two workers start at once, the second finds the layout of the first.
			if err := client.SetArgs(ctx, r.d.keys.layout, layout, redis.SetArgs{Mode: "NX", TTL: layoutKept}).Err(); err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
		} else if err := client.Set(ctx, r.d.keys.layout, layout, layoutKept).Err(); err != nil {
			return err
		}
		stored, err := client.Get(ctx, r.d.keys.layout).Int()
		used = stored == layout
		return err
	})
	if err != nil {
		return false, fmt.Errorf("using layout %d: %w", layout, err)
	}
	return used, nil
}
