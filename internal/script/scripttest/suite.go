package scripttest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// Operation is a call of a script, after the seed of its suite.
type Operation struct {
	Name    string
	Touches []string // the names of the keys on which it depends
	Writes  []string // the commands with which it writes
	Trims   []string // of Touches: sorted sets from which it removes what counts no more, in pieces
	Call    func(ctx context.Context, runner *script.Runner) error
}

// Suite is what a set of scripts has to pass.
type Suite struct {
	Seed       func(ctx context.Context, runner *script.Runner) error
	Keys       []string // the names of all keys that an operation may touch
	Operations []Operation
	SelfTest   func(ctx context.Context, scratch *script.Runner) error
}

// writing are the commands with which scripts write.
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

func (s Suite) seed(t *testing.T, runner *script.Runner) {
	t.Helper()
	if err := s.Seed(t.Context(), runner); err != nil {
		t.Fatal(err)
	}
}

func (s Suite) keysExpire(t *testing.T) {
	client := NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, o := range s.Operations {
		t.Run(o.Name, func(t *testing.T) {
			// Alone, on an empty server, and after the seed.
			client.FlushDB(t.Context())
			runner := newRunner(client)
			if err := o.Call(t.Context(), runner); err != nil {
				t.Fatal(err)
			}
			WantExpiries(t, client)
			s.seed(t, runner)
			if err := o.Call(t.Context(), runner); err != nil {
				t.Fatal(err)
			}
			WantExpiries(t, client)
		})
	}
}

func (s Suite) mayBeFlushed(t *testing.T, scripting script.Scripting, what string) {
	server := servertest.StartRedis(t)
	client := NewClient(t, redis.Options{Addr: server.Addr})
	runner := script.NewRunner(script.Options{Client: client, Prefix: UserPrefix, Timeout: Patience, Scripting: scripting})
	s.seed(t, runner)
	for _, o := range s.Operations {
		server.CLI(what, "FLUSH", "SYNC")
		if err := o.Call(t.Context(), runner); err != nil {
			t.Errorf("%s after %s FLUSH: %v", o.Name, what, err)
		}
	}
}

func (s Suite) wrongTypes(t *testing.T) {
	client := NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, key := range s.Keys {
		for _, o := range s.Operations {
			t.Run(key+"/"+o.Name, func(t *testing.T) {
				client.FlushDB(t.Context())
				runner := newRunner(client)
				s.seed(t, runner)
				client.Del(t.Context(), runner.Key(key))
				client.RPush(t.Context(), runner.Key(key), "a list")
				client.PExpire(t.Context(), runner.Key(key), time.Hour)
				before := Contents(t, client)
				err := o.Call(t.Context(), runner)
				WantExpiries(t, client)
				if !slices.Contains(o.Touches, key) {
					if err != nil {
						t.Fatalf("it does not need that key: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) || errors.Is(err, script.ErrUnavailable) || !strings.Contains(err.Error(), "WRONGTYPE") {
					t.Fatalf("error %v, want %v of a wrong type", err, script.ErrRefused)
				}
				WantUnchanged(t, client, before)
			})
		}
	}
}

func (s Suite) enoughRights(t *testing.T) {
	server := servertest.StartRedis(t)
	runner := newRunner(SetUser(t, server, "worker", Rights()))
	s.seed(t, runner)
	for _, o := range s.Operations {
		if err := o.Call(t.Context(), runner); err != nil {
			t.Errorf("%s: %v", o.Name, err)
		}
	}
	if err := s.SelfTest(t.Context(), runner.Scratch("test")); err != nil {
		t.Errorf("self-test: %v", err)
	}
	for _, key := range WantExpiries(t, NewClient(t, redis.Options{Addr: server.Addr})) {
		if !strings.HasPrefix(key, runner.Key("")) {
			t.Errorf("key %q is not of this deployment", key)
		}
	}
}

func (s Suite) missingRights(t *testing.T) {
	server := servertest.StartRedis(t)
	admin := NewClient(t, redis.Options{Addr: server.Addr})
	for _, command := range writing {
		client := SetUser(t, server, "without-"+command, Without(Rights(), command))
		for _, o := range s.Operations {
			t.Run(command+"/"+o.Name, func(t *testing.T) {
				admin.FlushDB(t.Context())
				runner := newRunner(admin)
				s.seed(t, runner)
				if command == "zremrangebyrank" { // it is used where something is there to be removed
					for _, name := range o.Trims {
						Plant(t, admin, runner.Key(name), "stale-", 1, 1)
					}
				}
				before := Contents(t, admin)
				err := o.Call(t.Context(), newRunner(client))
				WantExpiries(t, admin)
				if !slices.Contains(o.Writes, command) {
					if err != nil {
						t.Fatalf("it does not need that command: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) {
					t.Fatalf("error %v, want %v", err, script.ErrRefused)
				}
				WantUnchanged(t, admin, before)
			})
		}
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
	s.seed(t, runner)
	for _, o := range s.Operations {
		if err := o.Call(t.Context(), runner); err != nil { // the script is loaded
			t.Fatalf("%s: %v", o.Name, err)
		}
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

// outOfMemory shows that a server without memory refuses wholly, or does wholly what it is asked.
func (s Suite) outOfMemory(t *testing.T) {
	server := servertest.StartRedis(t)
	client := NewClient(t, redis.Options{Addr: server.Addr})
	for _, o := range s.Operations {
		t.Run(o.Name, func(t *testing.T) {
			client.FlushDB(t.Context())
			runner := newRunner(client)
			s.seed(t, runner)
			before := Contents(t, client)
			server.CLI("CONFIG", "SET", "maxmemory", "1mb")
			err := o.Call(t.Context(), runner)
			server.CLI("CONFIG", "SET", "maxmemory", "0")
			WantExpiries(t, client)
			if err != nil {
				if !errors.Is(err, script.ErrRefused) {
					t.Errorf("error %v, want %v", err, script.ErrRefused)
				}
				WantUnchanged(t, client, before)
			}
		})
	}
}

const (
	tail  = 20_000 // members of a set that count no more
	spare = 500    // SPARE of the scripts
	added = 16     // no operation adds more
)

// trims leaves each sorted set a long tail of what counts no more. No call removes more than a piece of it, and none removes
// nothing.
func (s Suite) trims(t *testing.T) {
	client := NewClient(t, redis.Options{Addr: servertest.StartRedis(t).Addr})
	for _, o := range s.Operations {
		if len(o.Trims) == 0 {
			continue
		}
		t.Run(o.Name, func(t *testing.T) {
			client.FlushDB(t.Context())
			runner := newRunner(client)
			s.seed(t, runner)
			for _, name := range o.Trims {
				Plant(t, client, runner.Key(name), "planted-", tail, 1)
			}
			if err := o.Call(t.Context(), runner); err != nil {
				t.Fatal(err)
			}
			removed := 0
			for _, name := range o.Trims {
				removed += tail - Planted(t, client, runner.Key(name), "planted-")
			}
			if removed == 0 || removed > 2*spare+2*added*len(o.Trims) {
				t.Errorf("%d of %d in each of %d sets were removed", removed, tail, len(o.Trims))
			}
		})
	}
}
