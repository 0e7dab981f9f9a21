package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// pairBooks numbers the books of pairs that a script call needs. Each first-level category has one.
type pairBooks struct{ levels levelIndex }

func (k *keys) newPairBooks(fixed ...string) *pairBooks {
	return &pairBooks{k.newLevelIndex(bookPrefixes, fixed...)}
}

// of returns the number of an event's book; 0 if it has no pair.
func (b *pairBooks) of(request Request) int {
	if request.Pair == "" {
		return 0
	}
	return b.levels.of(event.FirstLevel(request.Category))
}

// ofDelivered returns the number of the book that a delivery changes; 0 if it changes none.
func (b *pairBooks) ofDelivered(lease Lease) int {
	if lease.Unshown {
		return 0
	}
	return b.of(lease.Request)
}

// pairField returns the field of the event's pair in Redis. A resolved event has a field of its own for the pair that it has taken.
func (l Lease) pairField() string {
	if l.Resolving {
		return "\n" + l.Request.eventKey()
	}
	return l.Request.Pair
}

// pairDelivery returns what a firing event's pair remembers of a delivery: the version of the message, the severity, the event, and the
// receipt.
func (l Lease) pairDelivery() string {
	if l.Request.Pair == "" || l.Resolving {
		return ""
	}
	original := cmp.Or(l.Request.RemindsOf, l.Request.eventKey())
	return fmt.Sprintf("%d %d %d %s%s", l.Request.Message.version(), l.Request.Fold.Severity, len(original), original, l.Receipt)
}

// Resolve gives resolved events the pairs that they resolve. They take no slots.
func (r *Pairs) Resolve(ctx context.Context, requests []Request) ([]Decision, error) {
	return r.ResolveOnce(ctx, NewNonce(), requests)
}

// ResolveOnce makes one script call. A repeated call with the same nonce and requests gives the same answer.
func (r *Pairs) ResolveOnce(ctx context.Context, nonce string, requests []Request) ([]Decision, error) {
	ctx, recording := r.d.record(ctx, recorded{Kind: "resolve", Nonce: nonce, Requests: requests})
	k, s := &r.d.keys, r.d.settings
	books := k.newPairBooks(k.calls, k.leased, k.done, k.message, k.taken)
	events := make([]any, 0, 6*len(requests))
	for _, request := range requests {
		eventKey, version := request.keyAndVersion()
		events = append(events, eventKey, version, books.of(request), request.Pair, request.resolvesUpto(), request.kind())
	}
	arguments := []any{
		nonce, s.Lease.Microseconds(), s.Retention.Microseconds(), s.PairTTL.Microseconds(), s.Flap.Changes, s.Flap.Window.Milliseconds(),
		len(books.levels.firsts),
	}
	decode := func(reply []any) ([]Decision, error) { return decodeResolutions(reply, requests) }
	resolutions, err := script.RunDecoded(ctx, r.d.runner, script.Call{
		Tried: "asking for what is resolved", Script: lua.Resolve, Keys: books.levels.keys, Arguments: append(arguments, events...),
	}, decode)
	recording.end(recorded{Decisions: resolutions}, err)
	return resolutions, err
}

// resolutionParts are a verdict, a time, receipts, and whether the event is in doubt.
const resolutionParts = 4

