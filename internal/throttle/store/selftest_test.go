package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
	"github.com/seed-4578ace9/notifier/lua"
)

// newStore returns a store with the prefix that users of scripttest.SetUser may use.
func newStore(t *testing.T, client redis.UniversalClient, scripting script.Scripting) *store.Redis {
	t.Helper()
	hourly := limits.Limits{{Count: 5, Window: time.Hour}}
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: hourly, Category: hourly}))(t)
	runner := script.NewRunner(script.Options{
		Client: client, Prefix: scripttest.UserPrefix, Timeout: scripttest.Patience, Scripting: scripting,
	})
	return store.NewRedis(runner, store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Hour})
}

func TestSelfTestFindsAMissingRight(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	for _, command := range scripttest.Without(scripttest.Rights(), "evalsha") {
		t.Run(command, func(t *testing.T) {
			client := scripttest.SetUser(t, server, "without-"+command, scripttest.Without(scripttest.Rights(), command))
			err := newStore(t, client, script.Eval).SelfTest(t.Context(), pacing.SelfTest, summary.SelfTest)
			testkit.Fails(t, fmt.Sprintf("a self-test without %s", command), err, script.ErrRefused)
			if command != "pexpire" {
				testkit.Equal(t, server.CLI("KEYS", "*"), "", "keys after a self-test that failed")
			}
			server.CLI("SCRIPT", "FLUSH", "SYNC") // so that each self-test needs eval
		})
	}
}

// TestSelfTestRunsEveryScript checks that a self-test runs each script, with keys of its own, which it removes.
func TestSelfTestRunsEveryScript(t *testing.T) {
	t.Parallel()
	if !servertest.HasFunctions(t) {
		return // a function has the name of its script
	}
	server := servertest.StartRedis(t)
	client := scripttest.NewClient(t, redis.Options{Addr: server.Addr})
	var called testkit.Counts
	client.AddHook(scripttest.Hook(func(command redis.Cmder, _ error) {
		if command.Name() == "fcall" {
			called.Add(fmt.Sprint(command.Args()[1]), 1)
		}
	}))
	r := newStore(t, client, script.Functions)
	testkit.NoError(t, errors.Join(r.SelfTest(t.Context(), pacing.SelfTest, summary.SelfTest), r.Probe(t.Context())))
	name, _ := lua.Library()
	for _, script := range lua.Scripts {
		testkit.AtLeast(t, called.Get(lua.Function(name, script)), 1, "runs of %s", script)
	}
	testkit.EqualSlices(t, client.Keys(t.Context(), "*").Val(), []string{}, "keys after a self-test")
}
