package overrides

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/schedule"
)

// NewMute returns a mute of a pattern and everything below it that is not stored yet.
func NewMute(pattern, reason, spare string) Change {
	return Change{Name: Name{Pattern: pattern, Kind: Mute}, Value: reason, Muting: Muting{Spare: spare}}
}

// MutedPath returns the path of a mute: its pattern, or [event.Everything].
func (n Name) MutedPath() string {
	if n.Pattern == wildcard {
		return event.Everything
	}
	return n.Pattern
}

// Recurring returns a mute that recurs by a schedule. Mutes of a pattern with equal schedules have equal names.
func (c Change) Recurring(weekly schedule.Weekly) Change {
	c.Muting.Every = weekly.String()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(c.Muting.Every))
	c.Name.Kind, c.Name.Rule = Recurring, fmt.Sprintf("%08x", hash.Sum32())
	return c
}

// SetMute stores a mute: until a time by the server's clock or, of a recurring mute, its schedule. If the schedule has a window now, SetMute
// begins the mute too. It returns the errors of Set, and [ErrPast].
func (b *Bucket) SetMute(ctx context.Context, s Snapshot, mute Change, until time.Time) (set Change, err error) {
	if mute.Name.Kind == Mute {
		if !until.After(s.Read) {
			return Change{}, ErrPast
		}
		mute.Until = until
		return b.replace(ctx, s, "setting the", mute)
	}
	if set, err = b.replace(ctx, s, "setting the", mute); err != nil {
		return set, err
	}
	begun, begins, err := set.begin(nil, s.Read)
	if !begins {
		return set, err
	}
	set.Until = begun.Until
	if _, err = b.replace(ctx, s, "beginning the", begun); errors.Is(err, ErrConflict) {
		err = nil // a worker has begun it
	}
	return set, err
}

// ErrPast means that a mute would end before it begins.
var ErrPast = errors.New("the end is in the past")

// begin returns the mute of the window of a recurring mute, if there is a window now, and if neither the mute is in force nor an operator
// has ended it since the window began. It returns an error if the schedule cannot be read.
func (c Change) begin(entries map[Name]Change, now time.Time) (begun Change, begins bool, err error) {
	weekly, err := schedule.Parse(c.Muting.Every)
	if err != nil {
		return Change{}, false, err
	}
	from, to := weekly.Next(now)
	begun = Change{Name: c.Name, Value: c.Value, Muting: c.Muting, By: c.By, Until: to}
	begun.Name.Kind = Mute
	if begun.stored.key, err = begun.Name.Key(); err != nil || from.After(now) {
		return Change{}, false, err
	}
	known, found := entries[begun.Name]
	return begun, !found || known.Deleted && (known.Ended != 0 || known.Changed.Before(from)), nil
}
