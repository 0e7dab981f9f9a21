package script

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// Options say where and how the scripts run.
type Options struct {
	Client  redis.UniversalClient
	Prefix  string        // of every key, and their hash tag
	Timeout time.Duration // of one call, all its tries together

	Scripting Scripting // how the scripts run; "" is Eval

	// Source composes a script, Library all of them. nil: as package lua does. Tests hand in a clock of their own.
	Source  func(script lua.Script, algorithms []string) string
	Library func() (name, source string)
}

// Runner runs the scripts of one deployment.
type Runner struct {
	o        Options
	prefix   string // of every key
	suffix   string // of every key; "" outside of self-tests
	composed *atomic.Pointer[composed]
	library  *library // nil: the scripts run as such
}

// NewRunner makes a Runner for all algorithms. It does not talk to the server.
func NewRunner(o Options) *Runner {
	if o.Source == nil {
		o.Source = lua.Source
	}
	if o.Library == nil {
		o.Library = lua.Library
	}
	r := &Runner{o: o, prefix: "{" + o.Prefix + "}:", composed: new(atomic.Pointer[composed])}
	if o.Scripting == Functions {
		r.library = newLibrary(o.Library)
	}
	r.composed.Store(compose(o.Source, lua.Algorithms, nil))
	return r
}

// Options are those that the Runner was made with.
func (r *Runner) Options() Options { return r.o }

// Adopt has the script that judges new events composed of these algorithms alone.
func (r *Runner) Adopt(algorithms []string) {
	before := r.composed.Load()
	if !slices.Equal(before.algorithms, algorithms) {
		r.composed.Store(compose(r.o.Source, algorithms, before))
	}
}

// Scratch makes a Runner for a self-test, with keys of its own under the same hash tag. The deployment's user may use them, and
// no deployment does.
func (r *Runner) Scratch(name string) *Runner {
	scratch := *r
	scratch.suffix = ":scratch:" + name
	scratch.composed = new(atomic.Pointer[composed])
	scratch.composed.Store(r.composed.Load())
	return &scratch
}

// Key is the deployment's key of a name.
func (r *Runner) Key(name string) string { return r.prefix + name + r.suffix }

// Absent is the key that never exists. Each call names it. Without it, a cluster node that gives its slot away accepts a call
// whose keys it still has, takes a key that the script deletes for one that has moved, and ends the script halfway. With it, the
// node answers TRYAGAIN and begins nothing.
func (r *Runner) Absent() string { return r.Key("absent") }

// Run calls a script. An error says what was tried, and has a class.
func (r *Runner) Run(ctx context.Context, tried string, script lua.Script, keys []string, arguments []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	reply, err := r.call(ctx, script, keys, arguments).Slice()
	return reply, classify(tried, err)
}

// RunInt calls a script that answers with one number.
func (r *Runner) RunInt(ctx context.Context, tried string, script lua.Script, keys []string, arguments []any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	number, err := r.call(ctx, script, keys, arguments).Int64()
	return number, classify(tried, err)
}

// RunNumbers calls a script that answers with so many numbers.
func (r *Runner) RunNumbers(
	ctx context.Context, tried string, script lua.Script, keys []string, arguments []any, count int,
) ([]int64, error) {
	reply, err := r.Run(ctx, tried, script, keys, arguments)
	if err != nil {
		return nil, err
	}
	numbers, err := Numbers(reply, count)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tried, err)
	}
	return numbers, nil
}

func (r *Runner) call(ctx context.Context, script lua.Script, keys []string, arguments []any) *redis.Cmd {
	keys = append(keys, r.Absent())
	if r.library != nil {
		return r.library.run(ctx, r.o.Client, script, keys, arguments)
	}
	return r.composed.Load().scripts[script].Run(ctx, r.o.Client, keys, arguments...)
}

// Load loads the library, if the scripts run as functions, even if another worker has done so: the server may have changed.
func (r *Runner) Load(ctx context.Context) error {
	if r.library == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	return classify("loading the functions", r.library.load(ctx, r.o.Client, r.Key("calls")))
}

// Read makes other calls than scripts, within the timeout of one call. An error of read gets a class.
func (r *Runner) Read(ctx context.Context, tried string, read func(ctx context.Context, client redis.Cmdable) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	return classify(tried, read(ctx, r.o.Client))
}

// owner is the server that has a key: in a cluster no other one has any key of the deployment.
func owner(ctx context.Context, client redis.UniversalClient, key string) (redis.Cmdable, error) {
	if cluster, isCluster := client.(*redis.ClusterClient); isCluster {
		return cluster.MasterForKey(ctx, key)
	}
	return client, nil
}

// composed are the scripts for EVAL. The script that judges new events has the algorithms of the limits in force, so that a call
// costs no more than it must. The others have all algorithms: their events may come from before a change of limits.
type composed struct {
	algorithms []string
	scripts    map[lua.Script]*redis.Script
}

// compose takes from before what both share.
func compose(source func(lua.Script, []string) string, algorithms []string, before *composed) *composed {
	c := &composed{algorithms: algorithms, scripts: make(map[lua.Script]*redis.Script, len(lua.Scripts))}
	for _, name := range lua.Scripts {
		switch {
		case name == lua.Decide:
			c.scripts[name] = redis.NewScript(source(name, algorithms))
		case before != nil:
			c.scripts[name] = before.scripts[name]
		default:
			c.scripts[name] = redis.NewScript(source(name, lua.Algorithms))
		}
	}
	return c
}
