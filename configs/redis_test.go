package configs_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

// userPassword is the one in redis/users.acl and its comment in redis/redis.conf.
const userPassword = "change-me"

// clientCommands are what the notifier itself sends; the scripts' own commands come from the scripts.
var clientCommands = []string{
	"auth", "client|setname", "eval", "evalsha", "hello", "info", "ping", "script|load",
}

// clusterCommands find the node of a key.
var clusterCommands = []string{"cluster|nodes", "cluster|shards", "cluster|slots", "command", "readonly"}

// samples has one harmless call of each command that a script may use, on the key given.
var samples = map[string]string{
	"get":             `redis.call('GET', KEYS[1])`,
	"hdel":            `redis.call('HDEL', KEYS[1], 'field')`,
	"hget":            `redis.call('HGET', KEYS[1], 'field')`,
	"hset":            `redis.call('HSET', KEYS[1], 'field', 'value')`,
	"pexpire":         `redis.call('PEXPIRE', KEYS[1], 1000)`,
	"set":             `redis.call('SET', KEYS[1], 'value', 'PX', 1000)`,
	"time":            `redis.call('TIME')`,
	"zadd":            `redis.call('ZADD', KEYS[1], 'NX', 1, 'member')`,
	"zcard":           `redis.call('ZCARD', KEYS[1])`,
	"zcount":          `redis.call('ZCOUNT', KEYS[1], '-inf', '+inf')`,
	"zmscore":         `redis.call('ZMSCORE', KEYS[1], 'member')`,
	"zrange":          `redis.call('ZRANGE', KEYS[1], '-inf', '+inf', 'BYSCORE')`,
	"zrem":            `redis.call('ZREM', KEYS[1], 'member')`,
	"zremrangebyrank": `redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1)`,
	"zscore":          `redis.call('ZSCORE', KEYS[1], 'member')`,
}

// scriptCommands reads the scripts for what they call.
func scriptCommands(t *testing.T) []string {
	t.Helper()
	var scripts []string
	for _, pattern := range []string{"../lua/*.lua", "../lua/parts/*.lua", "../lua/algorithms/*.lua"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("look for the scripts: %d, %v", len(found), err)
		}
		scripts = append(scripts, found...)
	}
	var commands []string
	for _, script := range scripts {
		for _, call := range regexp.MustCompile(`\('([A-Z]+)',`+`|call\('([A-Z]+)'`).FindAllStringSubmatch(read(t, script), -1) {
			commands = append(commands, strings.ToLower(call[1]+call[2]))
		}
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

func startWithUsers(t *testing.T, args ...string) *servertest.Redis {
	t.Helper()
	// The server writes the file anew when somebody asks it to, so it gets a copy.
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte(read(t, "redis/users.acl")), 0o600); err != nil {
		t.Fatal(err)
	}
	return servertest.StartRedis(t, append(args, "--aclfile", file)...)
}

func options(addr, user string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs: []string{addr}, Username: user, Password: userPassword,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

func connect(t *testing.T, o *redis.UniversalOptions) redis.UniversalClient {
	t.Helper()
	client := redis.NewUniversalClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func loadRedisUsers(t *testing.T, _ string) {
	ctx := t.Context()
	server := startWithUsers(t)

	if err := connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}}).Ping(ctx).Err(); err == nil {
		t.Error("the default user gets in without a password")
	}

	for _, user := range []string{"notifier", "notifier-cluster"} {
		client := connect(t, options(server.Addr, user))
		if got, want := allowed(t, user), slices.Concat(clientCommands, scriptCommands(t)); user == "notifier" {
			requireSameCommands(t, got, want)
		} else {
			requireSameCommands(t, got, slices.Concat(want, clusterCommands))
		}

		for _, command := range scriptCommands(t) {
			sample, known := samples[command]
			if !known {
				t.Errorf("%s: a script uses it, and the test has no sample of it", command)
				continue
			}
			key := "{notifier}:log:" + command
			if err := client.Eval(ctx, "return "+sample, []string{key}).Err(); err != nil && !errors.Is(err, redis.Nil) {
				t.Errorf("%s: %s in a script: %v", user, command, err)
			}
			err := client.Eval(ctx, "return "+sample, []string{"{other}:log"}).Err()
			if command != "time" && !denied(err) {
				t.Errorf("%s: %s on another deployment's key: %v, want a denial", user, command, err)
			}
		}
		script := redis.NewScript("return redis.call('TIME')")
		if err := script.Load(ctx, client).Err(); err != nil {
			t.Errorf("%s: load a script: %v", user, err)
		}
		if err := script.EvalSha(ctx, client, nil).Err(); err != nil {
			t.Errorf("%s: run a loaded script: %v", user, err)
		}
		if info, err := client.Info(ctx, "memory").Result(); err != nil || !strings.Contains(info, "maxmemory_policy:") {
			t.Errorf("%s: the eviction policy is not told: %v", user, err)
		}
		for _, command := range [][]any{
			{"getdel", "{notifier}:log"},
			{"get", "{other}:counter"},
			{"set", "{other}:counter", "1"},
			{"del", "{notifier}:log"},
			{"keys", "*"},
			{"flushall"},
			{"script", "flush"},
			{"config", "get", "masterauth"},
			{"config", "set", "maxmemory", "0"},
			{"client", "kill", "id", "1"},
			{"acl", "list"},
			{"publish", "channel", "message"},
			{"scan", "0"},
			{"zadd", "{other}:log", 1, "member"},
		} {
			if err := client.Do(ctx, command...).Err(); !denied(err) {
				t.Errorf("%s: %v: %v, want a denial", user, command, err)
			}
		}
		for _, command := range [][]any{{"fcall", "function", "0"}, {"function", "load", "#!lua name=library"}} {
			err := client.Do(ctx, command...).Err()
			if !denied(err) && (err == nil || !strings.Contains(err.Error(), "unknown command")) { // Redis 6.2 has not got them
				t.Errorf("%s: %v: %v, want a denial", user, command, err)
			}
		}
	}
}

