package pacing

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// mention says whether an event may mention people.
type mention int

// The answers about mentions, numbered as in mention.lua.
const (
	noMention    mention = iota // another event of its path has
	hasMention                  // it may, and has been told so before: an earlier message of it may have
	takesMention                // it may, from now on
)

// shared is the pacing that all instances agree on, in Redis. Its time is the server's.
type shared struct{ runner *script.Runner }

// keys returns the keys of pace.lua and pause.lua.
func (s shared) keys() []string {
	return []string{s.runner.Key("calls"), s.runner.Key("pauses"), s.runner.Key("paces")}
}

// reserve reserves the next message of a destination, unless it lies further away than maxWait. Redis may not know of the caller's pause.
func (s shared) reserve(ctx context.Context, destination string, pace Pace, paused, maxWait time.Duration) (Reservation, error) {
	arguments := []any{destination, pace.Interval.Microseconds(), max(pace.Burst, 1), maxWait.Microseconds(), paused.Microseconds()}
	numbers, err := s.runner.RunNumbers(ctx, "pacing deliveries", lua.Pace, s.keys(), arguments, 2)
	if err != nil {
		return Reservation{}, err
	}
	return Reservation{Wait: time.Duration(numbers[0]) * time.Microsecond, OK: numbers[1] == 1}, nil
}

// paused is how long a destination is still paused.
func (s shared) paused(ctx context.Context, destination string) (time.Duration, error) {
	reservation, err := s.reserve(ctx, destination, Pace{}, 0, 0)
	return reservation.Wait, err
}

// pause has a destination of a pace take no message for d.
func (s shared) pause(ctx context.Context, destination string, pace Pace, d time.Duration) error {
	arguments := []any{destination, d.Microseconds(), pace.ahead().Microseconds()}
	_, err := s.runner.RunInt(ctx, "pausing a destination", lua.Pause, s.keys(), arguments)
	return err
}

// mention tells whether an event may mention people, which one event of a path may in each duration.
func (s shared) mention(ctx context.Context, path, id string, d time.Duration) (mention, error) {
	may, err := s.runner.RunInt(ctx, "asking for a mention", lua.Mention, s.mentionKeys(path), []any{id, d.Microseconds()})
	return mention(may), err
}

// returnMention lets another event of the path mention people. It may be repeated.
func (s shared) returnMention(ctx context.Context, path, id string) error {
	_, err := s.runner.RunInt(ctx, "returning a mention", lua.Mention, s.mentionKeys(path), []any{id, 0})
	return err
}

func (s shared) mentionKeys(path string) []string { return []string{s.runner.Key("mention:" + path)} }

// SelfTest runs every script of this package, on the keys of a scratch runner. It finds missing rights.
func SelfTest(ctx context.Context, scratch *script.Runner) error {
	const name = "selftest"
	s := shared{scratch}
	if err := s.pause(ctx, name, Pace{}, time.Second); err != nil {
		return err
	}
	if _, err := s.reserve(ctx, name, Pace{Interval: time.Second, Burst: 1}, 0, time.Minute); err != nil {
		return err
	}
	_, err := s.mention(ctx, name, name, time.Second)
	return err
}
