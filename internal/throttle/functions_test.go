package throttle

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// TestFunctionsMayBeFlushed shows that a library which the server has lost is loaded again, by whichever call misses it.
func TestFunctionsMayBeFlushed(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	r := NewRedis(RedisOptions{Client: client, Prefix: "flush", Timeout: patience, Scripting: Functions}, scriptSettings(t))
	lease := seed(t, r)
	for _, o := range operations {
		server.CLI("FUNCTION", "FLUSH", "SYNC")
		if err := o.call(t.Context(), r, lease); err != nil {
			t.Errorf("%s after FUNCTION FLUSH: %v", o.name, err)
		}
		if libraries := client.FunctionList(t.Context(), redis.FunctionListQuery{}).Val(); len(libraries) != 1 {
			t.Errorf("%s: the server has %d libraries, want one", o.name, len(libraries))
		}
	}
}

// TestServerWithoutFunctions has a server that does not know the command, as before Redis 7: the scripts run as such.
func TestServerWithoutFunctions(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t, "--rename-command", "FUNCTION", "")
	client := newClient(t, redis.Options{Addr: server.Addr})
	limiter := func(way Scripting) *Redis {
		return NewRedis(RedisOptions{Client: client, Prefix: string(way), Timeout: patience, Scripting: way}, scriptSettings(t))
	}
	auto := limiter(Auto)
	lease := seed(t, auto)
	for _, o := range operations {
		if err := o.call(t.Context(), auto, lease); err != nil {
			t.Errorf("%s: %v", o.name, err)
		}
	}
	if _, err := limiter(Functions).Decide(t.Context(), nil); !errors.Is(err, ErrRefused) {
		t.Errorf("with functions alone: %v, want %v", err, ErrRefused)
	}
}
