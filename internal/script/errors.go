package script

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrUnavailable is the class of temporary errors: no connection, no answer in time, a server that cannot work at present. Retry later.
var ErrUnavailable = errors.New("redis is unavailable")

// ErrRefused is the class of errors with which Redis refuses a call: a missing right, a key of the wrong type, no memory. An operator has
// to act.
var ErrRefused = errors.New("redis refused")

// ErrForbidden is the class of refusals that concern the user or the address: a missing right, a missing or wrong password, a wrong database, a
// server without scripts or functions, a server that is too old or of another kind. Redis may still answer others.
var ErrForbidden = fmt.Errorf("%w this user", ErrRefused)

// ErrStale is the class of errors with which a script reports newer limits in force. The script decided nothing. The caller may repeat the
// call once this instance has those limits.
var ErrStale = errors.New("newer limits are in force")

// ErrReply is the class of malformed replies: another script has answered.
var ErrReply = fmt.Errorf("%w: the script's reply is not of the expected form", ErrRefused)

// forbidden lists texts in replies of the class ErrForbidden.
var forbidden = append([]string{
	"NOPERM", "NOAUTH", "WRONGPASS", "ACL failure", "The user executing the script can't", "unauthenticated", "unknown command",
	"DB index is out of range", "not allowed in cluster mode", "cluster support disabled",
}, lackOfScripts...)

// lackOfScripts lists texts in replies of servers that run no scripts: Valkey without its Lua module, for EVAL and for FUNCTION LOAD, and a
// server with disabled script commands.
var lackOfScripts = []string{"Could not find scripting engine", "Engine 'LUA' not found", "unknown command 'eval", "unknown command `eval"}

// staleCode begins the reply of a script that found newer limits in force.
const staleCode = "STALELIMITS "

// passing lists the error codes of a server that will be able to work by and by. With none of them a script has run.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "MOVED", "ASK", "UNKILLABLE",
	"ERR max number of clients", "ERR " + missingFunction,
}

// Newer is what the script said of the newer limits behind an [ErrStale]. It is "" for other errors.
func Newer(stale error) string {
	if reply, answered := errors.AsType[redis.Error](stale); answered {
		if text, found := strings.CutPrefix(reply.Error(), staleCode); found {
			return text
		}
	}
	return ""
}

// classify wraps an error of go-redis in its class.
func classify(tried string, err error) error {
	if err == nil {
		return nil
	}
	class := ErrUnavailable
	if reply, answered := errors.AsType[redis.Error](err); answered {
		class = classOf(reply.Error())
	}
	return fmt.Errorf("%s: %w: %w", tried, class, err)
}

func classOf(reply string) error {
	code := fromCode(reply) + " "
	switch {
	case slices.ContainsFunc(passing, func(passing string) bool { return strings.HasPrefix(code, passing+" ") }):
		return ErrUnavailable
	case slices.ContainsFunc(forbidden, func(sign string) bool { return strings.Contains(reply, sign) }):
		return ErrForbidden
	case strings.HasPrefix(reply, staleCode):
		return ErrStale
	}
	return ErrRefused
}

// fromCode is an error reply from its code on. Servers before Redis 7.0 put words in front of an error in a script:
// "ERR Error running script (call to f_…): @user_script:9: @user_script: 9: -READONLY You can't write against …".
func fromCode(reply string) string {
	if place, found := strings.CutPrefix(reply, "ERR Error running script"); found {
		if _, inScript, found := strings.Cut(place, ": -"); found {
			return inScript
		}
	}
	return reply
}

// Texts reads a reply of texts.
func Texts(reply []any) ([]string, error) { return valuesOf[string](reply) }

// Numbers reads a reply of `count` numbers.
func Numbers(reply []any, count int) ([]int64, error) {
	if len(reply) != count {
		return nil, fmt.Errorf("%w: %d values, expected %d", ErrReply, len(reply), count)
	}
	return valuesOf[int64](reply)
}

func valuesOf[T any](reply []any) ([]T, error) {
	values := make([]T, len(reply))
	for i, value := range reply {
		typed, isOfType := value.(T)
		if !isOfType {
			return nil, fmt.Errorf("%w: value %d is %T", ErrReply, i, value)
		}
		values[i] = typed
	}
	return values, nil
}
