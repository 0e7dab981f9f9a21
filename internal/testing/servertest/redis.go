package servertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Redis is a real redis-server on its own port and folder.
type Redis struct {
	Addr string // 127.0.0.1:port; it never changes
	Dir  string // its working folder, where an append-only file would be

	t       testing.TB
	program string
	args    []string
	process *process
}

// StartRedis starts a redis-server that stores nothing on disk, and ends it with the test. The arguments go to redis-server, such as
// "--appendonly", "yes", and override the arguments of StartRedis. The variable REDIS_SERVER names a program to use instead of
// redis-server, such as valkey-server.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	program := redisProgram(t)
	port := strconv.Itoa(ReservePort(t))
	r := &Redis{Addr: "127.0.0.1:" + port, Dir: t.TempDir(), t: t, program: program}
	r.args = append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", r.Dir, "--save", "", "--appendonly", "no"}, args...)
	r.Restart()
	t.Cleanup(r.Kill)
	return r
}

func redisProgram(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath(cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server"))
	if err != nil {
		t.Fatalf("look for the Redis server of the tests: %v\ninstall it with: apt-get install -y redis-server, or: make tools", err)
	}
	return program
}

// HasFunctions reports whether the servers of StartRedis have functions: Redis 6.2 has none.
func HasFunctions(t testing.TB) bool {
	t.Helper()
	_, version, _ := strings.Cut(string(testkit.Must(exec.Command(redisProgram(t), "--version").Output())(t)), " v=")
	var major int
	testkit.Must(fmt.Sscan(strings.ReplaceAll(version, ".", " "), &major))(t)
	return major >= 7
}

// URL is the server's address in the form that clients read: redis://127.0.0.1:port/0.
func (r *Redis) URL() string { return "redis://" + r.Addr + "/0" }

// Kill ends the server with SIGKILL: what it had not written is lost. Killing it twice is killing it once.
func (r *Redis) Kill() { r.process.kill() }

// Restart kills the server if it runs, and starts it again with its address and folder. It returns when the server has loaded its data and
// answers.
func (r *Redis) Restart() {
	r.t.Helper()
	if r.process != nil {
		r.process.kill()
	}
	r.process = startOnPort(r.t, func() *exec.Cmd { return exec.Command(r.program, r.args...) }, "Ready to accept connections")
}

// Pause stops the server with SIGSTOP: connections stay open, and nothing is answered.
func (r *Redis) Pause() {
	r.t.Helper()
	testkit.NoError(r.t, r.process.pause())
}

// Resume lets a paused server go on, with SIGCONT.
func (r *Redis) Resume() {
	r.t.Helper()
	testkit.NoError(r.t, r.process.resume())
}

// CLI runs one command as the default user and returns its reply in the manner of redis-cli: a list has one line for each
// value, and nil is "(nil)". An error ends the test.
func (r *Redis) CLI(args ...string) string {
	r.t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr:                     r.Addr,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		Protocol:                 2,
	})
	defer func() { _ = client.Close() }()
	command := make([]any, len(args))
	for i, arg := range args {
		command[i] = arg
	}
	reply, err := client.Do(context.Background(), command...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.t.Fatalf("redis command %q: %v", args, err)
	}
	return text(reply)
}

func text(reply any) string {
	switch reply := reply.(type) {
	case nil:
		return "(nil)"
	case []any:
		lines := make([]string, len(reply))
		for i, value := range reply {
			lines[i] = text(value)
		}
		return strings.Join(lines, "\n")
	default:
		return fmt.Sprint(reply)
	}
}
