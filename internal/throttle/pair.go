package throttle

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/lua"
)

// pairBooks numbers the books of pairs that a script call needs: one for each first-level category.
type pairBooks struct {
	names keys
	index map[string]int
	keys  []string
}

func newPairBooks(names keys) *pairBooks {
	return &pairBooks{names: names, index: make(map[string]int)}
}

// of is the number of an event's book, 0 if it has no pair.
func (b *pairBooks) of(request Request) int {
	if request.Pair == "" {
		return 0
	}
	first := event.FirstLevel(request.Category)
	number, known := b.index[first]
	if !known {
		number = len(b.index) + 1
		b.index[first] = number
		b.keys = append(b.keys, b.names.pairs(first), b.names.pairsUntil(first))
	}
	return number
}

// pairField is the field of the event's pair in Redis: for a resolved event, the one that it has taken.
func (l Lease) pairField() string {
	if l.resolving {
		return "\n" + l.eventKey()
	}
	return l.Pair
}

// pairDelivery is what its pair remembers of the delivery: when its event was stored, and the receipt.
func (l Lease) pairDelivery() string {
	if l.Pair == "" {
		return ""
	}
	return strconv.FormatInt(l.Message.version(), 10) + " " + l.receipt
}

// Resolve gives resolved events the pairs that they resolve. They take no slots.
func (r *Redis) Resolve(ctx context.Context, requests []Request) ([]Decision, error) {
	return r.resolveBatch(ctx, newNonce(), requests)
}

// resolveBatch makes one script call. Calling it again with the same nonce and requests gives the same answer.
func (r *Redis) resolveBatch(ctx context.Context, nonce string, requests []Request) ([]Decision, error) {
	books := newPairBooks(r.keys)
	events := make([]any, 0, 5*len(requests))
	for _, request := range requests {
		eventKey, version := request.keyAndVersion()
		events = append(events, eventKey, version, books.of(request), request.Pair, request.Message.version())
	}
	k := r.keys
	keys := append([]string{k.calls, k.leased, k.done, k.message}, books.keys...)
	arguments := []any{nonce, r.settings.Lease.Microseconds(), r.settings.Retention.Microseconds(), len(books.index)}
	reply, err := r.runner.Run(ctx, "asking for what is resolved", lua.Resolve, keys, append(arguments, events...))
	if err != nil {
		return nil, err
	}
	resolutions, err := decodeResolutions(reply, requests)
	if err != nil {
		return nil, fmt.Errorf("asking for what is resolved: %w", err)
	}
	return resolutions, nil
}

// resolutionParts are a verdict, a time, a receipt, and whether the event is in doubt.
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
		receipt, isText := parts[2].(string)
		doubt, isFlag := parts[3].(int64)
		if !isNumber || !alsoNumber || !isText || !isFlag {
			return nil, fmt.Errorf("%w: an answer is %T, %T, %T, %T", script.ErrReply, parts[0], parts[1], parts[2], parts[3])
		}
		resolution := Decision{Verdict: Verdict(verdict), Opened: receipt}
		switch resolution.Verdict {
		case Admitted, Reclaimed:
			resolution.InDoubt = doubt == 1
			resolution.Lease = Lease{Request: request, End: at + wait, slotless: true, resolving: true, inDoubt: resolution.InDoubt}
		case Leased:
			resolution.Wait = time.Duration(wait) * time.Microsecond
		case Done, Duplicate, Unpaired:
		default:
			return nil, fmt.Errorf("%w: verdict %d", script.ErrReply, verdict)
		}
		resolutions[i] = resolution
	}
	return resolutions, nil
}

// announce notes that events are being delivered which open pairs.
func (r *Redis) announce(ctx context.Context, decisions []Decision) error {
	var events []any
	books := newPairBooks(r.keys)
	for i := range decisions {
		if lease := &decisions[i].Lease; lease.Pair != "" {
			events = append(events, lease.eventKey(), books.of(lease.Request), lease.Pair)
		}
	}
	if len(events) == 0 {
		return nil
	}
	arguments := append([]any{r.settings.PairTTL.Microseconds(), len(books.index)}, events...)
	_, err := r.runner.RunInt(ctx, "announcing deliveries", lua.Announce, append([]string{r.keys.calls}, books.keys...), arguments)
	return err
}

// testPairs opens a pair and resolves it.
func (r *Redis) testPairs(ctx context.Context) error {
	const pair = "selftest\npair"
	message := Message{Stored: time.Now()}
	firing := Lease{Request: Request{ID: "firing", Message: message, Category: "selftest", Pair: pair}, slotless: true}
	if err := r.announce(ctx, []Decision{{Lease: firing}}); err != nil {
		return err
	}
	if _, err := r.Finish(ctx, []Lease{firing}); err != nil {
		return err
	}
	resolutions, err := r.Resolve(ctx, []Request{{ID: "resolved", Message: message, Category: "selftest", Pair: pair}})
	if err != nil {
		return err
	}
	_, err = r.Finish(ctx, []Lease{resolutions[0].Lease})
	return err
}
