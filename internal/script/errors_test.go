package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// serverError is an error reply of a server.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// inOldScript is the form of Redis 6.2 for an error in a script.
func inOldScript(text string) serverError {
	return serverError("ERR Error running script (call to f_0a1b): @user_script:9: @user_script: 9: " + text)
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		class error
	}{
		{io.EOF, ErrUnavailable},
		{context.DeadlineExceeded, ErrUnavailable},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, ErrUnavailable},
		{redis.ErrClosed, ErrUnavailable},
		{serverError("LOADING Redis is loading the dataset in memory"), ErrUnavailable},
		{serverError("READONLY You can't write against a read only replica."), ErrUnavailable},
		{serverError("MASTERDOWN Link with MASTER is down"), ErrUnavailable},
		{serverError("CLUSTERDOWN Hash slot not served"), ErrUnavailable},
		{serverError("TRYAGAIN Multiple keys request during rehashing of slot"), ErrUnavailable},
		{serverError("NOREPLICAS Not enough good replicas to write."), ErrUnavailable},
		{serverError("BUSY Redis is busy running a script."), ErrUnavailable},
		{serverError("MOVED 1 127.0.0.1:7000"), ErrUnavailable},
		{serverError("ASK 1 127.0.0.1:7000"), ErrUnavailable},
		{serverError("ERR max number of clients reached"), ErrUnavailable},
		{serverError("ERR max number of clients + cluster connections reached"), ErrUnavailable},
		{inOldScript("-READONLY You can't write against a read only replica."), ErrUnavailable},
		{fmt.Errorf("wrapped: %w", serverError("LOADING")), ErrUnavailable},
		{serverError("LOADINGS something else"), ErrRefused},
		{serverError("WRONGTYPE Operation against a key holding the wrong kind of value"), ErrRefused},
		{serverError("NOPERM this user has no permissions"), ErrRefused},
		{serverError("NOAUTH Authentication required."), ErrRefused},
		{serverError("OOM command not allowed when used memory > 'maxmemory'."), ErrRefused},
		{serverError("ERR Error running script"), ErrRefused},
		{inOldScript("-OOM command not allowed when used memory > 'maxmemory'."), ErrRefused},
		{inOldScript("attempt to perform arithmetic on a nil value"), ErrRefused},
	} {
		err := classify("trying", c.err)
		other := ErrRefused
		if errors.Is(c.class, ErrRefused) {
			other = ErrUnavailable
		}
		testkit.Check(t, errors.Is(err, c.class) && !errors.Is(err, other) && errors.Is(err, c.err), "%v: got %v, want %v", c.err, err, c.class)
		testkit.Check(t, strings.HasPrefix(err.Error(), "trying: "), "got %q, want it to begin with what was tried", err)
	}
	for _, reply := range []serverError{ // of Valkey 9.1 without its module, and of Redis 6.2 and 7 without the commands
		"ERR Could not find scripting engine 'lua'", "ERR Engine 'LUA' not found",
		"ERR unknown command `evalsha`, with args beginning with: `x`, ", "ERR unknown command 'evalsha', with args beginning with: 'x' ",
	} {
		testkit.Fails(t, string(reply), classify("trying", explainLack(reply)), ErrForbidden, "libvalkeylua.so")
	}
	if err := explainLack(io.EOF); err != io.EOF { //nolint:errorlint // explainLack returns it unchanged
		t.Errorf("got %v, want %v unchanged", err, io.EOF)
	}
	testkit.NoError(t, classify("trying", nil))
}