func decodeResolutions(reply []any, requests []Request) ([]Decision, error) {
	if len(reply) != 1+resolutionParts*len(requests) {
		return nil, fmt.Errorf("%w: %d values for %d events", script.ErrReply, len(reply), len(requests))
	}
	at, isNumber := reply[0].(int64)
	if !isNumber {
		return nil, fmt.Errorf("%w: time is %T", script.ErrReply, reply[0])
	}
	resolutions := make([]Decision, len(requests))
	for i, request := range requests {
		parts := reply[1+resolutionParts*i:][:resolutionParts]
		verdict, isNumber := parts[0].(int64)
		wait, alsoNumber := parts[1].(int64)
		opened, isList := parts[2].([]any)
		receipts, err := script.Texts(opened)
		doubt, isFlag := parts[3].(int64)
		if !isNumber || !alsoNumber || !isList || err != nil || !isFlag {
			return nil, fmt.Errorf("%w: an answer is %T, %T, %T, %T", script.ErrReply, parts[0], parts[1], parts[2], parts[3])
		}
		resolution := Decision{Verdict: Verdict(verdict)}
		for ; len(receipts) >= 2; receipts = receipts[2:] {
			resolution.Resolved = append(resolution.Resolved, Resolved{receipts[0], countOf(receipts[1])})
		}
		switch resolution.Verdict {
		case Admitted, Reclaimed:
			resolution.InDoubt = doubt == 1
			resolution.Lease = Lease{Request: request, End: at + wait, slotless: true, Resolving: true, InDoubt: resolution.InDoubt}
		case Leased:
			resolution.Wait, resolution.Changed = micros(wait), Change(doubt)
		case Folded:
			resolution.Fold = newFold(wait, doubt)
		case Unpaired:
			resolution.Awaits = doubt == 1
		case Done, Duplicate:
		default:
			return nil, fmt.Errorf("%w: verdict %d", script.ErrReply, verdict)
		}
		resolutions[i] = resolution
	}
	return resolutions, nil
}

// countOf reads what is folded into a message that the event resolves.
func countOf(text string) Count {
	var folded, last int64
	var rank, staysOpen int
	_, _ = fmt.Sscan(text, &folded, &last, &rank, &staysOpen)
	count := newCount(folded, last, rank)
	count.StaysOpen = staysOpen == 1
	return count
}

// Announce notes which events are being delivered that open pairs.
func (r *Pairs) Announce(ctx context.Context, decisions []Decision) error {
	var events []any
	books, folding := r.d.keys.newPairBooks(), r.d.rules().folding(r.d.settings)
	for i := range decisions {
		if lease := &decisions[i].Lease; lease.Request.Pair != "" && !folding(lease.Request) { // else decide.lua has announced it
			events = append(events, lease.Request.eventKey(), books.of(lease.Request), lease.Request.Pair, lease.pairDelivery())
		}
	}
	if len(events) == 0 {
		return nil
	}
	arguments := append([]any{r.d.settings.Retention.Microseconds(), r.d.settings.PairTTL.Microseconds(), len(books.levels.firsts)}, events...)
	_, err := r.d.runner.RunInt(ctx, "announcing deliveries", lua.Announce, append([]string{r.d.keys.calls, r.d.keys.leased}, books.levels.keys...), arguments)
	return err
}

// Answers of repeat.lua about a firing event. Posted: the event was posted for this very stored message. NotDue: no reminder is due. Any
// other answer is the number of messages that the event has: a reminder is due.
const (
	Posted = -1
	NotDue = 0
)

// MayRepeat reports whether the event may repeat a posted or folded event that still fires. An event with a derived ID is never repeated.
func (r Request) MayRepeat() bool { return r.Pair != "" && !r.Resolves && !r.Derived && r.Cost > 0 }

// Reminder returns the request to post an event again that has that many messages. No event has its identity: no category contains '~'.
func (r Request) Reminder(messages int64) Request {
	category, id, _ := strings.Cut(r.ID, " ")
	r.RemindsOf = r.eventKey()
	r.ID = fmt.Sprintf("%s~%d %s", category, messages, id)
	return r
}

// Repeated looks for events among the messages of open pairs and what is folded into them, and renews what Redis knows of the events that
// it finds.
func (r *Pairs) Repeated(ctx context.Context, requests []Request) ([]int64, error) {
	k, s := &r.d.keys, r.d.settings
	books := k.newPairBooks(k.calls, k.done, k.message)
	var events []any
	for _, request := range requests {
		events = append(events, request.eventKey(), request.Message.version(), books.of(request), request.Pair)
	}
	arguments := []any{s.Lease.Microseconds(), s.Retention.Microseconds(), s.PairTTL.Microseconds(), s.Remind.Microseconds(), len(books.levels.firsts)}
	return r.d.runner.RunNumbers(ctx, "looking for repetitions", lua.Repeat, books.levels.keys, append(arguments, events...), len(requests))
}
