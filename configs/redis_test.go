package configs_test

import (
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
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// userPassword is the one in redis/users.acl and its comment in redis/redis.conf.
const userPassword = "change-me"

// clientCommands are the commands of the notifier. With selectCommands, its client chooses a database; with clusterCommands, it finds the node of
// a key in a cluster.
var (
	clientCommands  = []string{"auth", "client|setname", "eval", "evalsha", "hello", "info", "ping", "script|load"}
	selectCommands  = []string{"select"}
	clusterCommands = []string{"cluster|nodes", "cluster|shards", "cluster|slots", "command", "readonly"}
)

// scriptCommands returns the commands that the scripts call.
func scriptCommands(t *testing.T) []string {
	t.Helper()
	var commands []string
	for _, pattern := range []string{"../lua/*.lua", "../lua/*/*.lua"} {
		for _, script := range testkit.Must(filepath.Glob(pattern))(t) {
			for _, call := range regexp.MustCompile(`\('([A-Z]+)',`+`|call\('([A-Z]+)'`).FindAllStringSubmatch(testkit.Text(t, script), -1) {
				commands = append(commands, strings.ToLower(call[1]+call[2]))
			}
		}
	}
	slices.Sort(commands)
	return slices.Compact(commands)
}

// connect makes a client without commands of its own.
func connect(t *testing.T, o redis.UniversalOptions) redis.UniversalClient {
	t.Helper()
	o.Password, o.DisableIdentity = userPassword, true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	client := redis.NewUniversalClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// runScripts runs the self-tests of all scripts with the rights of a client.
func runScripts(t *testing.T, client redis.UniversalClient, scripting script.Scripting) error {
	t.Helper()
	tree := testkit.Must(limits.NewTree(limits.Plan{Global: limits.Limits{{Count: 100, Window: time.Minute}}}))(t)
	runner := script.NewRunner(script.Options{Client: client, Prefix: "notifier", Timeout: testkit.Patience, Scripting: scripting})
	shared := store.NewRedis(runner, store.Settings{Tree: tree, Lease: time.Minute, Retention: time.Minute})
	return shared.SelfTest(t.Context(), pacing.SelfTest, summary.SelfTest)
}

// operatorCommands are the commands of the users for operators. TestOperatorRedisUser in internal/cli shows that operators need these.
var operatorCommands = []string{"eval", "evalsha", "get", "hello", "hget", "info", "set", "time", "zcount", "zrange", "zscore"}

// Each user has the commands that the notifier uses, on the keys of its deployment, and no others. The comment lists the commands.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	// The server may rewrite the file, so it gets a copy.
	file := filepath.Join(t.TempDir(), "users.acl")
	testkit.NoError(t, os.WriteFile(file, []byte(testkit.Text(t, "redis/users.acl")), 0o600))
	server := servertest.StartRedis(t, "--aclfile", file)
	testkit.Fails(t, "a connection of the default user", connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}}).Ping(t.Context()).Err(), nil)
	plain := slices.Concat(clientCommands, scriptCommands(t))
	for user, want := range map[string][]string{
		"notifier": slices.Concat(plain, selectCommands), "notifier-cluster": slices.Concat(plain, clusterCommands),
		"notifier-operator":         slices.Concat(operatorCommands, selectCommands),
		"notifier-operator-cluster": slices.Concat(operatorCommands, clusterCommands),
	} {
		testkit.EqualSlices(t, slices.Sorted(slices.Values(allowed(t, user))), slices.Sorted(slices.Values(want)), "the commands of %s", user)
		database := 3
		if strings.HasSuffix(user, "-cluster") {
			database = 0 // a cluster has no other one
		}
		client := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: user, DB: database})
		testkit.NoError(t, client.Time(t.Context()).Err())
		err := runScripts(t, client, script.Eval)
		testkit.Equal(t, err == nil, !strings.HasPrefix(user, "notifier-operator"), "whether %s may run all scripts (%v)", user, err)
		for _, command := range []string{
			"get {other}:counter", "zadd {other}:log 1 member", "eval return{redis.call('GET',KEYS[1])} 1 {other}:log",
			"del {notifier}:log", "keys *", "scan 0", "flushall", "config get masterauth", "acl list", "publish channel message",
		} {
			var words []any
			for word := range strings.FieldsSeq(command) {
				words = append(words, word)
			}
			if err := client.Do(t.Context(), words...).Err(); err == nil || !regexp.MustCompile(`NOPERM|can't access|No permissions`).MatchString(err.Error()) {
				t.Errorf("%s: %s: %v, want a denial", user, command, err)
			}
		}
	}
	comment, _, _ := strings.Cut(testkit.Text(t, "redis/redis.conf"), "aclfile ")
	for _, command := range slices.Concat(plain, selectCommands, []string{"+fcall", "+function|load"}) {
		testkit.Check(t, slices.Contains(strings.Fields(comment), command), "got no purpose of %s in the comment", command)
	}
}

