package script

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/requirements"
	"github.com/seed-4578ace9/notifier/lua"
)

// Scripting says how the scripts run in Redis.
type Scripting string

// The ways to run scripts. A script is called by the hash of its text, a function by its name: any user who may load functions on the
// server can replace the notifier's functions.
const (
	Eval      Scripting = "eval"     // as scripts, on every server
	Functions Scripting = "function" // as a library of functions, on Redis 7 and later
)

// library is the scripts as functions.
type library struct{ name, source string }

// reloadEvery is how often a library is loaded while the owner of a slot is not known.
const reloadEvery = 20 * time.Millisecond

// run calls a function. It loads the library into a server that lacks the function: a new one, one that has lost its functions, and in a
// cluster a new owner of the keys' slot.
func (l *library) run(ctx context.Context, client redis.UniversalClient, script lua.Script, keys []string, arguments []any) *redis.Cmd {
	for loaded := false; ; loaded = true {
		reply := client.FCall(ctx, lua.Function(l.name, script), keys, arguments...)
		err := reply.Err()
		if err == nil || !strings.Contains(err.Error(), missingFunction) {
			reply.SetErr(nameRight("fcall", err))
			return reply
		}
		if loaded {
			// The client's map of the slots is older than the owner that a server named. The client is reading a new map.
			if !await.For(ctx, reloadEvery) {
				return reply
			}
		}
		if err := l.load(ctx, client, keys[0]); err != nil {
			reply.SetErr(err)
			return reply
		}
	}
}

// missingFunction is in the reply of a server that does not have a function.
const missingFunction = "Function not found"

// load loads the library into the server that has a key. In a cluster, the remaining servers do not need it. load returns no error if the
// server already has the library.
func (l *library) load(ctx context.Context, client redis.UniversalClient, key string) error {
	node, err := Owner(ctx, client, key)
	if err != nil {
		return err
	}
	err = node.FunctionLoad(ctx, l.source).Err()
	if err != nil && strings.Contains(err.Error(), "already exists") {
		return nil
	}
	return nameRight("function|load", err)
}

// nameRight names the right for functions that a user lacks. It also recognises a server without functions.
func nameRight(command string, err error) error {
	if err == nil {
		return nil
	}
	name, _, _ := strings.Cut(command, "|")
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOPERM") && strings.Contains(text, "'"+name):
		return fmt.Errorf("the Redis user lacks the right +%s (NOTIFIER_REDIS_SCRIPTING=function needs +fcall and +function|load): %w", command, err)
	case strings.Contains(text, "unknown command"):
		return fmt.Errorf("the server has no functions (NOTIFIER_REDIS_SCRIPTING=function needs Redis %s or later): %w", requirements.RedisFunctions().Since, err)
	}
	return explainLack(err)
}
