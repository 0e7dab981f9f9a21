package setup

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// tokenEvery is the interval between two checks of a token.
const tokenEvery = time.Minute

// AwaitToken checks a token, as [sink.Outlet] does, until the service accepts it, and notes each refusal. Without the check, a worker with a
// wrong token would be ready until its first post. An error that is no refusal changes nothing, since posts wait for the service anyway.
func AwaitToken(ctx context.Context, check func(context.Context) (refused bool, err error), refusal *oplog.Condition) {
	for {
		refused, err := check(ctx)
		if refused || err == nil {
			refusal.Note(err)
		}
		if err == nil || !await.For(ctx, tokenEvery) {
			return
		}
	}
}
