package throttle

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Scripting says how the scripts run in Redis.
type Scripting string

// The ways to run scripts.
const (
	Eval      Scripting = "eval"     // as scripts, on every server
	Functions Scripting = "function" // as a library of functions, on Redis 7 and later
	Auto      Scripting = "auto"     // functions where the server has them and the user may load them
)

// sources are those of package lua, but for tests.
type sources struct {
	script  func(script lua.Script, algorithms []string) string
	library func() (name, source string)
}

// scripts run the scripts. As such they are composed of algorithms: those that the limits in force use where new events
// are judged, so that a call costs no more than it must, and all of them where events may come from before a change of
// limits. A library has all of them, and is read by the server once.
type scripts struct {
	algorithms []string
	scripts    map[lua.Script]*redis.Script
	library    *library
}

// newScripts composes them. What those before share with them is taken over.
func newScripts(source func(lua.Script, []string) string, algorithms []string, before *scripts, library *library) *scripts {
	s := &scripts{algorithms: algorithms, scripts: make(map[lua.Script]*redis.Script, len(lua.Scripts)), library: library}
	for _, name := range lua.Scripts {
		switch {
		case name == lua.Decide:
			s.scripts[name] = redis.NewScript(source(name, algorithms))
		case before != nil:
			s.scripts[name] = before.scripts[name]
		default:
			s.scripts[name] = redis.NewScript(source(name, lua.Algorithms))
		}
	}
	return s
}

func (s *scripts) run(ctx context.Context, client redis.UniversalClient, script lua.Script, keys []string, arguments []any) *redis.Cmd {
	asFunction, err := s.library.use(ctx, client)
	if err != nil {
		failed := redis.NewCmd(ctx)
		failed.SetErr(err)
		return failed
	}
	if !asFunction {
		return s.scripts[script].Run(ctx, client, keys, arguments...)
	}
	function := lua.Function(s.library.name, script)
	reply := client.FCall(ctx, function, keys, arguments...)
	if err := reply.Err(); err == nil || !isMissingFunction(err) {
		return reply
	}
	if err := s.library.load(ctx, client); err != nil { // a new server, or one that has lost its functions
		reply.SetErr(err)
		return reply
	}
	return client.FCall(ctx, function, keys, arguments...)
}

// library is the scripts as functions. It is found out once whether they are used.
type library struct {
	name, source string
	wanted       Scripting
	decided      atomic.Pointer[Scripting] // Eval or Functions; nil until the server was asked
}

func newLibrary(wanted Scripting, sources func() (name, source string)) *library {
	l := &library{wanted: wanted}
	if wanted == Functions || wanted == Auto {
		l.name, l.source = sources()
		return l
	}
	l.decide(Eval)
	return l
}

func (l *library) decide(way Scripting) { l.decided.Store(&way) }

// use tells whether functions are used, and loads them the first time.
func (l *library) use(ctx context.Context, client redis.UniversalClient) (bool, error) {
	if way := l.decided.Load(); way != nil {
		return *way == Functions, nil
	}
	err := l.load(ctx, client)
	if err != nil && l.wanted == Auto && cannotHaveFunctions(err) {
		l.decide(Eval)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l.decide(Functions)
	return true, nil
}

// load gives the library to the server, in a cluster to each primary. That it is there already is no error.
func (l *library) load(ctx context.Context, client redis.UniversalClient) error {
	load := func(ctx context.Context, c redis.UniversalClient) error {
		err := c.FunctionLoad(ctx, l.source).Err()
		if err != nil && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		return err
	}
	if cluster, isCluster := client.(*redis.ClusterClient); isCluster {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return load(ctx, c) })
	}
	return load(ctx, client)
}

func isMissingFunction(err error) bool { return strings.Contains(err.Error(), "Function not found") }

// cannotHaveFunctions tells that a server or a user has to do without them: an older server does not know the command.
func cannotHaveFunctions(err error) bool {
	return slices.ContainsFunc([]string{"unknown command", "NOPERM", "unknown subcommand"}, func(sign string) bool {
		return strings.Contains(err.Error(), sign)
	})
}
