package servertest

import (
	"os/exec"
	"strconv"
)

// lookAfter is the setting for after how many bytes a server that is loading looks at its connections. Redis 6.2 has not
// got it: there it is two megabytes.
const lookAfter = "loading-process-events-interval-bytes"

// RestartLoading saves what the server holds, and something more to be busy with, kills it and starts it again. It returns
// while the server is loading: connections are accepted, and most commands answered with LOADING, until [Redis.Restart] or for
// ten seconds at least.
func (r *Redis) RestartLoading() {
	r.t.Helper()
	size, keys, delay := 2<<20, 100, 100_000 // the delay is microseconds for each key
	settings := append([]string{}, r.args...)
	if r.CLI("CONFIG", "GET", lookAfter) != "" {
		size, keys, delay = 1<<10, 2000, 10_000
		settings = append(settings, "--"+lookAfter, strconv.Itoa(size))
	}
	settings = append(settings, "--key-load-delay", strconv.Itoa(delay))
	r.CLI("EVAL", "for i = 1, ARGV[1] do redis.call('SET', 'filler:' .. i, string.rep('x', ARGV[2])) end", "0",
		strconv.Itoa(keys), strconv.Itoa(size))
	r.CLI("CONFIG", "SET", "rdbcompression", "no")
	r.CLI("SAVE")
	r.process.kill()
	r.process = startOnPort(r.t, func() *exec.Cmd { return exec.Command(r.program, settings...) }, "Server initialized")
}
