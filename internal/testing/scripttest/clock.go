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

// ExpiryMargin is how much longer than in production keys are kept if a test has the clock of the scripts. Keys expire in real time, so on a
// busy machine they would otherwise expire while the clock of the test has not reached that time.
const ExpiryMargin = 10 * time.Minute

// WithClock has the scripts read a clock that the test moves, in the place of TIME. The clock is a hash in Redis that has the two
// parts of TIME's reply. Runners with these options and other clients share it. Keys are kept for ExpiryMargin longer.
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
	for genuine, replacement := range map[string]string{
		"redis.call('TIME')":                             fmt.Sprintf("redis.call('HMGET', '%s', 'seconds', 'micros')", key),
		"return integer(math.ceil(microseconds / 1000))": fmt.Sprintf("return integer(math.ceil(microseconds / 1000) + %d)", ExpiryMargin.Milliseconds()),
	} {
		if strings.Count(source, genuine) != 1 {
			t.Fatalf("the script has %d times %s, expected once", strings.Count(source, genuine), genuine)
		}
		source = strings.Replace(source, genuine, replacement, 1)
	}
	return source
}
