package scripttest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

// WithClock has the scripts read a clock that the test moves, in the place of TIME. The clock is a hash in Redis that has the two
// parts of TIME's reply. Runners with these options and other clients share it.
func WithClock(t testing.TB, o script.Options) (script.Options, *testkit.Clock) {
	t.Helper()
	key := "{clock}:{" + o.Prefix + "}:"
	o.Source = func(script lua.Script, algorithms []string) string {
		name := fmt.Sprint(script, algorithms, key)
		source, known := sources.Load(name)
		if !known {
			source = withClock(t, lua.Source(script, algorithms), key)
			sources.Store(name, source)
		}
		return fmt.Sprint(source)
	}
	o.Library = func() (name, source string) {
		name, source = lua.Library()
		renamed := fmt.Sprintf("%s_%x", name, sha256.Sum256([]byte(key)))
		return renamed, strings.ReplaceAll(withClock(t, source, key), name, renamed)
	}
	return o, testkit.NewClock(func(now time.Time) {
		micros := now.UnixMicro()
		_, err := o.Client.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
			p.HSet(context.Background(), key, "seconds", micros/1e6, "micros", micros%1e6)
			p.Expire(context.Background(), key, time.Hour)
			return nil
		})
		if err != nil {
			t.Fatalf("set the clock of the scripts: %v", err)
		}
	})
}

// sources caches composed scripts: some tests compose a script thousands of times.
var sources sync.Map

func withClock(t testing.TB, source, key string) string {
	t.Helper()
	const genuine = "redis.call('TIME')"
	if strings.Count(source, genuine) != 1 {
		t.Fatalf("the script has %d calls of TIME, expected one", strings.Count(source, genuine))
	}
	return strings.Replace(source, genuine, fmt.Sprintf("redis.call('HMGET', '%s', 'seconds', 'micros')", key), 1)
}
