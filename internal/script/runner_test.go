package script_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/lua"
)

func TestMain(m *testing.M) { scripttest.Main(m) }

func newRunner(t *testing.T, address string, scripting script.Scripting) *script.Runner {
	client := scripttest.NewClient(t, redis.Options{Addr: address, MaxRetries: -1})
	return script.NewRunner(script.Options{Client: client, Prefix: "a*b", Timeout: scripttest.Patience, Scripting: scripting})
}

// mention calls the shortest script. It answers with a number.
func mention(ctx context.Context, runner *script.Runner) (int64, error) {
	return runner.RunInt(ctx, "testing", lua.Mention, []string{runner.Key("mention:a")}, []any{"id", time.Minute.Microseconds()})
}

func TestKeys(t *testing.T) {
	t.Parallel()
	runner := newRunner(t, "", script.Eval)
	scratch := runner.Scratch("one")
	for got, want := range map[string]string{
		runner.Key("log:a"):         "{a*b}:log:a",
		runner.Absent():             "{a*b}:absent",
		scratch.Key("log:a"):        "{a*b}:log:a:scratch:one",
		scratch.Absent():            "{a*b}:absent:scratch:one",
		runner.Scratch("").Key("l"): "{a*b}:l:scratch:",
	} {
		testkit.Equal(t, got, want, "key")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	runner := newRunner(t, server.Addr, script.Eval)
	for _, key := range []string{"{a*b}:one", "{a*b}:two:scratch:x", "{aXb}:three", "{a*b}"} {
		server.CLI("SET", key, "text")
	}
	names, err := runner.Names(t.Context(), "listing")
	if slices.Sort(names); err != nil || !slices.Equal(names, []string{"one", "two:scratch:x"}) {
		t.Errorf("got the names %q and %v, want those of the deployment", names, err)
	}
	server.Kill()
	if _, err := runner.Names(t.Context(), "listing"); !errors.Is(err, script.ErrUnavailable) || !strings.HasPrefix(err.Error(), "listing: ") {
		t.Errorf("error %v without a server, want %v", err, script.ErrUnavailable)
	}
}

// TestRun calls a script in both ways, on the keys of the deployment and on the keys of a self-test.
func TestRun(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	for _, scripting := range scripttest.Ways(t) {
		t.Run(string(scripting), func(t *testing.T) {
			server.CLI("FLUSHALL")
			runner := newRunner(t, server.Addr, scripting)
			testkit.NoError(t, runner.Load(t.Context()))
			for _, r := range []*script.Runner{runner, runner.Scratch("test")} {
				for _, want := range []int64{2, 1} { // the event takes the mention, and has it
					got, err := mention(t.Context(), r)
					testkit.Check(t, err == nil && got == want, "%d, %v, want %d", got, err, want)
				}
			}
			held := server.CLI("EXISTS", "{a*b}:mention:a", "{a*b}:mention:a:scratch:test")
			testkit.Equal(t, strings.TrimSpace(held), "2", "keys that exist")
		})
	}
}

// TestAdopt records the algorithms with which the script of decisions is composed.
func TestAdopt(t *testing.T) {
	t.Parallel()
	var composed []string
	options := script.Options{Source: func(name lua.Script, algorithms []string) string {
		if name == lua.Decide {
			composed = append(composed, strings.Join(algorithms, " "))
		}
		return lua.Source(name, algorithms)
	}}
	runner := script.NewRunner(options)
	runner.Adopt([]string{"log"})
	runner.Adopt([]string{"log"})
	scratch := runner.Scratch("test")
	scratch.Adopt(lua.Algorithms)
	runner.Adopt([]string{"log"})
	all := strings.Join(lua.Algorithms, " ")
	testkit.EqualSlices(t, composed, []string{all, "log", all}, "composed with")
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	testkit.EqualSlices(t, testkit.Must(script.Numbers([]any{int64(1), int64(2)}, 2))(t), []int64{1, 2}, "numbers")
	for _, reply := range [][]any{nil, {int64(1)}, {int64(1), "2"}, {int64(1), int64(2), int64(3)}} {
		_, err := script.Numbers(reply, 2)
		testkit.Check(t, errors.Is(err, script.ErrReply) && errors.Is(err, script.ErrRefused), "%v: error %v, want %v", reply, err, script.ErrReply)
	}
}

func TestRunnerTimeout(t *testing.T) {
	t.Parallel()
	proxy := servertest.StartProxy(t, servertest.StartRedis(t).Addr)
	options := newRunner(t, proxy.Addr, script.Eval).Options()
	options.Timeout = 50 * time.Millisecond
	runner := script.NewRunner(options)
	proxy.DropReplies(true)
	_, err := mention(t.Context(), runner)
	read := runner.Read(t.Context(), "testing", func(ctx context.Context, client redis.Cmdable) error { return client.Get(ctx, "key").Err() })
	for _, err := range []error{err, read} {
		testkit.Check(t, errors.Is(err, script.ErrUnavailable) && strings.HasPrefix(err.Error(), "testing: "),
			"error %v, want %v", err, script.ErrUnavailable)
	}
}

func TestNewer(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, script.Newer(errors.New("STALELIMITS 7 8")), "", "an error that no server made")
	runner := newRunner(t, servertest.StartRedis(t).Addr, script.Eval)
	for reply, want := range map[string]string{"STALELIMITS 7 8": "7 8", "OTHER 7 8": ""} {
		err := runner.Read(t.Context(), "testing", func(ctx context.Context, client redis.Cmdable) error {
			return client.Eval(ctx, "return redis.error_reply(ARGV[1])", nil, reply).Err()
		})
		text := script.Newer(err)
		testkit.Check(t, text == want && errors.Is(err, script.ErrStale) == (want != ""), "%v says %q, want %q", err, text, want)
	}
}
