package store

import (
	"context"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/script"
)

// SelfTest runs the scripts of one package on a scratch runner, to find missing rights.
type SelfTest func(ctx context.Context, scratch *script.Runner) error

// SelfTest looks at the server's version, and runs every script that a worker needs, to find rights that the user lacks. No deployment
// uses the keys of the test. They are removed at the end. If that fails, they expire. The caller adds the self-tests of other packages.
func (r *Redis) SelfTest(ctx context.Context, others ...SelfTest) error {
	if err := r.d.runner.CheckServer(ctx); err != nil {
		return err
	}
	if err := r.d.runner.Load(ctx); err != nil {
		return err
	}
	runner := r.d.runner.Scratch(NewNonce())
	defer func() { _ = runner.Discard(ctx) }()
	for _, test := range append([]SelfTest{selfTest}, others...) {
		if err := test(ctx, runner); err != nil {
			return err
		}
	}
	return nil
}

// selfTest runs the scripts of this package: it takes an event through each state, opens and resolves a pair, and has an event wait.
func selfTest(ctx context.Context, runner *script.Runner) error {
	var all limits.Limits // one of each algorithm
	for _, a := range algorithm.All() {
		all = append(all, limits.Limit{Count: 2, Window: time.Second, Algorithm: a})
	}
	const name, pair = "selftest", "selftest\npair"
	tree, err := limits.NewTree(limits.Plan{Global: all, Category: all, Guarantees: []limits.Guarantee{{Path: name, Slots: 1}}})
	if err != nil {
		return err
	}
	scratch := NewRedis(runner, Settings{Tree: tree, Lease: time.Minute, Retention: time.Second, PairTTL: time.Second, Flap: Flap{Changes: 20, Window: time.Second}})
	position := limits.Position{Generation: 1, Revision: 1}
	scratch.Adopt(limits.Ruleset{Tree: tree, Shadow: tree, Position: position})

	request := Request{ID: name, Message: Message{Stored: time.Now()}, Category: name, Cost: 1}
	firing := Lease{Request: Request{ID: "firing", Message: request.Message, Category: name, Pair: pair}, slotless: true, Receipt: "receipt"}
	folding := Request{ID: "folding", Message: request.Message, Category: name, Cost: 1, Pair: pair, Fold: Folding{Within: time.Minute, Counts: true}}
	result, err := scratch.Decide(ctx, []Request{request})
	if err != nil {
		return err
	}
	lease, err := scratch.Extend(ctx, []Lease{result.Decisions[0].Lease}, time.Minute)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return errorOf(scratch.Refund(ctx, lease)) },
		func() error { return errorOf(scratch.Finish(ctx, lease)) },
		func() error {
			return errorOf(scratch.Restore(ctx, []Admission{{Lease: lease[0], At: time.Now(), Became: WasDelivered}}, time.Now()))
		},
		func() error { return scratch.Pairs.Announce(ctx, []Decision{{Lease: firing}}) },
		func() error { return errorOf(scratch.Finish(ctx, []Lease{firing})) },
		func() error { return errorOf(scratch.Decide(ctx, []Request{folding})) },
		func() error { return errorOf(scratch.Pairs.Uncounted(ctx, []Request{folding})) },
		func() error { return errorOfTwo(scratch.Pairs.BeginCount(ctx, folding, firing.Receipt)) },
		func() error { return scratch.Pairs.GiveUp(ctx, folding, firing.Receipt) },
		func() error { return errorOf(scratch.Pairs.Repeated(ctx, []Request{firing.Request})) },
		func() error { return errorOf(scratch.Pairs.Resolve(ctx, []Request{folding.Report(1)})) },
		func() error {
			return resolveAndFinish(ctx, scratch, Request{ID: "resolved", Message: request.Message, Category: name, Pair: pair})
		},
		func() error {
			return errorOf(scratch.Positions.PutInForce(ctx, position, limits.Position{Generation: 1}))
		},
		func() error {
			return errorOfTwo(scratch.Queues.Delay(ctx, Postponement{Request: request, Wait: time.Millisecond, Longest: time.Second, Limit: all[0]}, 1))
		},
		func() error { return errorOf(scratch.Queues.Turns(ctx, []Request{request})) },
		func() error { return scratch.Queues.Leave(ctx, []Request{request}) },
		func() error {
			return errorOf(scratch.Queues.EnterRoom(ctx, []Stay{{First: name, Member: name, Weight: 1, For: time.Second}}, 1))
		},
		func() error { return errorOf(scratch.Queues.Passed(ctx, name, 1, 1)) },
		func() error { return errorOf(scratch.Readings.Explain(ctx, request)) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func errorOf[T any](_ T, err error) error { return err }

func errorOfTwo[T, U any](_ T, _ U, err error) error { return err }

// resolveAndFinish takes an event that resolves its pair to its end.
func resolveAndFinish(ctx context.Context, r *Redis, resolved Request) error {
	resolutions, err := r.Pairs.Resolve(ctx, []Request{resolved})
	if err != nil {
		return err
	}
	return errorOf(r.Finish(ctx, []Lease{resolutions[0].Lease}))
}
