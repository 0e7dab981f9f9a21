package pacing

import (
	"context"
	"errors"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

type mention int

// The answers about mentions, numbered as in mention.lua.
const (
	noMention    mention = iota // another event of its path has
	hasMention                  // it may, as an earlier answer said: an earlier message of it may have
	takesMention                // it may, from now on
)

// shared is the pacing that all instances agree on, in Redis. Its time is the server's.
type shared struct {
	runner    *script.Runner
	budgets   Budgets
	available func() bool // whether to ask Redis; nil: always
}

func (s shared) isAvailable() bool { return s.available == nil || s.available() }

// post reserves the next post of a channel for an asker. Redis may not know of the caller's pause.
func (s shared) post(ctx context.Context, asker string, a Ask, known time.Duration) (Reservation, error) {
	pace, workspace := s.budgets.Channel, s.budgets.Workspace
	arguments := []any{
		a.Channel, asker, a.order(), a.MaxWait.Microseconds(), pace.Interval.Microseconds(), max(pace.Burst, 1), known.Microseconds(),
		workspace.Count, workspace.Length.Microseconds(),
	}
	keys := s.runner.Keys("calls", "pauses", "paces", "posts", "turns", "asked", "askers:"+a.Channel)
	numbers, err := s.runner.RunNumbers(ctx, "pacing posts", lua.Pace, keys, arguments, 3)
	if err != nil {
		return Reservation{}, err
	}
	return Reservation{OK: numbers[0] == 1, Wait: micros(numbers[1]), Expected: micros(numbers[2])}, nil
}

// lookUp reserves the next look-up of posts, unless it is further away than maxWait. Redis may not know of the caller's pause.
func (s shared) lookUp(ctx context.Context, known, maxWait time.Duration) (Reservation, error) {
	window := s.budgets.LookUps
	arguments := []any{window.Count, window.Length.Microseconds(), maxWait.Microseconds(), known.Microseconds()}
	numbers, err := s.runner.RunNumbers(ctx, "pacing look-ups", lua.LookUp, s.runner.Keys("calls", "pauses", "lookups"), arguments, 2)
	if err != nil {
		return Reservation{}, err
	}
	wait := micros(numbers[1])
	return Reservation{OK: numbers[0] == 1, Wait: wait, Expected: wait}, nil
}

// The answers about updates, numbered as in update.lua.
const (
	updateBegins   = 1
	updateObsolete = 2
)

// update reserves the update of a message, and begins it when it is due. Redis may not know of the caller's pause.
func (s shared) update(ctx context.Context, u Update, known time.Duration) (Reservation, error) {
	window := s.budgets.Updates
	arguments := []any{
		window.Count, window.Length.Microseconds(), known.Microseconds(), u.Order, u.MaxWait.Microseconds(), u.Within.Microseconds(), u.Lasts.Microseconds(),
	}
	keys := s.runner.Keys("calls", "pauses", "updates", "update:"+u.Message)
	numbers, err := s.runner.RunNumbers(ctx, "pacing updates", lua.Update, keys, arguments, 2)
	if err != nil {
		return Reservation{}, err
	}
	wait := micros(numbers[1])
	return Reservation{OK: numbers[0] == updateBegins, Obsolete: numbers[0] == updateObsolete, Wait: wait, Expected: wait}, nil
}

func (s shared) updated(ctx context.Context, message string, order int64) error {
	_, err := s.runner.RunInt(ctx, "recording an update", lua.Updated, s.runner.Keys("update:"+message), []any{order})
	return err
}

// pause pauses a channel, the updates or the look-ups for a cause. With d 0 it pauses nothing. It returns the remaining pauses.
func (s shared) pause(ctx context.Context, name string, d time.Duration, why cause) (map[string]time.Duration, error) {
	pace := s.budgets.Channel
	arguments := []any{name, d.Microseconds(), pace.ahead().Microseconds(), pace.Interval.Microseconds(), int(why)}
	numbers, err := s.runner.RunNumbers(ctx, "pausing deliveries", lua.Pause, s.runner.Keys("calls", "pauses", "paces", "limited"), arguments, 2)
	if err != nil {
		return nil, err
	}
	return pausesOf(name, micros(numbers[0]), micros(numbers[1])), nil
}

// pausesOf returns the pauses in force, of what is named and of the workspace.
func pausesOf(name string, own, ofWorkspace time.Duration) map[string]time.Duration {
	pauses := map[string]time.Duration{name: own}
	if ofWorkspace > 0 {
		pauses[workspace] = ofWorkspace
	}
	return pauses
}

// use counts how much of each budget is used, with the budgets of some channels.
func (s shared) use(ctx context.Context, channels []string) (Use, error) {
	const beforeChannels, perChannel = 9, 2 // numbers
	b, keys := s.budgets, s.runner.Keys("calls", "pauses", "posts", "asked", "updates", "lookups", "paces")
	arguments := []any{
		b.Workspace.Length.Microseconds(), b.Updates.Length.Microseconds(), b.LookUps.Length.Microseconds(),
		b.Channel.Interval.Microseconds(), max(b.Channel.Burst, 1),
	}
	channels = b.Channel.counted(channels)
	for _, channel := range channels {
		keys, arguments = append(keys, s.runner.Key("askers:"+channel)), append(arguments, channel)
	}
	count := beforeChannels + perChannel*len(channels)
	numbers, err := s.runner.RunNumbers(ctx, "counting the budgets", lua.Budgets, keys, arguments, count)
	if err != nil {
		return Use{}, err
	}
	of := func(numbers []int64) BudgetUse {
		return BudgetUse{Used: int(numbers[0]), Waiting: int(numbers[1]), Paused: micros(numbers[2])}
	}
	use := Use{Workspace: of(numbers), Updates: of(numbers[3:]), LookUps: of(numbers[6:])}
	for i, channel := range channels {
		numbers := numbers[beforeChannels+perChannel*i:]
		use.addChannel(ChannelUse{Channel: channel, Wait: micros(numbers[0]), Askers: int(numbers[1])})
	}
	return use, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// mention returns whether an event may mention people, as one event of a path may in each duration. With d 0 it gives back the event's mention.
func (s shared) mention(ctx context.Context, path, id string, d time.Duration) (mention, error) {
	may, err := s.runner.RunInt(ctx, "asking for a mention", lua.Mention, s.runner.Keys("mention:"+path), []any{id, d.Microseconds()})
	return mention(may), err
}

// SelfTest runs every script of this package, on the keys of a scratch runner. It finds missing rights.
func SelfTest(ctx context.Context, scratch *script.Runner) error {
	const name = "selftest"
	s := shared{runner: scratch, budgets: Budgets{Channel: Pace{time.Second, 2}, Workspace: Window{1, time.Minute}, Updates: Window{1, time.Minute}, LookUps: Window{1, time.Minute}}}
	_, posted := s.post(ctx, name, Ask{Channel: name, MaxWait: time.Hour}, 0)
	_, waits := s.post(ctx, name, Ask{Channel: name, MaxWait: time.Hour}, 0)
	_, paused := s.pause(ctx, name, time.Second, byLimit)
	_, updates := s.update(ctx, Update{Message: name, Order: 1}, 0)
	updated := s.updated(ctx, name, 1)
	_, lookedUp := s.lookUp(ctx, 0, 0)
	noted := NewChannels(scratch, nil).Note(ctx, name, name)
	_, routed := NewChannels(scratch, nil).Routes(ctx, name)
	_, counted := s.use(ctx, []string{name})
	_, mentioned := s.mention(ctx, name, name, time.Second)
	_, claimed := NewReadings(scratch, nil).Of(name).call(ctx, "ask", 0, 0, "")
	return errors.Join(posted, waits, paused, updates, updated, lookedUp, noted, routed, counted, mentioned, claimed)
}
