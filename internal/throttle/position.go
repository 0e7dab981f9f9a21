package throttle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Position says which of two states of the limits is the newer one. The zero Position is the state without overrides.
type Position struct {
	Generation int64 // when the place of the overrides was made, in Unix milliseconds
	Revision   uint64
}

// Before tells whether the state is older than another one.
func (p Position) Before(q Position) bool {
	if p.Generation != q.Generation {
		return p.Generation < q.Generation
	}
	return p.Revision < q.Revision
}

func (p Position) String() string {
	if p == (Position{}) {
		return "none"
	}
	made := time.UnixMilli(p.Generation).UTC().Format(time.RFC3339)
	return fmt.Sprintf("revision %d of generation %d (%s)", p.Revision, p.Generation, made)
}

// Position is the place of these limits in the order of all.
func (r Ruleset) Position() Position { return Position{r.Generation, r.Revision} }

// newerThan reads from an [ErrStale] which position Redis knows.
func newerThan(stale error) Position {
	var newer Position
	if reply, answered := errors.AsType[redis.Error](stale); answered {
		if text, found := strings.CutPrefix(reply.Error(), staleCode+" "); found {
			_, _ = fmt.Sscan(text, &newer.Generation, &newer.Revision)
		}
	}
	return newer
}

// InForce returns the newest position that events were judged by, and since when. It is the zero Position if none was.
func (r *Redis) InForce(ctx context.Context) (in Position, since time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	text, err := r.client.Get(ctx, r.keys.limits).Result()
	if errors.Is(err, redis.Nil) {
		return Position{}, time.Time{}, nil
	}
	if err != nil {
		return Position{}, time.Time{}, classify("asking which limits are in force", err)
	}
	var micros int64
	if _, err := fmt.Sscan(text, &in.Generation, &in.Revision, &micros); err != nil {
		return Position{}, time.Time{}, fmt.Errorf("asking which limits are in force: %w: %w", ErrRefused, errReply)
	}
	return in, time.UnixMicro(micros), nil
}

// PutInForce makes a position the one in force, even if it is older than the one that is. It does nothing and returns
// false if another one than `seen` is in force.
func (r *Redis) PutInForce(ctx context.Context, seen, next Position) (bool, error) {
	arguments := []any{seen.Generation, seen.Revision, next.Generation, next.Revision}
	put, err := r.runInt(ctx, lua.AdoptLimits, []string{r.keys.calls, r.keys.limits}, arguments)
	return put == 1, classify("putting limits in force", err)
}

// compare asks about no event, which changes nothing: the error is an [ErrStale] if the limits here are older than those in
// force.
func (r *Redis) compare(ctx context.Context) error {
	_, err := r.decideBatch(ctx, newNonce(), nil)
	return err
}
