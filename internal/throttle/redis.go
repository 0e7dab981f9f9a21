package throttle

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/lua"
)

// MaxBatch is how many events one script call should carry at most: Redis does nothing else meanwhile, and more gains
// little.
const MaxBatch = 256

// Redis is the limiter that all instances of a deployment share. Its time is the server's.
type Redis struct {
	client   redis.UniversalClient
	keys     keys
	settings Settings
	timeout  time.Duration

	decide, finish, extend, refund, restore, pause, usage *redis.Script
}

// RedisOptions say where the logs are.
type RedisOptions struct {
	Client  redis.UniversalClient
	Prefix  string        // of every key, and their hash tag
	Timeout time.Duration // of one call, all its tries together
}

// NewRedis makes a limiter. It does not talk to the server.
func NewRedis(o RedisOptions, s Settings) *Redis {
	return &Redis{
		client:   o.Client,
		keys:     newKeys(o.Prefix),
		settings: s,
		timeout:  o.Timeout,
		decide:   redis.NewScript(lua.Decide),
		finish:   redis.NewScript(lua.Finish),
		extend:   redis.NewScript(lua.Extend),
		refund:   redis.NewScript(lua.Refund),
		restore:  redis.NewScript(lua.Restore),
		pause:    redis.NewScript(lua.Pause),
		usage:    redis.NewScript(lua.Usage),
	}
}

// keys builds every key of one deployment.
type keys struct {
	calls, leased, done, message, pauses, root string
}

func newKeys(prefix string) keys {
	tag := "{" + prefix + "}:"
	return keys{
		calls: tag + "calls", leased: tag + "leased", done: tag + "done", message: tag + "message",
		pauses: tag + "pauses", root: tag + "log",
	}
}

// scratch gives keys under the same hash tag that no deployment uses.
func (k keys) scratch(name string) keys {
	within := func(key string) string { return key + ":scratch:" + name }
	return keys{
		calls: within(k.calls), leased: within(k.leased), done: within(k.done), message: within(k.message),
		pauses: within(k.pauses), root: within(k.root),
	}
}

func (k keys) log(path string) string {
	if path == "" {
		return k.root
	}
	return k.root + ":" + path
}

func (r *Redis) run(ctx context.Context, script *redis.Script, keys []string, arguments []any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return script.Run(ctx, r.client, keys, arguments...).Slice()
}

func (r *Redis) runInt(ctx context.Context, script *redis.Script, keys []string, arguments []any) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	return script.Run(ctx, r.client, keys, arguments...).Int64()
}

