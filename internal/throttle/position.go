package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// newerThan reads from an [script.ErrStale] which position Redis knows.
func newerThan(stale error) limits.Position {
	var newer limits.Position
	_, _ = fmt.Sscan(script.Newer(stale), &newer.Generation, &newer.Revision)
	return newer
}

// InForce returns the newest position that events were evaluated by, and since when. It is the zero Position if none was.
func (r *Redis) InForce(ctx context.Context) (in limits.Position, since time.Time, err error) {
	const tried = "asking which limits are in force"
	var text string
	err = r.runner.Read(ctx, tried, func(ctx context.Context, client redis.Cmdable) (err error) {
		text, err = client.Get(ctx, r.keys.limits).Result()
		return err
	})
	if errors.Is(err, redis.Nil) {
		return limits.Position{}, time.Time{}, nil
	}
	if err != nil {
		return limits.Position{}, time.Time{}, err
	}
	var micros int64
	if _, err := fmt.Sscan(text, &in.Generation, &in.Revision, &micros); err != nil {
		return limits.Position{}, time.Time{}, fmt.Errorf("%s: %w", tried, script.ErrReply)
	}
	return in, time.UnixMicro(micros), nil
}

// PutInForce makes a position the one in force, even if it is older than the one that is. It does nothing and returns
// false if another one than `seen` is in force.
func (r *Redis) PutInForce(ctx context.Context, seen, next limits.Position) (bool, error) {
	arguments := []any{seen.Generation, seen.Revision, next.Generation, next.Revision}
	put, err := r.runner.RunInt(ctx, "putting limits in force", lua.AdoptLimits, []string{r.keys.calls, r.keys.limits}, arguments)
	return put == 1, err
}

// compare asks about no event, which changes nothing: the error is an [script.ErrStale] if the limits here are older than those in
// force.
func (r *Redis) compare(ctx context.Context) error {
	_, err := r.decideBatch(ctx, newNonce(), nil)
	return err
}
