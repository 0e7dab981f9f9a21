package scripttest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Hook is a hook of a client. The client calls it after each command, with the error of the command.
type Hook func(command redis.Cmder, err error)

// ProcessHook calls the hook.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, command redis.Cmder) error {
		err := next(ctx, command)
		h(command, err)
		return err
	}
}

// DialHook changes nothing.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook changes nothing.
func (Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
