package throttle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/lua"
)

// Resolution answers a Request of Resolve.
type Resolution struct {
	Decision
	Opened string // Admitted, Repeated: the receipt of what it resolves; "" if that has expired meanwhile
}

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
		return "\n" + l.record()
	}
	return l.Pair
}

// pairDelivery is what its pair remembers of the delivery: when its event was stored, and the receipt.
func (l Lease) pairDelivery() string {
	if l.Pair == "" {
		return ""
	}
	return strconv.FormatInt(l.Message.stamp(), 10) + " " + l.receipt
}

// Resolve gives resolved events the pairs that they resolve. They take no slots.
func (r *Redis) Resolve(ctx context.Context, requests []Request) ([]Resolution, error) {
	return r.resolveBatch(ctx, newNonce(), requests)
}

// resolveBatch makes one script call. Calling it again with the same nonce and requests gives the same answer.
func (r *Redis) resolveBatch(ctx context.Context, nonce string, requests []Request) ([]Resolution, error) {
	books := newPairBooks(r.keys)
	events := make([]any, 0, 5*len(requests))
	for _, request := range requests {
		record, stamp := request.identity()
		events = append(events, record, stamp, books.of(request), request.Pair, request.Message.stamp())
	}
	k := r.keys
	keys := append([]string{k.calls, k.leased, k.done, k.message}, books.keys...)
	arguments := []any{nonce, r.settings.Lease.Microseconds(), r.settings.Retention.Microseconds(), len(books.index)}
	reply, err := r.run(ctx, lua.Resolve, keys, append(arguments, events...))
	if err != nil {
		return nil, classify("asking for what is resolved", err)
	}
	resolutions, err := decodeResolutions(reply, requests)
	if err != nil {
		return nil, fmt.Errorf("asking for what is resolved: %w: %w", ErrRefused, err)
	}
	return resolutions, nil
}

// resolutionParts are a verdict, a time, a receipt, and whether the event is in doubt.
const resolutionParts = 4

func decodeResolutions(reply []any, requests []Request) ([]Resolution, error) {
	if len(reply) != 1+resolutionParts*len(requests) {
		return nil, fmt.Errorf("%w: %d values for %d events", errReply, len(reply), len(requests))
	}
	at, isNumber := reply[0].(int64)
	if !isNumber {
		return nil, fmt.Errorf("%w: time is %T", errReply, reply[0])
	}
	resolutions := make([]Resolution, len(requests))
	for i, request := range requests {
		parts := reply[1+resolutionParts*i:][:resolutionParts]
		verdict, isNumber := parts[0].(int64)
		wait, alsoNumber := parts[1].(int64)
		receipt, isText := parts[2].(string)
		doubt, isFlag := parts[3].(int64)
		if !isNumber || !alsoNumber || !isText || !isFlag {
			return nil, fmt.Errorf("%w: an answer is %T, %T, %T, %T", errReply, parts[0], parts[1], parts[2], parts[3])
		}
		resolution := Resolution{Decision: Decision{Verdict: Verdict(verdict)}, Opened: receipt}
		switch resolution.Verdict {
		case Admitted, Repeated:
			resolution.InDoubt = doubt == 1
			resolution.Lease = Lease{Request: request, End: at + wait, slotless: true, resolving: true, inDoubt: resolution.InDoubt}
		case Leased:
			resolution.Wait = time.Duration(wait) * time.Microsecond
		case Done, Duplicate, Unpaired:
		default:
			return nil, fmt.Errorf("%w: verdict %d", errReply, verdict)
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
			events = append(events, lease.record(), books.of(lease.Request), lease.Pair)
		}
	}
	if len(events) == 0 {
		return nil
	}
	arguments := append([]any{r.settings.PairTTL.Microseconds(), len(books.index)}, events...)
	_, err := r.runInt(ctx, lua.Announce, append([]string{r.keys.calls}, books.keys...), arguments)
	return classify("announcing deliveries", err)
}

// rehearsePairs opens a pair and resolves it.
func (r *Redis) rehearsePairs(ctx context.Context) error {
	const pair = "rehearsal\npair"
	message := Message{Stored: time.Now()}
	firing := Lease{Request: Request{ID: "firing", Message: message, Category: "rehearsal", Pair: pair}, slotless: true}
	if err := r.announce(ctx, []Decision{{Lease: firing}}); err != nil {
		return err
	}
	if _, err := r.Finish(ctx, []Lease{firing}); err != nil {
		return err
	}
	resolutions, err := r.Resolve(ctx, []Request{{ID: "resolved", Message: message, Category: "rehearsal", Pair: pair}})
	if err != nil {
		return err
	}
	_, err = r.Finish(ctx, []Lease{resolutions[0].Lease})
	return err
}

// Resolve judges resolved events, each of which has a pair. It is outside the limits: an event whose pair is open gets it, and
// is Admitted or Repeated; any other is Unpaired. An error is as of Decide. While a failure policy acts, no event can be judged:
// which pairs are open, Redis alone knows.
func (g *Gate) Resolve(ctx context.Context, requests []Request) ([]Answer, error) {
	state, cause := g.currentState()
	switch {
	case state == answering && len(requests) > 0:
		return g.aside(ctx, requests, pairsOf, g.askForPairs)
	case state == away:
		return nil, unavailable(cause)
	}
	return undecidable(len(requests), unavailable(cause)), nil
}

func (g *Gate) askForPairs(ctx context.Context, requests []Request) ([]Answer, error) {
	asked, nonce := time.Now(), newNonce()
	answers, err := g.askOnceForPairs(ctx, nonce, requests)
	g.o.Metrics.DecisionDuration(time.Since(asked))
	switch {
	case err == nil:
		return answers, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, ErrRefused):
		return g.askEach(ctx, requests, pairsOf, g.askOnceForPairs, err)
	}
	g.leaveUnanswered(nonce, requests)
	g.lost(err)
	return nil, unavailable(err)
}

func (g *Gate) askOnceForPairs(ctx context.Context, nonce string, requests []Request) ([]Answer, error) {
	resolutions, err := g.o.Redis.resolveBatch(ctx, nonce, requests)
	if err != nil {
		return nil, err
	}
	return g.resolved(resolutions), nil
}

func (g *Gate) resolved(resolutions []Resolution) []Answer {
	answers, counts := make([]Answer, len(resolutions)), make(map[string]int, 3)
	for i, resolution := range resolutions {
		answers[i].Decision, answers[i].Opened = resolution.Decision, resolution.Opened
		counts[resolution.Verdict.label()]++
		if resolution.Lease.resolving {
			answers[i].Grant = &Grant{gate: g, lease: resolution.Lease}
		}
	}
	for label, n := range counts {
		g.o.Metrics.Decision(label, string(SourceRedis), n)
	}
	return answers
}

// rule decides, and announces what opens pairs before anybody delivers it: what resolves them then waits for the outcome. That
// the pairs cannot be kept is no reason to hold the events themselves back.
func (g *Gate) rule(ctx context.Context, nonce string, requests []Request) (Ruling, error) {
	ruling, err := g.o.Redis.decideBatch(ctx, nonce, requests)
	if err != nil {
		return Ruling{}, err
	}
	err = g.o.Redis.announce(ctx, ruling.Decisions)
	if errors.Is(err, ErrRefused) {
		g.refused.report(g.o.Logger, requests[0].Category, err)
		return ruling, nil
	}
	return ruling, err
}
