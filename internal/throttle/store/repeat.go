package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/lua"
)

// Posted is what repeat.lua returns for a firing event whose message was posted for this very stored message. Any greater number is how many
// messages the event has, and the event is due; NotDue says nothing.
const (
	Posted = -1
	NotDue = 0
)

// MayRepeat tells whether the event may be a repetition of one that was posted and goes on. An event with a derived ID is never repeated.
func (r Request) MayRepeat() bool { return r.Pair != "" && !r.Resolves && !r.Derived && r.Cost > 0 }

// Reminder is the request to post an event again that has so many messages. No event has its identity: a category holds no '~'.
func (r Request) Reminder(messages int64) Request {
	category, id, _ := strings.Cut(r.ID, " ")
	r.RemindsOf = r.eventKey()
	r.ID = fmt.Sprintf("%s~%d %s", category, messages, id)
	return r
}

// Repeated looks for events among the messages of open pairs, and keeps what is known of those anew.
func (r *Pairs) Repeated(ctx context.Context, requests []Request) ([]int64, error) {
	books := newPairBooks(r.d.keys)
	var events []any
	for _, request := range requests {
		events = append(events, request.eventKey(), request.Message.version(), books.of(request), request.Pair)
	}
	s := r.d.settings
	arguments := []any{s.Lease.Microseconds(), s.Retention.Microseconds(), s.PairTTL.Microseconds(), s.Remind.Microseconds(), len(books.numbers)}
	keys := append([]string{r.d.keys.calls, r.d.keys.done, r.d.keys.message}, books.keys...)
	return r.d.runner.RunNumbers(ctx, "looking for repetitions", lua.Repeat, keys, append(arguments, events...), len(requests))
}
