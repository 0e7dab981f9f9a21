// Package scripttest has what tests of packages with scripts share: a client, a clock that the scripts read, users with few
// rights, comparisons of what a server holds, and a [Suite] that every set of scripts has to pass.
package scripttest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Patience bounds what a test waits for, and is no expectation of how long it takes.
const Patience = testkit.Patience

// Main runs the tests of a package that starts Redis servers. It fails if a goroutine leaks.
func Main(m *testing.M) {
	servertest.MoreTestsAtOnce(4)
	redis.SetLogger(silence{}) // it reports each connection that it cannot make
	goleak.VerifyTestMain(m)
}

type silence struct{}

// Printf says nothing.
func (silence) Printf(context.Context, string, ...any) {}

// NewClient makes a client that is closed when the test ends.
func NewClient(t testing.TB, o redis.Options) *redis.Client {
	t.Helper()
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ContextTimeoutEnabled = true
	o.ReadTimeout = cmp.Or(o.ReadTimeout, Patience) // a shorter timeout would retry against a slow stand-in
	o.MinRetryBackoff, o.MaxRetryBackoff = time.Millisecond, 10*time.Millisecond
	client := redis.NewClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Contents is what a server holds: each key and what it consists of.
func Contents(t testing.TB, client redis.UniversalClient) map[string]string {
	t.Helper()
	held := make(map[string]string)
	for _, key := range testkit.Must(client.Keys(t.Context(), "*").Result())(t) {
		if testkit.Must(client.Type(t.Context(), key).Result())(t) == "hash" { // whose dump has the order of a table that may be growing
			held[key] = fmt.Sprint(testkit.Must(client.HGetAll(t.Context(), key).Result())(t))
			continue
		}
		held[key] = testkit.Must(client.Dump(t.Context(), key).Result())(t)
	}
	return held
}

// WantUnchanged checks that a server holds what it held before.
func WantUnchanged(t testing.TB, client redis.UniversalClient, before map[string]string) {
	t.Helper()
	after := Contents(t, client)
	testkit.EqualSlices(t, slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)), "keys of the server")
	for key := range after {
		if before[key] != after[key] {
			t.Errorf("%s was changed", key)
		}
	}
}

// WantExpiries checks that no key stays for ever, and returns all keys.
func WantExpiries(t testing.TB, client redis.UniversalClient) (keys []string) {
	t.Helper()
	keys = testkit.Must(client.Keys(t.Context(), "*").Result())(t)
	for _, key := range keys {
		const never = -1 // of a key that has expired since it is -2
		if client.PTTL(t.Context(), key).Val() == never {
			t.Errorf("%s never expires", key)
		}
	}
	return keys
}

// Rights returns the commands that the scripts run and the commands that run the scripts. HELLO and AUTH need no right.
func Rights() []string {
	return []string{
		"evalsha", "eval", "get", "set", "time", "zadd", "zcard", "zcount", "zmscore", "zrange", "zrem", "zremrangebyrank", "zscore",
		"hget", "hset", "hdel", "pexpire",
	}
}

// Without are the commands but for one.
func Without(commands []string, command string) []string {
	return slices.DeleteFunc(slices.Clone(commands), func(c string) bool { return c == command })
}

// UserPrefix is the prefix of a deployment. The users of SetUser may use its keys.
const UserPrefix = "rights"

// SetUser makes a user who may run the commands on one deployment's keys, and returns a client of it.
func SetUser(t testing.TB, server *servertest.Redis, name string, commands []string) *redis.Client {
	t.Helper()
	arguments := []string{"ACL", "SETUSER", name, "reset", "on", ">secret", "~{" + UserPrefix + "}:*", "-@all"}
	for _, command := range commands {
		arguments = append(arguments, "+"+command)
	}
	server.CLI(arguments...)
	return NewClient(t, redis.Options{Addr: server.Addr, Username: name, Password: "secret"})
}

// Plant adds members to a sorted set, with scores a microsecond apart.
func Plant(t testing.TB, client redis.UniversalClient, key, prefix string, count int, first int64) {
	t.Helper()
	for from := 0; from < count; from += 10_000 {
		pipe := client.Pipeline()
		pipe.Persist(context.Background(), key) // a set that is there may be about to expire
		for i := from; i < min(from+10_000, count); i += 500 {
			members := make([]redis.Z, 0, 500)
			for j := i; j < min(i+500, count); j++ {
				members = append(members, redis.Z{Score: float64(first + int64(j)), Member: fmt.Sprintf("%s%d", prefix, j)})
			}
			pipe.ZAdd(context.Background(), key, members...)
		}
		pipe.Expire(context.Background(), key, 24*time.Hour)
		testkit.Must(pipe.Exec(context.Background()))(t)
	}
}

// Planted counts the members that are left of those.
func Planted(t testing.TB, client redis.UniversalClient, key, prefix string) (count int) {
	t.Helper()
	for _, member := range testkit.Must(client.ZRange(context.Background(), key, 0, -1).Result())(t) {
		if strings.HasPrefix(member, prefix) {
			count++
		}
	}
	return count
}
