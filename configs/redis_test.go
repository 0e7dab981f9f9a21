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

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testkit"
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

// scriptCommands reads the scripts for what they call.
func scriptCommands(t *testing.T) []string {
	t.Helper()
	var scripts []string
	for _, pattern := range []string{"../lua/*.lua", "../lua/*/*.lua"} {
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

// Each user has the commands that are used, on the keys of its deployment, and no others.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// The server writes the file anew when somebody asks it to, so it gets a copy.
	file := filepath.Join(t.TempDir(), "users.acl")
	testkit.NoError(t, os.WriteFile(file, []byte(read(t, "redis/users.acl")), 0o600))
	server := servertest.StartRedis(t, "--aclfile", file)
	if err := connect(t, &redis.UniversalOptions{Addrs: []string{server.Addr}}).Ping(ctx).Err(); err == nil {
		t.Error("the default user gets in without a password")
	}
	plain := slices.Concat(clientCommands, scriptCommands(t))
	for user, want := range map[string][]string{"notifier": plain, "notifier-cluster": slices.Concat(plain, clusterCommands)} {
		if got := slices.Sorted(slices.Values(allowed(t, user))); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("users.acl allows %s\n%v\nand what is used is\n%v", user, got, want)
		}
		client := connect(t, options(server.Addr, user))
		if err := newLimiter(t, client, script.Eval).SelfTest(ctx, pacing.SelfTest, summary.SelfTest); err != nil {
			t.Errorf("%s: %v", user, err)
		}
		if info, err := client.Info(ctx, "memory").Result(); err != nil || !strings.Contains(info, "maxmemory_policy:") {
			t.Errorf("%s: the eviction policy is not told: %v", user, err)
		}
		for _, command := range []string{
			"get {other}:counter", "set {other}:counter 1", "zadd {other}:log 1 member", "hget {other}:log field",
			"eval return{redis.call('GET',KEYS[1])} 1 {other}:log", "eval return{redis.call('ZADD',KEYS[1],1,'m')} 1 {other}:log",
			"getdel {notifier}:log", "del {notifier}:log", "keys *", "scan 0", "flushall", "script flush",
			"config get masterauth", "config set maxmemory 0", "client kill id 1", "acl list", "publish channel message",
			"fcall function 0", "function load library",
		} {
			var words []any
			for word := range strings.FieldsSeq(command) {
				words = append(words, word)
			}
			err := client.Do(ctx, words...).Err()
			if !denied(err) && (err == nil || !strings.Contains(err.Error(), "unknown command")) { // Redis 6.2 has no functions
				t.Errorf("%s: %s: %v, want a denial", user, command, err)
			}
		}
	}
}

func newLimiter(t *testing.T, client redis.UniversalClient, scripting script.Scripting) *throttle.Redis {
	t.Helper()
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: limits.Limits{{Count: 100, Window: time.Minute}}}))(t)
	return throttle.NewRedis(script.NewRunner(script.Options{Client: client, Prefix: "notifier", Timeout: wait, Scripting: scripting}),
		throttle.Settings{Tree: tree, Lease: time.Minute, Retention: time.Minute})
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
	rights := []string{"+fcall", "+function|load"}
	for _, right := range rights {
		if comment := read(t, "redis/redis.conf"); !strings.Contains(comment, right) {
			t.Errorf("the comment does not tell what %s is for", right)
		}
	}
	for name, test := range map[string]struct {
		scripting script.Scripting
		rights    []string
		functions bool // run, where the server has them
	}{
		"scripts":                      {script.Eval, rights, false},
		"functions, without rights":    {script.Functions, nil, false},
		"functions, that are not run":  {script.Functions, rights[1:], false},
		"functions, that are not kept": {script.Functions, rights[:1], false},
		"functions":                    {script.Functions, rights, true},
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
			limiter := newLimiter(t, connect(t, options(server.Addr, "notifier")), test.scripting)
			err := errors.Join(limiter.SelfTest(t.Context(), pacing.SelfTest, summary.SelfTest), limiter.Probe(t.Context()))
			if works := test.scripting != script.Functions || functions; (err == nil) != works {
				t.Errorf("the scripts run: %v, want success: %t", err, works)
			}
			calls := server.CLI("info", "commandstats")
			if test.scripting == script.Functions && !functions {
				return
			}
			for command, want := range map[string]bool{"fcall": functions, "evalsha": !functions} {
				testkit.Equal(t, strings.Contains(calls, "cmdstat_"+command+":"), want, "%s is called", command)
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
	if err := newLimiter(t, connect(t, o), script.Eval).SelfTest(t.Context(), pacing.SelfTest, summary.SelfTest); err != nil {
		t.Error(err)
	}
}

func TestRedisConfiguration(t *testing.T) {
	t.Parallel()
	const file = "redis/redis.conf"
	absolute := testkit.Must(filepath.Abs(file))(t)
	// Nobody in users.acl may ask for settings, so the server gets a user who may.
	users := filepath.Join(t.TempDir(), "users.acl")
	testkit.NoError(t, os.WriteFile(users, []byte("user admin on >"+userPassword+" +config|get\n"), 0o600))
	server := servertest.StartRedis(t, "--include", absolute, "--aclfile", users)
	client := connect(t, options(server.Addr, "admin"))
	for setting, want := range map[string]string{
		"maxmemory-policy":     "noeviction",
		"appendonly":           "yes",
		"appendfsync":          "everysec",
		"maxmemory":            strconv.Itoa(256 << 20),
		"lazyfree-lazy-expire": "yes",
	} {
		testkit.Equal(t, client.ConfigGet(t.Context(), setting).Val()[setting], want, "%s", setting)
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

func denied(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "NOPERM") || strings.Contains(err.Error(), "can't access") ||
		strings.Contains(err.Error(), "No permissions"))
}
