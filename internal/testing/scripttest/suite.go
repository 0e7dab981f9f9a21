package scripttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Operation is a call of a script, after the seed of its suite.
type Operation struct {
	Name    string
	Touches []string // names of the keys that it depends on
	Writes  []string // the commands that it writes with
	Trims   []string // of Touches: sorted sets that it trims of expired members, in pieces
	Call    func(ctx context.Context, runner *script.Runner) error
}

// Only returns the error of a call whose answer does not matter.
func Only[T any](_ T, err error) error { return err }

// Suite is what a set of scripts has to pass.
type Suite struct {
	Seed       func(ctx context.Context, runner *script.Runner) error
	Keys       []string // the names of all keys that an operation may touch
	Operations []Operation
	SelfTest   func(ctx context.Context, scratch *script.Runner) error
}

// writing lists the write commands of the scripts.
var writing = []string{"zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel", "set"}

// Run runs the suite on servers of its own.
func (s Suite) Run(t *testing.T) {
	t.Helper()
	for name, test := range map[string]func(*testing.T){
		"every key expires":         s.keysExpire,
		"scripts may be flushed":    func(t *testing.T) { s.mayBeFlushed(t, script.Eval, "SCRIPT") },
		"functions may be flushed":  func(t *testing.T) { s.mayBeFlushed(t, script.Functions, "FUNCTION") },
		"a key of the wrong type":   s.wrongTypes,
		"rights that are enough":    s.enoughRights,
		"a missing right to write":  s.missingRights,
		"a self-test finds a right": s.selfTestFindsRights,
		"a reply is lost":           s.lostReplies,
		"out of memory":             s.outOfMemory,
		"long tails go in pieces":   s.trims,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// newRunner makes a runner of the deployment that the users of SetUser may use.
func newRunner(client redis.UniversalClient) *script.Runner {
	return script.NewRunner(script.Options{Client: client, Prefix: UserPrefix, Timeout: Patience})
}

// newServer starts a server and makes a client of it.
func newServer(t *testing.T) (*servertest.Redis, *redis.Client) {
	t.Helper()
	server := servertest.StartRedis(t)
	return server, NewClient(t, redis.Options{Addr: server.Addr})
}

// each runs a test for each operation, on a server that holds nothing but the seed.
func (s Suite) each(t *testing.T, client redis.UniversalClient, test func(t *testing.T, o Operation, runner *script.Runner)) {
	t.Helper()
	for _, o := range s.Operations {
		t.Run(o.Name, func(t *testing.T) {
			client.FlushDB(t.Context())
			runner := newRunner(client)
			testkit.NoError(t, s.Seed(t.Context(), runner))
			keepSeed(t, client)
			test(t, o, runner)
		})
	}
}

// keepSeed keeps all keys for ExpiryMargin at least. A test compares the keys before and after a call, which may take seconds on a busy machine.
func keepSeed(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	const keep = `for _, key in ipairs(redis.call('KEYS', '*')) do
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), tonumber(ARGV[1])))
end
return 1`
	testkit.NoError(t, client.Eval(t.Context(), keep, nil, ExpiryMargin.Milliseconds()).Err())
}

// wantRefused checks that a call was refused wholly: a server holds what it held before.
func wantRefused(t *testing.T, err error, client redis.UniversalClient, before map[string]string) {
	t.Helper()
	if !errors.Is(err, script.ErrRefused) {
		t.Errorf("error %v, want %v", err, script.ErrRefused)
	}
	WantUnchanged(t, client, before)
}

func (s Suite) keysExpire(t *testing.T) {
	_, client := newServer(t)
	s.each(t, client, func(t *testing.T, o Operation, runner *script.Runner) {
		testkit.NoError(t, o.Call(t.Context(), runner))
		WantExpiries(t, client)
		client.FlushDB(t.Context())
		testkit.NoError(t, o.Call(t.Context(), newRunner(client)))
		WantExpiries(t, client)
	})
}

func (s Suite) mayBeFlushed(t *testing.T, scripting script.Scripting, what string) {
	server, client := newServer(t)
	runner := script.NewRunner(script.Options{Client: client, Prefix: UserPrefix, Timeout: Patience, Scripting: scripting})
	if !slices.Contains(Ways(t), scripting) {
		testkit.Fails(t, "the seed", s.Seed(t.Context(), runner), script.ErrForbidden, "NOTIFIER_REDIS_SCRIPTING=function needs")
		return
	}
	testkit.NoError(t, s.Seed(t.Context(), runner))
	for _, o := range s.Operations {
		server.CLI(what, "FLUSH", "SYNC")
		if err := o.Call(t.Context(), runner); err != nil {
			t.Errorf("%s after %s FLUSH: %v", o.Name, what, err)
		}
	}
}

func (s Suite) wrongTypes(t *testing.T) {
	_, client := newServer(t)
	for _, key := range s.Keys {
		t.Run(key, func(t *testing.T) {
			s.each(t, client, func(t *testing.T, o Operation, runner *script.Runner) {
				client.Del(t.Context(), runner.Key(key))
				client.RPush(t.Context(), runner.Key(key), "a list")
				client.PExpire(t.Context(), runner.Key(key), time.Hour)
				before := Contents(t, client)
				err := o.Call(t.Context(), runner)
				WantExpiries(t, client)
				if !slices.Contains(o.Touches, key) {
					testkit.NoError(t, err) // it does not need that key
					return
				}
				if errors.Is(err, script.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "WRONGTYPE") {
					t.Errorf("error %v, want one of a wrong type", err)
				}
				wantRefused(t, err, client, before)
			})
		})
	}
}

func (s Suite) enoughRights(t *testing.T) {
	server, admin := newServer(t)
	runner := newRunner(SetUser(t, server, "worker", Rights()))
	testkit.NoError(t, s.Seed(t.Context(), runner))
	for _, o := range s.Operations {
		if err := o.Call(t.Context(), runner); err != nil {
			t.Errorf("%s: %v", o.Name, err)
		}
	}
	testkit.NoError(t, s.SelfTest(t.Context(), runner.Scratch("test")))
	for _, key := range WantExpiries(t, admin) {
		if !strings.HasPrefix(key, runner.Key("")) {
			t.Errorf("key %q is not of this deployment", key)
		}
	}
}

func (s Suite) missingRights(t *testing.T) {
	server, admin := newServer(t)
	for _, command := range writing {
		limited := newRunner(SetUser(t, server, "without-"+command, Without(Rights(), command)))
		t.Run(command, func(t *testing.T) {
			s.each(t, admin, func(t *testing.T, o Operation, runner *script.Runner) {
				if command == "zremrangebyrank" { // it is used where something is there to be removed
					for _, name := range o.Trims {
						Plant(t, admin, runner.Key(name), "stale-", 1, 1)
					}
				}
				before := Contents(t, admin)
				err := o.Call(t.Context(), limited)
				WantExpiries(t, admin)
				if !slices.Contains(o.Writes, command) {
					testkit.NoError(t, err) // it does not need that command
					return
				}
				wantRefused(t, err, admin, before)
			})
		})
	}
}

// selfTestFindsRights has the self-test find each right that an operation needs to write. On the keys of a self-test nothing is
// there to be removed by rank.
func (s Suite) selfTestFindsRights(t *testing.T) {
	server := servertest.StartRedis(t)
	for _, command := range writing {
		if command == "zremrangebyrank" || !slices.ContainsFunc(s.Operations, func(o Operation) bool { return slices.Contains(o.Writes, command) }) {
			continue
		}
		client := SetUser(t, server, "without-"+command, Without(Rights(), command))
		if err := s.SelfTest(t.Context(), newRunner(client).Scratch("without-"+command)); !errors.Is(err, script.ErrRefused) {
			t.Errorf("a self-test without %s: %v", command, err)
		}
	}
}

// lostReplies has the client repeat each call, because the reply was lost on the way.
func (s Suite) lostReplies(t *testing.T) {
	proxy := servertest.StartProxy(t, servertest.StartRedis(t).Addr)
	runner := newRunner(NewClient(t, redis.Options{Addr: proxy.Addr, MaxRetries: 3}))
	testkit.NoError(t, s.Seed(t.Context(), runner))
	for _, o := range s.Operations {
		testkit.NoError(t, o.Call(t.Context(), runner)) // the script is loaded
		happened := proxy.CutAfterRequest("evalsha")
		if err := o.Call(t.Context(), runner); err != nil {
			t.Errorf("%s, whose first reply is lost: %v", o.Name, err)
		}
		select {
		case <-happened:
		case <-time.After(Patience):
			t.Fatal("no reply was lost")
		}
	}
}

// outOfMemory shows that on a server without memory a call either succeeds completely or changes nothing.
func (s Suite) outOfMemory(t *testing.T) {
	server, client := newServer(t)
	s.each(t, client, func(t *testing.T, o Operation, runner *script.Runner) {
		before := Contents(t, client)
		server.CLI("CONFIG", "SET", "maxmemory", "1mb")
		err := o.Call(t.Context(), runner)
		server.CLI("CONFIG", "SET", "maxmemory", "0")
		WantExpiries(t, client)
		if err != nil {
			wantRefused(t, err, client, before)
		}
	})
}

const (
	tail  = 20_000 // members of a set that count no more
	spare = 500    // SPARE of the scripts
	added = 16     // no operation adds more
)

// trims leaves each sorted set a long tail of what counts no more. No call removes more than a piece of it, and none removes
// nothing.
func (s Suite) trims(t *testing.T) {
	_, client := newServer(t)
	s.each(t, client, func(t *testing.T, o Operation, runner *script.Runner) {
		for _, name := range o.Trims {
			Plant(t, client, runner.Key(name), "planted-", tail, 1)
		}
		testkit.NoError(t, o.Call(t.Context(), runner))
		removed := 0
		for _, name := range o.Trims {
			removed += tail - Planted(t, client, runner.Key(name), "planted-")
		}
		if len(o.Trims) > 0 && removed == 0 || removed > 2*spare+2*added*len(o.Trims) {
			t.Errorf("%d of %d in each of %d sets were removed", removed, tail, len(o.Trims))
		}
	})
}
