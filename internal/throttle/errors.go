package throttle

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrUnavailable is the class of errors for which Redis could not be asked: no connection, no answer in time, or a
// server that is not able to work just now. Waiting helps.
var ErrUnavailable = errors.New("redis is unavailable")

// ErrRefused is the class of errors for which Redis answered and refused: a missing right, a key of the wrong type, no
// memory. Someone has to mend it.
var ErrRefused = errors.New("redis refused")

// passing lists the error codes of a server that will be able to work by and by. None of them has executed anything.
var passing = []string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "BUSY", "MOVED", "ASK", "UNKILLABLE"}

// classify wraps an error of go-redis in ErrUnavailable or ErrRefused.
func classify(tried string, err error) error {
	if err == nil {
		return nil
	}
	class := ErrUnavailable
	if reply, answered := errors.AsType[redis.Error](err); answered {
		class = ErrRefused
		for _, code := range passing {
			if strings.HasPrefix(reply.Error(), code+" ") || reply.Error() == code {
				class = ErrUnavailable
			}
		}
	}
	return fmt.Errorf("%s: %w: %w", tried, class, err)
}
