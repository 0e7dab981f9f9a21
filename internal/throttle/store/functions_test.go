package store

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestServerWithoutFunctions uses a server without the command FUNCTION, as before Redis 7.
func TestServerWithoutFunctions(t *testing.T) {
	t.Parallel()
	var without []string
	if servertest.HasFunctions(t) {
		without = []string{"--rename-command", "FUNCTION", "", "--rename-command", "FCALL", ""}
	}
	server := servertest.StartRedis(t, without...)
	client := newClient(t, redis.Options{Addr: server.Addr})
	r := newRedisBy(client, "none", script.Functions, scriptSettings(t))
	_, err := r.Decide(t.Context(), nil)
	for _, err := range []error{err, r.SelfTest(t.Context(), pacing.SelfTest)} {
		testkit.Fails(t, "error", err, script.ErrForbidden, "NOTIFIER_REDIS_SCRIPTING=function needs")
	}
}

// functionRights are the rights to call and to load functions.
var functionRights = append(scripttest.Without(scripttest.Without(scripttest.Rights(), "eval"), "evalsha"), "fcall", "function|load")

// TestFunctionsNeedTwoRights removes one of the two rights from a user, with functions loaded by another worker and without. A self-test
// names the right.
func TestFunctionsNeedTwoRights(t *testing.T) {
	t.Parallel()
	if !servertest.HasFunctions(t) {
		return // TestServerWithoutFunctions has what such a server answers
	}
	server := servertest.StartRedis(t)
	function := func(client redis.UniversalClient) *Redis {
		return newRedisBy(client, scripttest.UserPrefix, script.Functions, scriptSettings(t))
	}
	testkit.NoError(t, function(scripttest.SetUser(t, server, "both", functionRights)).SelfTest(t.Context(), pacing.SelfTest))
	for _, loaded := range []bool{true, false} {
		for _, right := range []string{"fcall", "function|load"} {
			if !loaded {
				server.CLI("FUNCTION", "FLUSH", "SYNC")
			}
			client := scripttest.SetUser(t, server, "without", scripttest.Without(functionRights, right))
			err := function(client).SelfTest(t.Context(), pacing.SelfTest)
			if !errors.Is(err, script.ErrForbidden) || !errors.Is(err, script.ErrRefused) || !strings.Contains(err.Error(), "lacks the right +"+right+" ") {
				t.Errorf("without +%s, functions loaded: %t: error %v, want %v that names it", right, loaded, err, script.ErrForbidden)
			}
		}
	}
}
