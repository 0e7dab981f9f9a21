package script

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	o       Options
	prefix  string   // of every key
	suffix  string   // of every key; "" outside of self-tests
	library *library // nil: the scripts run as such
	named   *names   // keys of a self-test's calls; nil outside of self-tests

	scripts   map[lua.Script]*redis.Script // with all algorithms: events may come from before a change of limits
	evaluator *atomic.Pointer[composed]    // with the algorithms in force alone, which keeps calls cheap
}

// evaluating is the script that decides about new events.
const evaluating = lua.Decide

// composed is a script that was composed of algorithms.
type composed struct {
	algorithms []string
	script     *redis.Script
}

// NewRunner makes a Runner for all algorithms. It does not talk to the server.
func NewRunner(o Options) *Runner {
	if o.Source == nil {
		o.Source = lua.Source
	}
	if o.Library == nil {
		o.Library = lua.Library
	}
	r := &Runner{
		o: o, prefix: "{" + o.Prefix + "}:", scripts: make(map[lua.Script]*redis.Script), evaluator: new(atomic.Pointer[composed]),
	}
	if o.Scripting == Functions {
		name, source := o.Library()
		r.library = &library{name, source}
	}
	for _, script := range lua.Scripts {
		r.scripts[script] = redis.NewScript(o.Source(script, lua.Algorithms))
	}
	r.evaluator.Store(&composed{lua.Algorithms, r.scripts[evaluating]})
	return r
}

// Options returns the options that NewRunner got.
func (r *Runner) Options() Options { return r.o }

// Adopt has the script that evaluates new events composed of these algorithms alone.
func (r *Runner) Adopt(algorithms []string) {
	if !slices.Equal(r.evaluator.Load().algorithms, algorithms) {
		r.evaluator.Store(&composed{algorithms, redis.NewScript(r.o.Source(evaluating, algorithms))})
	}
}

// Scratch makes a Runner for a self-test, with its own keys under the deployment's hash tag. The deployment's user may use these keys, and
// no deployment does.
func (r *Runner) Scratch(name string) *Runner {
	scratch := *r
	scratch.suffix, scratch.named = ":scratch:"+name, &names{all: make(map[string]bool)}
	scratch.evaluator = new(atomic.Pointer[composed])
	scratch.evaluator.Store(r.evaluator.Load())
	return &scratch
}

// names are the keys that calls have named.
type names struct {
	mu  sync.Mutex
	all map[string]bool
}

func (n *names) add(keys []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, key := range keys {
		n.all[key] = true
	}
}

// Discard removes the keys that the calls of a self-test have named. Some of them would otherwise stay for a year. It uses PEXPIRE, to which
// scripts need the right anyway.
func (r *Runner) Discard(ctx context.Context) error {
	r.named.mu.Lock()
	defer r.named.mu.Unlock()
	return r.Read(context.WithoutCancel(ctx), "removing the keys of the self-test", func(ctx context.Context, client redis.Cmdable) error {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for key := range r.named.all {
				pipe.PExpire(ctx, key, 0)
			}
			return nil
		})
		return err
	})
}

// Key is the deployment's key of a name.
func (r *Runner) Key(name string) string { return r.prefix + name + r.suffix }

// Keys are the deployment's keys of these names.
func (r *Runner) Keys(names ...string) []string {
	keys := make([]string, len(names))
	for i, name := range names {
		keys[i] = r.Key(name)
	}
	return keys
}

// Absent is the key that never exists. Each call names it. A cluster node that gives its slot away answers TRYAGAIN to such a call and
// begins nothing. Without the absent key the node runs a script whose keys it still has, takes a key that the script deletes for one that
// has moved, and ends the script halfway.
func (r *Runner) Absent() string { return r.Key("absent") }

// RunInt calls a script that answers with one number.
func (r *Runner) RunInt(ctx context.Context, tried string, script lua.Script, keys []string, arguments []any) (int64, error) {
	number, err := r.call(ctx, script, keys, arguments).Int64()
	return number, classify(tried, err)
}

