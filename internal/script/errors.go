package script

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrUnavailable is the class of errors for which Redis could not be asked: no connection, no answer in time, or a
// server that is not able to work just now. Waiting helps.
var ErrUnavailable = errors.New("redis is unavailable")

// ErrRefused is the class of errors for which Redis answered and refused: a missing right, a key of the wrong type, no
// memory. Someone has to mend it.
var ErrRefused = errors.New("redis refused")

// ErrForbidden is the class of refusals that are about who asks: a right or a password that is missing or wrong, or functions
// on a server that has none. Others may be answered meanwhile.
var ErrForbidden = fmt.Errorf("%w this user", ErrRefused)

// forbidden is what the replies of that class have in them.
var forbidden = []string{
	"NOPERM", "NOAUTH", "WRONGPASS", "ACL failure", "The user executing the script can't", "unauthenticated", "unknown command",
}

// ErrStale is the class of errors for which a call was turned away because another was made with newer limits. Nothing was
// decided; it can be made again once those limits are known here.
var ErrStale = errors.New("newer limits are in force")

// staleCode is what decide.lua says then.
const staleCode = "STALELIMITS"

// passing lists the error codes of a server that will be able to work by and by. None of them has executed anything.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "MOVED", "ASK", "UNKILLABLE",
	"ERR max number of clients", "ERR " + missingFunction,
}

// Newer is what the script said of the newer limits behind an [ErrStale]. It is "" for other errors.
func Newer(stale error) string {
	reply, answered := errors.AsType[redis.Error](stale)
	if !answered {
		return ""
	}
	text, found := strings.CutPrefix(reply.Error(), staleCode+" ")
	if !found {
		return ""
	}
	return text
}

// classify wraps an error of go-redis in ErrUnavailable, ErrRefused or ErrStale.
func classify(tried string, err error) error {
	if err == nil {
		return nil
	}
	class := ErrUnavailable
	if reply, answered := errors.AsType[redis.Error](err); answered {
		class = ErrRefused
		if strings.HasPrefix(reply.Error(), staleCode+" ") {
			class = ErrStale
		}
		if slices.ContainsFunc(forbidden, func(sign string) bool { return strings.Contains(reply.Error(), sign) }) {
			class = ErrForbidden
		}
		for _, code := range passing {
			if strings.HasPrefix(fromCode(reply.Error())+" ", code+" ") {
				class = ErrUnavailable
			}
		}
	}
	return fmt.Errorf("%s: %w: %w", tried, class, err)
}

// fromCode is an error reply from its code on. Servers before Redis 7.0 tell what went wrong in a script in words of their
// own: "ERR Error running script (call to f_…): @user_script:9: @user_script: 9: -READONLY You can't write against …".
func fromCode(reply string) string {
	if place, told := strings.CutPrefix(reply, "ERR Error running script"); told {
		if _, inScript, found := strings.Cut(place, ": -"); found {
			return inScript
		}
	}
	return reply
}
