package throttle

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// SelfTest runs the scripts of one package on a scratch runner, to find missing rights.
type SelfTest func(ctx context.Context, scratch *script.Runner) error

// SelfTest runs every script that a worker needs, as this user, on keys that no deployment uses and that expire by themselves. It
// finds missing rights. The store knows its own scripts; the self-tests of other packages are handed in.
func (r *Redis) SelfTest(ctx context.Context, others ...SelfTest) error {
	if err := r.runner.Load(ctx); err != nil {
		return err
	}
	runner := r.runner.Scratch(newNonce())
	for _, test := range append([]SelfTest{testDecisions, testWaiting}, others...) {
		if err := test(ctx, runner); err != nil {
			return err
		}
	}
	return nil
}

// testLimits are one limit of each algorithm.
func testLimits() limits.Limits {
	var all limits.Limits
	for _, a := range limits.Algorithms() {
		all = append(all, limits.Limit{Count: 2, Window: time.Second, Algorithm: a})
	}
	return all
}

// newScratch makes a store with a limit of each algorithm, a guarantee, and a shadow.
func newScratch(runner *script.Runner) (*Redis, error) {
	all := testLimits()
	tree, err := limits.NewTree(limits.Plan{Global: all, Category: all, Guarantees: []limits.Guarantee{{Path: "selftest", Slots: 1}}})
	if err != nil {
		return nil, err
	}
	scratch := NewRedis(runner, Settings{Tree: tree, Lease: time.Minute, Retention: time.Second, PairTTL: time.Second})
	scratch.Adopt(limits.Ruleset{Tree: tree, Shadow: tree, Generation: 1, Revision: 1})
	return scratch, nil
}

func testRequest() Request {
	return Request{ID: "selftest", Message: Message{Stored: time.Now()}, Category: "selftest", Cost: 1}
}

// testDecisions takes an event through each state.
func testDecisions(ctx context.Context, runner *script.Runner) error {
	scratch, err := newScratch(runner)
	if err != nil {
		return err
	}
	result, err := scratch.Decide(ctx, []Request{testRequest()})
	if err != nil {
		return err
	}
	lease := []Lease{result.Decisions[0].Lease}
	if lease, err = scratch.Extend(ctx, lease, time.Minute); err != nil {
		return err
	}
	if _, err = scratch.Refund(ctx, lease); err != nil {
		return err
	}
	if _, err = scratch.Finish(ctx, lease); err != nil {
		return err
	}
	if _, err = scratch.Restore(ctx, []admission{{lease: lease[0], at: time.Now(), became: wasDelivered}}); err != nil {
		return err
	}
	if err = scratch.testPairs(ctx); err != nil {
		return err
	}
	_, err = scratch.PutInForce(ctx, limits.Position{Generation: 1, Revision: 1}, limits.Position{Generation: 1})
	return err
}

// testWaiting has an event wait for a slot.
func testWaiting(ctx context.Context, runner *script.Runner) error {
	scratch, err := newScratch(runner)
	if err != nil {
		return err
	}
	request := testRequest()
	postponement := Postponement{Request: request, Wait: time.Millisecond, Longest: time.Second, Limit: testLimits()[0]}
	if _, _, err = scratch.Delay(ctx, postponement, 1); err != nil {
		return err
	}
	if _, err = scratch.turns(ctx, []Request{request}); err != nil {
		return err
	}
	if err = scratch.leave(ctx, []Request{request}); err != nil {
		return err
	}
	if _, err = scratch.EnterRoom(ctx, []Stay{{First: "selftest", Member: "selftest", Weight: 1, For: time.Second}}, 1); err != nil {
		return err
	}
	_, err = scratch.Passed(ctx, "selftest", 1, 1)
	return err
}