// RunNumbers calls a script that answers with so many numbers.
func (r *Runner) RunNumbers(ctx context.Context, tried string, script lua.Script, keys []string, arguments []any, count int) ([]int64, error) {
	return RunDecoded(ctx, r, Call{tried, script, keys, arguments}, func(reply []any) ([]int64, error) { return Numbers(reply, count) })
}

// RunTexts calls a script that answers with texts.
func (r *Runner) RunTexts(ctx context.Context, tried string, script lua.Script, keys []string, arguments []any) ([]string, error) {
	return RunDecoded(ctx, r, Call{tried, script, keys, arguments}, Texts)
}

// Call is a call of a script. Tried describes it in errors.
type Call struct {
	Tried     string
	Script    lua.Script
	Keys      []string
	Arguments []any
}

// RunDecoded calls a script and decodes its reply. An error says what was tried, and has a class.
func RunDecoded[T any](ctx context.Context, r *Runner, c Call, decode func(reply []any) (T, error)) (decoded T, err error) {
	reply, err := r.call(ctx, c.Script, c.Keys, c.Arguments).Slice()
	if err != nil {
		return decoded, classify(c.Tried, err)
	}
	if decoded, err = decode(reply); err != nil {
		return decoded, fmt.Errorf("%s: %w", c.Tried, err)
	}
	return decoded, nil
}

func (r *Runner) call(ctx context.Context, script lua.Script, keys []string, arguments []any) *redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	keys = r.marked(ctx, append(keys, r.Absent()))
	if r.named != nil {
		r.named.add(keys)
	}
	if r.library != nil {
		return r.library.run(ctx, r.o.Client, script, keys, arguments)
	}
	run := r.scripts[script]
	if script == evaluating {
		run = r.evaluator.Load().script
	}
	reply := run.Run(ctx, r.o.Client, keys, arguments...)
	reply.SetErr(explainLack(reply.Err()))
	return reply
}

// Load loads the library, if the scripts run as functions. It does so even if another worker has: the server may have changed.
func (r *Runner) Load(ctx context.Context) error {
	if r.library == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	return classify("loading the functions", r.library.load(ctx, r.o.Client, r.Key("calls")))
}

// Time returns the time of the server that has the deployment's keys. A client of a cluster sends TIME to any server, since TIME has no key.
func (r *Runner) Time(ctx context.Context) (time.Time, error) {
	node, err := Owner(ctx, r.o.Client, r.Key("calls"))
	if err != nil {
		return time.Time{}, err
	}
	return node.Time(ctx).Result()
}

// Read makes other calls than scripts, within the timeout of one call. An error of read gets a class. A key that does not exist is no
// error.
func (r *Runner) Read(ctx context.Context, tried string, read func(ctx context.Context, client redis.Cmdable) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	err := read(ctx, r.o.Client)
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return classify(tried, err)
}

// Owner returns the server that has a key. In a cluster, no other server has any key of the deployment.
func Owner(ctx context.Context, client redis.UniversalClient, key string) (redis.Cmdable, error) {
	if cluster, isCluster := client.(*redis.ClusterClient); isCluster {
		return cluster.MasterForKey(ctx, key)
	}
	return client, nil
}

// globs escapes the special characters of a SCAN pattern.
var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// scanned is how many keys one step of SCAN looks at.
const scanned = 1000

// Names lists the names of the deployment's keys, without the prefix. It needs the right to SCAN, which workers do not have. With an
// error it returns the names that it found before the error.
func (r *Runner) Names(ctx context.Context, tried string) ([]string, error) {
	node, err := Owner(ctx, r.o.Client, r.Key("calls"))
	if err != nil {
		return nil, classify(tried, err)
	}
	var names []string
	keys := node.Scan(ctx, 0, globs.Replace(r.prefix)+"*", scanned).Iterator()
	for keys.Next(ctx) {
		names = append(names, strings.TrimPrefix(keys.Val(), r.prefix))
	}
	return names, classify(tried, keys.Err())
}