// Redis replays its append-only file as the default user, and checks that user's rights at the end of each transaction. What a script writes
// with several commands is one transaction.
func TestRedisRestart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users.acl")
	testkit.NoError(t, os.WriteFile(file, []byte(testkit.Text(t, "redis/users.acl")), 0o600))
	server := servertest.StartRedis(t, "--aclfile", file, "--appendonly", "yes", "--appendfsync", "always")
	client := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "notifier"})
	const write = `redis.call('ZADD', KEYS[1], 1, 'event') redis.call('PEXPIRE', KEYS[1], 3600000)`
	testkit.Fails(t, "a script without a result", client.Eval(t.Context(), write, []string{"{notifier}:log"}).Err(), redis.Nil)
	server.Restart()
	testkit.Equal(t, client.ZCard(t.Context(), "{notifier}:log").Val(), 1, "the slots of a log after a restart")
	testkit.Fails(t, "a connection of the default user", connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}}).Ping(t.Context()).Err(), nil)
	asDefault := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "default"})
	testkit.Fails(t, "the default user with a password", asDefault.Ping(t.Context()).Err(), nil)
}

// allowed reads the commands that a user of users.acl may run.
func allowed(t *testing.T, user string) (commands []string) {
	t.Helper()
	for line := range strings.Lines(testkit.Text(t, "redis/users.acl")) {
		for i, rule := range strings.Fields(line) {
			if command, found := strings.CutPrefix(rule, "+"); found && strings.Fields(line)[1] == user && i > 1 {
				commands = append(commands, command)
			}
		}
	}
	return commands
}

// addUsers adds the users of users.acl to a server. Its default user keeps all rights.
func addUsers(t *testing.T, server *servertest.Redis) {
	t.Helper()
	for line := range strings.Lines(testkit.Text(t, "redis/users.acl")) {
		if user := strings.Fields(line); user[1] != "default" {
			server.CLI(append([]string{"acl", "setuser"}, user[1:]...)...)
		}
	}
}

// Functions need both rights that the comment names.
func TestRedisFunctions(t *testing.T) {
	t.Parallel()
	rights := [][]string{{}, {"+fcall"}, {"+function|load"}, {"+fcall", "+function|load"}}
	if !servertest.HasFunctions(t) {
		rights = rights[:1] // the server knows neither of them
	}
	for _, rights := range rights {
		server := servertest.StartRedis(t)
		addUsers(t, server)
		server.CLI(append([]string{"acl", "setuser", "notifier"}, rights...)...)
		client := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "notifier"})
		err := runScripts(t, client, script.Functions)
		testkit.Equal(t, err == nil, len(rights) == 2, "whether functions run with %q (%v)", rights, err)
	}
}

func TestRedisClusterUser(t *testing.T) {
	t.Parallel()
	// No user of users.acl may assign slots, so the cluster starts without that file.
	server := servertest.StartCluster(t, 1).Nodes[0]
	addUsers(t, server)
	client := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "notifier-cluster", IsClusterMode: true})
	testkit.NoError(t, runScripts(t, client, script.Eval))

	operator := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "notifier-operator-cluster", IsClusterMode: true})
	shared := store.NewRedis(script.NewRunner(script.Options{Client: operator, Prefix: "notifier", Timeout: testkit.Patience}), store.Settings{})
	next := limits.Position{Generation: 1, Revision: 1}
	testkit.Equal(t, testkit.Must(shared.Positions.Advance(t.Context(), next))(t), next, "limits that an operator puts in force")
}

func TestRedisConfiguration(t *testing.T) {
	t.Parallel()
	// No user of users.acl may read settings, so the server gets one who may.
	users := filepath.Join(t.TempDir(), "users.acl")
	testkit.NoError(t, os.WriteFile(users, []byte("user admin on >"+userPassword+" +config|get\n"), 0o600))
	server := servertest.StartRedis(t, "--include", testkit.Must(filepath.Abs("redis/redis.conf"))(t), "--aclfile", users)
	client := connect(t, redis.UniversalOptions{Addrs: []string{server.Addr}, Username: "admin"})
	for setting, want := range map[string]string{
		"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec",
		"maxmemory": strconv.Itoa(256 << 20), "lazyfree-lazy-expire": "yes",
	} {
		testkit.Equal(t, client.ConfigGet(t.Context(), setting).Val()[setting], want, "%s", setting)
	}
}
