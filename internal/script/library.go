package script

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Scripting says how the scripts run in Redis.
type Scripting string

// The ways to run scripts. A script is called by the hash of its text, a function by its name: on a server where others may load
// functions too, they can put theirs in the place of the notifier's, and those then run on its keys.
const (
	Eval      Scripting = "eval"     // as scripts, on every server
	Functions Scripting = "function" // as a library of functions, on Redis 7 and later
)

// library is the scripts as functions.
type library struct{ name, source string }

func newLibrary(source func() (name, source string)) *library {
	l := &library{}
	l.name, l.source = source()
	return l
}

// reloadEvery is how often a library is loaded while the owner of a slot is not found out.
const reloadEvery = 20 * time.Millisecond

// run calls a function. A server that does not have it is given the library: a new one, one that has lost its functions, and in
// a cluster whoever has become the owner of the keys' slot.
func (l *library) run(ctx context.Context, client redis.UniversalClient, script lua.Script, keys []string, arguments []any) *redis.Cmd {
	for loaded := false; ; loaded = true {
		reply := client.FCall(ctx, lua.Function(l.name, script), keys, arguments...)
		err := reply.Err()
		if err == nil || !strings.Contains(err.Error(), missingFunction) {
			reply.SetErr(nameRight("fcall", err))
			return reply
		}
		if loaded {
			// The client's map of the slots is older than the reply, which came from whom a server named. It is being read anew.
			select {
			case <-time.After(reloadEvery):
			case <-ctx.Done():
				return reply
			}
		}
		if err := l.load(ctx, client, keys[0]); err != nil {
			reply.SetErr(err)
			return reply
		}
	}
}

// missingFunction is what a server says that does not have a function.
const missingFunction = "Function not found"

// load gives the library to the server that has a key: in a cluster no other one is needed. That it is there already is no
// error.
func (l *library) load(ctx context.Context, client redis.UniversalClient, key string) error {
	node, err := owner(ctx, client, key)
	if err != nil {
		return err
	}
	err = node.FunctionLoad(ctx, l.source).Err()
	if err != nil && strings.Contains(err.Error(), "already exists") {
		return nil
	}
	return nameRight("function|load", err)
}

// nameRight says which right a user lacks who may not use functions, or that the server has none.
func nameRight(command string, err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(command, "|")
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "'"+name):
		return fmt.Errorf("the Redis user lacks the right +%s (NOTIFIER_REDIS_SCRIPTING=function needs +fcall and +function|load): %w", command, err)
	case strings.Contains(text, "unknown command"):
		return fmt.Errorf("the server has no functions (NOTIFIER_REDIS_SCRIPTING=function needs Redis 7 or later): %w", err)
	}
	return err
}