func microseconds(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// newNonce names one call of the decide script.
func newNonce() string { return rand.Text() }

// Decide implements [Limiter].
func (r *Redis) Decide(ctx context.Context, requests []Request) (Ruling, error) {
	return r.decideBatch(ctx, newNonce(), requests)
}

// decideBatch makes one script call. Calling it again with the same nonce and requests gives the same answer.
func (r *Redis) decideBatch(ctx context.Context, nonce string, requests []Request) (Ruling, error) {
	call := newDecideCall(r.keys, r.settings, nonce, requests)
	reply, err := r.run(ctx, r.decide, call.keys, call.arguments)
	if err != nil {
		return Ruling{}, classify("asking the limits", err)
	}
	ruling, err := call.decode(reply)
	if err != nil {
		return Ruling{}, fmt.Errorf("asking the limits: %w: %w", ErrRefused, err)
	}
	return ruling, nil
}

// Finish implements [Limiter].
func (r *Redis) Finish(ctx context.Context, leases []Lease) error {
	if len(leases) == 0 {
		return nil
	}
	arguments := make([]any, 0, 2+2*len(leases))
	arguments = append(arguments, microseconds(r.settings.Lease), microseconds(r.settings.Retention))
	for _, lease := range leases {
		record, stamp := lease.identity()
		arguments = append(arguments, record, stamp)
	}
	_, err := r.runInt(ctx, r.finish, []string{r.keys.calls, r.keys.leased, r.keys.done, r.keys.message}, arguments)
	return classify("recording deliveries", err)
}

// Extend implements [Limiter].
func (r *Redis) Extend(ctx context.Context, leases []Lease, d time.Duration) ([]Lease, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	arguments := make([]any, 0, 2+2*len(leases))
	arguments = append(arguments, microseconds(d), microseconds(r.settings.Retention))
	for _, lease := range leases {
		arguments = append(arguments, lease.record(), lease.End)
	}
	reply, err := r.run(ctx, r.extend, []string{r.keys.calls, r.keys.leased}, arguments)
	if err != nil {
		return nil, classify("extending leases", err)
	}
	numbers, err := decodeNumbers(reply, 1+len(leases))
	if err != nil {
		return nil, fmt.Errorf("extending leases: %w: %w", ErrRefused, err)
	}
	extended := make([]Lease, len(leases))
	for i, lease := range leases {
		lease.End = numbers[0] * numbers[1+i]
		extended[i] = lease
	}
	return extended, nil
}

// Refund implements [Limiter].
func (r *Redis) Refund(ctx context.Context, leases []Lease) ([]bool, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	logs := newLogIndex(r.keys, r.keys.leased, r.keys.message)
	var arguments []any
	for _, lease := range leases {
		record, stamp := lease.identity()
		arguments = append(arguments, record, stamp, lease.End, lease.Cost)
		arguments = logs.appendPath(arguments, r.settings.Tree.Path(lease.Category))
	}
	reply, err := r.run(ctx, r.refund, logs.keys, arguments)
	if err != nil {
		return nil, classify("returning slots", err)
	}
	numbers, err := decodeNumbers(reply, len(leases))
	if err != nil {
		return nil, fmt.Errorf("returning slots: %w: %w", ErrRefused, err)
	}
	returned := make([]bool, len(leases))
	for i := range leases {
		returned[i] = numbers[i] == 1
	}
	return returned, nil
}

// admission is one that was made without Redis.
type admission struct {
	lease     Lease
	at        time.Time
	delivered bool
}

// Restore records admissions that were made without Redis, with their own times, and returns when the leases of those
// that are not delivered yet end. Repeating it is harmless.
func (r *Redis) Restore(ctx context.Context, admissions []admission) (leaseEnd int64, err error) {
	logs := newLogIndex(r.keys, r.keys.calls, r.keys.leased, r.keys.done, r.keys.message)
	var events []any
	now := time.Now()
	for _, a := range admissions {
		delivered := 0
		if a.delivered {
			delivered = 1
		}
		record, stamp := a.lease.identity()
		events = append(events, record, stamp, microseconds(now.Sub(a.at)), a.lease.Cost, delivered)
		events = logs.appendPath(events, r.settings.Tree.Path(a.lease.Category))
	}
	arguments := []any{microseconds(r.settings.Lease), microseconds(r.settings.Retention), len(logs.nodes)}
	for _, node := range logs.nodes {
		arguments = append(arguments, microseconds(node.Limits.longestWindow()))
	}
	restored, err := r.runInt(ctx, r.restore, logs.keys, append(arguments, events...))
	if err != nil {
		return 0, classify("restoring admissions", err)
	}
	return restored + r.settings.Lease.Microseconds(), nil
}

// Pause lets a destination rest for d, for all instances.
func (r *Redis) Pause(ctx context.Context, destination string, d time.Duration) error {
	_, err := r.runInt(ctx, r.pause, []string{r.keys.calls, r.keys.pauses}, []any{destination, microseconds(d)})
	return classify("pausing a destination", err)
}

// Usage tells how many slots are taken now, for each limit of each node.
func (r *Redis) Usage(ctx context.Context, nodes []Node) ([][]int64, error) {
	if len(nodes) == 0 {
		return nil, nil
	}
	var (
		keys      = []string{r.keys.calls}
		arguments []any
		total     int
	)
	for _, node := range nodes {
		keys = append(keys, r.keys.log(node.Path))
		arguments = append(arguments, len(node.Limits))
		for _, limit := range node.Limits {
			arguments = append(arguments, microseconds(limit.Window))
			total++
		}
	}
	reply, err := r.run(ctx, r.usage, keys, arguments)
	if err != nil {
		return nil, classify("reading the logs", err)
	}
	numbers, err := decodeNumbers(reply, total)
	if err != nil {
		return nil, fmt.Errorf("reading the logs: %w: %w", ErrRefused, err)
	}
	used := make([][]int64, len(nodes))
	for i, node := range nodes {
		used[i], numbers = numbers[:len(node.Limits)], numbers[len(node.Limits):]
	}
	return used, nil
}

// Probe asks the scripts about nothing, to see that they can be asked, with the root's log among the keys.
func (r *Redis) Probe(ctx context.Context) error {
	if _, err := r.decideBatch(ctx, newNonce(), nil); err != nil {
		return err
	}
	_, err := r.Usage(ctx, r.settings.Tree.Path(""))
	return err
}

// Rehearse runs every script that a worker needs, as this user, on keys that no deployment uses and that expire by
// themselves. It shows missing rights.
func (r *Redis) Rehearse(ctx context.Context) error {
	one := Limits{{Count: 1, Window: time.Second}}
	tree, err := NewTree(one, one, nil)
	if err != nil {
		return err
	}
	scratch := *r
	scratch.keys = r.keys.scratch(newNonce())
	scratch.settings = Settings{Tree: tree, Lease: time.Minute, Retention: time.Second}
	request := Request{ID: "rehearsal", Message: Message{Stored: time.Now()}, Category: "rehearsal", Cost: 1}
	ruling, err := scratch.Decide(ctx, []Request{request})
	if err != nil {
		return err
	}
	lease := []Lease{ruling.Decisions[0].Lease}
	if lease, err = scratch.Extend(ctx, lease, time.Minute); err != nil {
		return err
	}
	if _, err = scratch.Refund(ctx, lease); err != nil {
		return err
	}
	if err = scratch.Finish(ctx, lease); err != nil {
		return err
	}
	if _, err = scratch.Restore(ctx, []admission{{lease: lease[0], at: time.Now(), delivered: true}}); err != nil {
		return err
	}
	return scratch.Pause(ctx, "rehearsal", time.Second)
}
