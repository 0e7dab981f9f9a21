package throttle

import (
	"context"
	"errors"
	"slices"

	"github.com/seed-4578ace9/notifier/internal/script"
)

// lostReply is a call whose reply did not come: perhaps the server granted something to nobody.
type lostReply struct {
	nonce    string
	requests []Request
}

// maxLostReplies bounds the calls that are remembered. More are hardly under way at once; what they were granted lapses.
const maxLostReplies = 16

// noReply notes that the reply to a call was lost, and with it Redis. It returns the error for whoever made the call.
func (o *outage) noReply(nonce string, requests []Request, cause error) error {
	o.loseReply(nonce, requests)
	o.lost(cause)
	return unavailableBecause(cause)
}

func (o *outage) loseReply(nonce string, requests []Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.lostReplies) == maxLostReplies {
		return
	}
	lookups := slices.Clone(requests)
	for i := range lookups {
		lookups[i].Cost = 0 // nothing more is to be admitted
	}
	o.lostReplies = append(o.lostReplies, lostReply{nonce, lookups})
}

// releaseLost ends the leases that were granted in lost replies: their events were given back and are asked for again.
func (o *outage) releaseLost(ctx context.Context) error {
	for {
		o.mu.Lock()
		if len(o.lostReplies) == 0 {
			o.mu.Unlock()
			return nil
		}
		call := o.lostReplies[0]
		o.mu.Unlock()
		err := o.release(ctx, call)
		if err != nil && !errors.Is(err, script.ErrRefused) && !errors.Is(err, script.ErrStale) {
			return err // else their leases lapse by themselves
		}
		o.mu.Lock()
		o.lostReplies = o.lostReplies[1:]
		o.mu.Unlock()
	}
}

// release repeats a call, which gets the same answer, and ends the leases in it.
func (o *outage) release(ctx context.Context, call lostReply) error {
	result, err := o.Redis.decideBatch(ctx, call.nonce, call.requests)
	if err != nil {
		return err
	}
	var leases []Lease
	for i := range result.Decisions {
		if lease := result.Decisions[i].Lease; lease.ID != "" {
			leases = append(leases, lease)
		}
	}
	_, err = o.Redis.Extend(ctx, leases, 0)
	return err
}
