package configs_test

import (
	"context"
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
)

// userPassword is the one in redis/users.acl and its comment in redis/redis.conf.
const userPassword = "change-me"

// clientCommands are what the notifier itself sends; the scripts' own commands come from the scripts.
var clientCommands = []string{
	"auth", "client|setname", "config|get", "eval", "evalsha", "hello", "info", "ping", "script|load",
}

// clusterCommands find the node of a key.
var clusterCommands = []string{"cluster|nodes", "cluster|shards", "cluster|slots", "command", "readonly"}

// samples has one harmless call of each command that a script may use, on the key given.
var samples = map[string]string{
	"pexpire":          `redis.call('PEXPIRE', KEYS[1], 1000)`,
	"time":             `redis.call('TIME')`,
	"zadd":             `redis.call('ZADD', KEYS[1], 'NX', 1, 'member')`,
	"zcard":            `redis.call('ZCARD', KEYS[1])`,
	"zcount":           `redis.call('ZCOUNT', KEYS[1], '-inf', '+inf')`,
	"zmscore":          `redis.call('ZMSCORE', KEYS[1], 'member')`,
	"zrange":           `redis.call('ZRANGE', KEYS[1], '-inf', '+inf', 'BYSCORE')`,
	"zrem":             `redis.call('ZREM', KEYS[1], 'member')`,
	"zremrangebyscore": `redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '+inf')`,
	"zscore":           `redis.call('ZSCORE', KEYS[1], 'member')`,
}

// scriptCommands reads the scripts for what they call.
func scriptCommands(t *testing.T) []string {
	t.Helper()
	scripts, err := filepath.Glob("../lua/*.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("look for the scripts: %d, %v", len(scripts), err)
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
		if err := client.ConfigGet(ctx, "maxmemory-policy").Err(); err != nil {
			t.Errorf("%s: %v", user, err)
		}
		if err := client.Info(ctx, "server").Err(); err != nil {
			t.Errorf("%s: %v", user, err)
		}
		for _, command := range [][]any{
			{"get", "{notifier}:log"},
			{"del", "{notifier}:log"},
			{"keys", "*"},
			{"flushall"},
			{"script", "flush"},
			{"config", "set", "maxmemory", "0"},
			{"client", "kill", "id", "1"},
			{"acl", "list"},
			{"publish", "channel", "message"},
			{"zadd", "{other}:log", 1, "member"},
		} {
			if err := client.Do(ctx, command...).Err(); !denied(err) {
				t.Errorf("%s: %v: %v, want a denial", user, command, err)
			}
		}
	}
}

func TestRedisClusterUser(t *testing.T) {
	t.Parallel()
	// Nobody in users.acl may hand out slots, so a server without that file does, and then gets its users.
	server := servertest.StartRedis(t, "--cluster-enabled", "yes")
	assign := []string{"cluster", "addslots"}
	for slot := range 16384 {
		assign = append(assign, strconv.Itoa(slot))
	}
	server.CLI(assign...)
	for line := range strings.Lines(read(t, "redis/users.acl")) {
		if user := strings.Fields(line); user[1] != "default" {
			server.CLI(append([]string{"acl", "setuser"}, user[1:]...)...)
		}
	}

	o := options(server.Addr, "notifier-cluster")
	o.IsClusterMode = true
	client := connect(t, o)
	script := redis.NewScript("return redis.call('ZADD', KEYS[1], 1, 'member')")
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	for {
		err := script.Run(ctx, client, []string{"{notifier}:log"}).Err()
		if err == nil {
			return
		}
		// A new cluster takes a moment before it says that it is complete.
		if !strings.HasPrefix(err.Error(), "CLUSTERDOWN") || ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func loadRedisConfiguration(t *testing.T, file string) {
	absolute, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	server := startWithUsers(t, "--include", absolute)
	client := connect(t, options(server.Addr, "notifier"))
	for setting, want := range map[string]string{
		"maxmemory-policy": "noeviction",
		"appendonly":       "yes",
		"appendfsync":      "everysec",
		"maxmemory":        strconv.Itoa(256 << 20),
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
