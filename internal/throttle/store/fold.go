package store

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// Fold describes the message that counts an event which is not posted itself. It is immutable.
type Fold struct {
	Number int64     // number of the event in its message; the message itself is number 1
	Posted time.Time // the minute in which the message was posted
	Flaps  bool      // the event is folded because its key is flapping
}

// ofFlap is OF_FLAP of lib/folded.lua.
const ofFlap = 50_000_000

func newFold(number, minute int64) *Fold {
	return &Fold{Number: number % ofFlap, Posted: time.Unix(60*minute, 0).UTC(), Flaps: number > ofFlap}
}

// Count sums up what is folded into a message. The zero value means nothing.
type Count struct {
	Folded   int64     // events beside the message itself
	Last     time.Time // when the newest of them was stored
	Severity int       // rank of the message's severity, which is the highest

	Flapping  bool // the key is flapping
	Fires     bool // the key fires
	StaysOpen bool // the event reports that the key of the message fires and is steady
}

func newCount(folded, last int64, rank int) Count {
	if folded == 0 {
		return Count{}
	}
	return Count{Folded: folded, Last: time.UnixMicro(last).UTC(), Severity: rank}
}

// Uncounted is a message that does not show all events that are folded into it.
type Uncounted struct {
	Receipt string
	Folded  int64
	Wait    time.Duration // until it may show them
}

// CountEvery is the shortest time between two updates that show the count of a message. So a minute has at most two such updates, even if a
// request is faster than the previous request.
const CountEvery = 31 * time.Second

// Uncounted lists for each request the messages of its pair that do not show all events that are folded into them.
func (r *Pairs) Uncounted(ctx context.Context, requests []Request) ([][]Uncounted, error) {
	reply, err := r.count(ctx, "list", requests, "")
	if err != nil {
		return nil, err
	}
	found := make([][]Uncounted, len(requests))
	for i, list := range reply {
		for ; len(list) >= 3; list = list[3:] {
			receipt, isText := list[0].(string)
			numbers, err := script.Numbers(list[1:3], 2)
			if !isText || err != nil {
				return nil, fmt.Errorf("%w: a message is %T, %T, %T", script.ErrReply, list[0], list[1], list[2])
			}
			found[i] = append(found[i], Uncounted{Receipt: receipt, Folded: numbers[0], Wait: micros(numbers[1])})
		}
	}
	return found, nil
}

// BeginCount returns the count that a message of the request's pair has to show, and records that the message shows it. If the message may
// not show it yet, it returns the time until then and records nothing. The count is nil if the pair no longer has the message.
func (r *Pairs) BeginCount(ctx context.Context, request Request, receipt string) (count *Count, wait time.Duration, err error) {
	reply, err := r.count(ctx, "begin", []Request{request}, receipt)
	if err != nil || len(reply[0]) == 0 {
		return nil, 0, err
	}
	numbers, err := script.Numbers(reply[0], 6)
	if err != nil {
		return nil, 0, err
	}
	found := newCount(numbers[1], numbers[2], int(numbers[3]))
	found.Flapping, found.Fires = numbers[4] == 1, numbers[5] == 1
	return &found, micros(numbers[0]), nil
}

// GiveUp gives up a message of the request's pair that cannot be updated. The pair stays open, but no further event is folded into the message.
// Repeating it is harmless.
func (r *Pairs) GiveUp(ctx context.Context, request Request, receipt string) error {
	_, err := r.count(ctx, "give up", []Request{request}, receipt)
	return err
}

// count makes one call of count.lua.
func (r *Pairs) count(ctx context.Context, action string, requests []Request, receipt string) ([][]any, error) {
	books := r.d.keys.newPairBooks(r.d.keys.calls)
	var events []any
	for _, request := range requests {
		events = append(events, books.of(request), request.Pair, receipt)
	}
	arguments := append([]any{action, CountEvery.Microseconds(), len(books.levels.firsts)}, events...)
	return script.RunDecoded(ctx, r.d.runner, script.Call{
		Tried: "counting what is folded", Script: lua.Count, Keys: books.levels.keys, Arguments: arguments,
	}, func(reply []any) ([][]any, error) {
		lists := make([][]any, len(reply))
		for i, value := range reply {
			list, isList := value.([]any)
			if !isList || len(reply) != len(requests) {
				return nil, fmt.Errorf("%w: %d lists for %d pairs, one is %T", script.ErrReply, len(reply), len(requests), value)
			}
			lists[i] = list
		}
		return lists, nil
	})
}