// addUsers gives the users of users.acl to a server on which its default user may still do everything.
func addUsers(t *testing.T, server *servertest.Redis) {
	t.Helper()
	for line := range strings.Lines(read(t, "redis/users.acl")) {
		if user := strings.Fields(line); user[1] != "default" {
			server.CLI(append([]string{"acl", "setuser"}, user[1:]...)...)
		}
	}
}

// The scripts run as the plain user, and as functions with the two rights that the comment names.
func TestRedisScripting(t *testing.T) {
	t.Parallel()
	tree, err := throttle.NewTree(throttle.Plan{Global: throttle.Limits{{Count: 100, Window: time.Minute}}})
	if err != nil {
		t.Fatal(err)
	}
	rights := []string{"+fcall", "+function|load"}
	for _, right := range rights {
		if comment := read(t, "redis/redis.conf"); !strings.Contains(comment, right) {
			t.Errorf("the comment does not tell what %s is for", right)
		}
	}
	for name, test := range map[string]struct {
		scripting throttle.Scripting
		rights    []string
		functions bool // run, where the server has them
	}{
		"scripts":                      {throttle.Eval, rights, false},
		"functions, without rights":    {throttle.Functions, nil, false},
		"functions, that are not run":  {throttle.Functions, rights[1:], false},
		"functions, that are not kept": {throttle.Functions, rights[:1], false},
		"functions":                    {throttle.Functions, rights, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.StartRedis(t)
			addUsers(t, server)
			functions := test.functions
			if server.CLI("command", "info", "fcall") == "" { // Redis 6.2
				functions = false
			} else {
				server.CLI(append([]string{"acl", "setuser", "notifier"}, test.rights...)...)
			}
			limiter := throttle.NewRedis(throttle.RedisOptions{
				Client: connect(t, options(server.Addr, "notifier")), Prefix: "notifier", Timeout: wait, Scripting: test.scripting,
			}, throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Minute})
			err := errors.Join(limiter.Rehearse(t.Context()), limiter.Probe(t.Context()))
			if works := test.scripting != throttle.Functions || functions; (err == nil) != works {
				t.Errorf("the scripts run: %v, want success: %t", err, works)
			}
			calls := server.CLI("info", "commandstats")
			if test.scripting == throttle.Functions && !functions {
				return
			}
			for command, want := range map[string]bool{"fcall": functions, "evalsha": !functions} {
				if got := strings.Contains(calls, "cmdstat_"+command+":"); got != want {
					t.Errorf("%s is called: %t, want %t", command, got, want)
				}
			}
		})
	}
}

func TestRedisClusterUser(t *testing.T) {
	t.Parallel()
	// Nobody in users.acl may hand out slots, so a server without that file does, and then gets its users.
	server := servertest.StartCluster(t, 1).Nodes[0]
	addUsers(t, server)

	o := options(server.Addr, "notifier-cluster")
	o.IsClusterMode = true
	client := connect(t, o)
	script := redis.NewScript("return redis.call('ZADD', KEYS[1], 1, 'member')")
	if err := script.Run(t.Context(), client, []string{"{notifier}:log"}).Err(); err != nil {
		t.Error(err)
	}
}

func loadRedisConfiguration(t *testing.T, file string) {
	absolute, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	// Nobody in users.acl may ask for settings, so the server gets a user who may.
	users := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(users, []byte("user admin on >"+userPassword+" +config|get\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := servertest.StartRedis(t, "--include", absolute, "--aclfile", users)
	client := connect(t, options(server.Addr, "admin"))
	for setting, want := range map[string]string{
		"maxmemory-policy":     "noeviction",
		"appendonly":           "yes",
		"appendfsync":          "everysec",
		"maxmemory":            strconv.Itoa(256 << 20),
		"lazyfree-lazy-expire": "yes",
	} {
		if got := client.ConfigGet(t.Context(), setting).Val()[setting]; got != want {
			t.Errorf("%s = %q, want %q", setting, got, want)
		}
	}

	// The comment lists the commands that users.acl allows.
	comment, _, _ := strings.Cut(read(t, file), "aclfile ")
	for _, command := range allowed(t, "notifier") {
		if !slices.Contains(strings.Fields(comment), command) {
			t.Errorf("the comment does not tell what %s is for", command)
		}
	}
}

// allowed reads the commands that a user of users.acl may run.
func allowed(t *testing.T, user string) []string {
	t.Helper()
	for line := range strings.Lines(read(t, "redis/users.acl")) {
		rules := strings.Fields(line)
		if rules[1] != user {
			continue
		}
		var commands []string
		for _, rule := range rules[2:] {
			if command, found := strings.CutPrefix(rule, "+"); found {
				commands = append(commands, command)
			}
		}
		return commands
	}
	t.Fatalf("users.acl has no user %q", user)
	return nil
}

func requireSameCommands(t *testing.T, got, want []string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("users.acl allows\n%v\nand what is used is\n%v", got, want)
	}
}

func denied(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "can't access") ||
		strings.Contains(err.Error(), "No permissions"))
}
