package store

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// Shape of the reply of decide.lua.
const (
	replyHead   = 3 // time, pauses, answers
	answerParts = 3 // verdict, limit, time
)

// decode reads the script's reply strictly: a reply of another form comes from another script.
func (c *decideCall) decode(reply []any) (BatchResult, error) {
	events := len(c.requests)
	expected := events
	if c.rules.InShadow != nil {
		expected *= 2
	}
	if len(reply) < replyHead {
		return BatchResult{}, fmt.Errorf("%w: %d values", script.ErrReply, len(reply))
	}
	at, isNumber := reply[0].(int64)
	if !isNumber {
		return BatchResult{}, fmt.Errorf("%w: time is %T", script.ErrReply, reply[0])
	}
	pauses, err := decodePauses(reply[1], at)
	if err != nil {
		return BatchResult{}, err
	}
	answers, err := c.decodeAnswers(reply[2], at)
	if err != nil {
		return BatchResult{}, err
	}
	numbers, err := script.Numbers(reply[replyHead:], expected)
	if err != nil {
		return BatchResult{}, err
	}
	result := BatchResult{At: at, Pauses: pauses, Decisions: make([]Decision, events)}
	for i, number := range numbers {
		ofShadow := i >= events
		if ofShadow && number == 0 {
			continue // the shadow was not asked
		}
		if number < 1 || number > int64(len(answers)) {
			return BatchResult{}, fmt.Errorf("%w: answer %d of %d", script.ErrReply, number, len(answers))
		}
		if ofShadow {
			result.Decisions[i-events].Shadow = answers[number-1].ofShadow()
			continue
		}
		if answers[number-1].Verdict == Unknown && c.muted[i] != nil {
			result.Decisions[i].MutedBy(c.muted[i])
			continue
		}
		c.answer(&result.Decisions[i], &answers[number-1], c.requests[i], at)
	}
	return result, nil
}

// answer decides about a request as the answer says. Decisions are large: only what answers have is copied.
func (c *decideCall) answer(decision, answer *Decision, request Request, at int64) {
	decision.Verdict, decision.Wait, decision.InDoubt = answer.Verdict, answer.Wait, answer.InDoubt
	decision.Node, decision.Limit = answer.Node, answer.Limit
	decision.Fold, decision.Awaits, decision.Flaps = answer.Fold, answer.Awaits, answer.Flaps
	lease := &decision.Lease
	lease.End, lease.slotless = answer.Lease.End, request.Slotless
	if c.forward && answer.Verdict.IsDenial() {
		lease.End, lease.slotless = at+c.lease.Microseconds(), true
	}
	if lease.End != 0 {
		lease.Request, lease.tree, lease.shadow, lease.InDoubt = request, c.rules.InForce, c.rules.InShadow, answer.InDoubt
	}
}

// decodeAnswers reads the distinct answers. Their leases lack the request.
func (c *decideCall) decodeAnswers(reply any, at int64) ([]Decision, error) {
	list, isList := reply.([]any)
	if !isList || len(list)%answerParts != 0 {
		return nil, fmt.Errorf("%w: answers are %T", script.ErrReply, reply)
	}
	numbers, err := script.Numbers(list, len(list))
	if err != nil {
		return nil, err
	}
	answers := make([]Decision, 0, len(numbers)/answerParts)
	for ; len(numbers) > 0; numbers = numbers[answerParts:] {
		limit, wait := numbers[1], numbers[2]
		decision := Decision{Verdict: Verdict(numbers[0])}
		switch decision.Verdict {
		case Denied, ExceedsCapacity:
			if limit < 1 || limit > int64(len(c.limits)) {
				return nil, fmt.Errorf("%w: denied by limit %d of %d", script.ErrReply, limit, len(c.limits))
			}
			decision.Node, decision.Limit = c.limits[limit-1].node, c.limits[limit-1].limit
			decision.Wait = micros(wait)
		case Admitted, Reclaimed:
			decision.Lease.End = at + wait
			decision.InDoubt, decision.Flaps = limit&1 != 0, limit&2 != 0
		case Leased:
			decision.Wait, decision.Awaits = micros(wait), limit == 1
		case Folded:
			decision.Fold = newFold(limit, wait)
		case Done:
			decision.Flaps = limit == 2
		case Duplicate, Unknown:
		default:
			return nil, fmt.Errorf("%w: verdict %d", script.ErrReply, numbers[0])
		}
		answers = append(answers, decision)
	}
	return answers, nil
}

func decodePauses(reply any, at int64) (map[string]time.Duration, error) {
	list, isList := reply.([]any)
	texts, err := script.Texts(list)
	switch {
	case !isList || err != nil || len(texts)%2 != 0:
		return nil, fmt.Errorf("%w: pauses are %v", script.ErrReply, reply)
	case len(texts) == 0:
		return nil, nil
	}
	pauses := make(map[string]time.Duration, len(texts)/2)
	for pause := range slices.Chunk(texts, 2) {
		until, err := strconv.ParseFloat(pause[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: a pause ends at %q", script.ErrReply, pause[1])
		}
		pauses[pause[0]] = time.Duration(until-float64(at)) * time.Microsecond
	}
	return pauses, nil
}
