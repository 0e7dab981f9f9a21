package store

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/scripttest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// scriptPath has a limit at each of its levels by scriptSettings.
const scriptPath = "a.b"

func scriptSettings(t testing.TB) Settings {
	return Settings{Tree: newTree(t, "6/1h", "5/1h", "a.b=4/1h"), Lease: testLease, Retention: testRetention, PairTTL: testPairTTL}
}

// operation is a call of a script after the seed. The call gets the lease that the seed leaves.
type operation struct {
	name    string
	touches string // names of the keys that the call needs
	writes  string // commands with which the script writes
	call    func(ctx context.Context, r *Redis, lease Lease) error
}

var operations = []operation{
	{"decide", "calls leased done message pauses log log:a log:a.b", "zadd pexpire zremrangebyrank",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return decide(ctx, r, request("new", scriptPath).withCost(2))
		}},
	{"decide as one", "calls leased done message pauses log log:a log:a.b", "zadd pexpire zremrangebyrank",
		func(ctx context.Context, r *Redis, _ Lease) error { return decide(ctx, r, request("new", scriptPath)) }},
	{"decide in shadow mode", "calls leased done message pauses log log:a log:a.b", "zadd pexpire zremrangebyrank",
		func(ctx context.Context, r *Redis, _ Lease) error {
			forwarding := NewRedis(r.d.runner, r.d.settings)
			forwarding.d.settings.Forward = true
			return decide(ctx, forwarding, several(10, "new", scriptPath)...)
		}},
	{"finish", "calls leased done message", "zadd pexpire zrem zremrangebyrank hdel",
		func(ctx context.Context, r *Redis, lease Lease) error { return finish(ctx, r, lease) }},
	{"announce", "calls pairs:a pairs:until:a", "zadd pexpire zrem hset hdel",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return r.Pairs.Announce(ctx, []Decision{{Lease: Lease{Request: request("new", scriptPath).ofPair("new")}}})
		}},
	{"finish a firing", "calls leased done message pairs:a pairs:until:a", "zadd pexpire zrem zremrangebyrank hset hdel",
		func(ctx context.Context, r *Redis, lease Lease) error {
			lease.Request, lease.Receipt = lease.Request.ofPair("new"), "a receipt"
			return finish(ctx, r, lease)
		}},
	{"resolve", "calls leased done message pairs:a pairs:until:a", "zadd pexpire zrem hset hdel",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return scripttest.Only(r.Pairs.Resolve(ctx, []Request{request("new", scriptPath).ofPair("open")}))
		}},
	{"finish a resolved", "calls leased done message pairs:a pairs:until:a", "zadd pexpire zrem zremrangebyrank hdel",
		func(ctx context.Context, r *Redis, lease Lease) error {
			lease.Request, lease.slotless, lease.Resolving = lease.Request.ofPair("any"), true, true
			return finish(ctx, r, lease)
		}},
	{"restore a firing", "calls leased done message pairs:a pairs:until:a log log:a log:a.b", "zadd pexpire zrem zremrangebyrank hset hdel",
		func(ctx context.Context, r *Redis, _ Lease) error {
			restored := Lease{Request: request("restored", scriptPath).ofPair("new")}
			return scripttest.Only(r.Restore(ctx, []Admission{{Lease: restored, At: time.Now(), Became: WasDelivered}}, time.Now()))
		}},
	{"extend", "calls leased", "zadd pexpire zrem",
		func(ctx context.Context, r *Redis, lease Lease) error {
			return scripttest.Only(r.Extend(ctx, []Lease{lease}, time.Minute))
		}},
	{"release", "calls leased", "zadd pexpire zrem",
		func(ctx context.Context, r *Redis, lease Lease) error {
			return scripttest.Only(r.Extend(ctx, []Lease{lease}, 0))
		}},
	{"refund", "calls leased done message log log:a log:a.b", "pexpire zrem zremrangebyrank hdel",
		func(ctx context.Context, r *Redis, lease Lease) error {
			return scripttest.Only(r.Refund(ctx, []Lease{lease}))
		}},
	{"restore", "calls leased done message log log:a log:a.b", "zadd pexpire zrem zremrangebyrank",
		func(ctx context.Context, r *Redis, _ Lease) error {
			now := time.Now()
			_, err := r.Restore(ctx, []Admission{
				{Lease: Lease{Request: request("restored", scriptPath)}, At: now.Add(-time.Minute), Became: WasDelivered},
				{Lease: Lease{Request: request("restored too", scriptPath).withCost(2)}, At: now},
			}, now)
			return err
		}},
	{"usage", "calls log log:a log:a.b", "",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return scripttest.Only(r.Readings.Uses(ctx, r.d.settings.Tree.Path(scriptPath)))
		}},
	{"delay", "calls room:a line:a:a", "zadd pexpire zrem",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return delay(ctx, r, postponed(request("new", scriptPath)))
		}},
	{"enter the room", "calls room:a", "zadd pexpire zrem",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return scripttest.Only(r.Queues.EnterRoom(ctx, []Stay{{First: "a", Member: "new", Weight: 2, For: time.Minute}}, 10))
		}},
	{"turn", "calls leased done room:a line:a:a", "",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return scripttest.Only(r.Queues.Turns(ctx, []Request{request("new", scriptPath).inMessage(9)}))
		}},
	{"leave", "calls room:a line:a:a", "zrem zadd",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return r.Queues.Leave(ctx, []Request{request("waits", scriptPath)})
		}},
	{"delay a firing", "calls room:a line:a:a pairs:a pairs:until:a leased", "zadd pexpire zrem hset hdel",
		func(ctx context.Context, r *Redis, _ Lease) error {
			return delay(ctx, r, postponed(request("new", scriptPath).ofPair("under way")))
		}},
	{"refuse a firing", "calls room:a line:a:a pairs:a pairs:until:a", "zadd pexpire zrem hdel",
		func(ctx context.Context, r *Redis, _ Lease) error {
			p := postponed(request("waits", scriptPath).ofPair("waits"))
			p.Longest, p.HasWaited = 0, true
			return delay(ctx, r, p)
		}},
}

func decide(ctx context.Context, r *Redis, requests ...Request) error {
	return scripttest.Only(r.Decide(ctx, requests))
}

func delay(ctx context.Context, r *Redis, p Postponement) error {
	_, _, err := r.Queues.Delay(ctx, p, 10)
	return err
}

// seed leaves an event and a pair in each state, and a pause, so that each kind of key exists.
func seed(ctx context.Context, r *Redis) error {
	firing := Lease{Request: request("firing", scriptPath).ofPair("open"), Receipt: "r"}
	lapsed := Lease{Request: request("lapsed", scriptPath).ofPair("under way")}
	result, err := r.Decide(ctx, []Request{request("leased", scriptPath), request("delivered", scriptPath)})
	if err != nil {
		return err
	}
	pacing.New(pacing.Options{Runner: r.d.runner, Logger: slog.New(slog.DiscardHandler)}).Pause(ctx, "#here", time.Hour)
	client := r.d.runner.Options().Client
	taken := Lease{Request: request("leased", scriptPath), Resolving: true}.pairField()
	return errors.Join(delay(ctx, r, postponed(request("waits", scriptPath).ofPair("waits"))), r.Pairs.Announce(ctx, []Decision{{Lease: lapsed}}),
		finish(ctx, r, firing), finish(ctx, r, result.Decisions[1].Lease),
		client.HSet(ctx, r.d.keys.pairs("a"), taken, "=r").Err(),
		client.ZAdd(ctx, r.d.keys.pairsUntil("a"), redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMicro()), Member: taken}).Err(),
	)
}

// seeded seeds a store and returns the lease of the event that is leased.
func seeded(t *testing.T, r *Redis) Lease {
	t.Helper()
	testkit.NoError(t, seed(t.Context(), r))
	return testkit.Must(seededLease(t.Context(), r))(t)
}

// seededLease returns the lease of the seed, or a lease that was never given.
func seededLease(ctx context.Context, r *Redis) (Lease, error) {
	lease := Lease{Request: request("leased", scriptPath), End: 1}
	err := r.d.runner.Read(ctx, "reading the lease", func(ctx context.Context, client redis.Cmdable) error {
		end, err := client.ZScore(ctx, r.d.keys.leased, lease.Request.ID).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		}
		lease.End = int64(end)
		return err
	})
	return lease, err
}

// trims returns the sets from which an operation removes old members by rank. Other keys lose the fields of these members.
func (o operation) trims() []string {
	if !strings.Contains(o.writes, "zremrangebyrank") {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(o.touches), func(key string) bool { return key == "message" || strings.HasPrefix(key, "pairs:") })
}

func TestScripts(t *testing.T) {
	t.Parallel()
	settings := scriptSettings(t)
	suite := scripttest.Suite{
		Seed: func(ctx context.Context, runner *script.Runner) error { return seed(ctx, NewRedis(runner, settings)) },
		Keys: strings.Fields("calls leased done message pauses log log:a log:a.b pairs:a pairs:until:a room:a line:a:a"),
		SelfTest: func(ctx context.Context, scratch *script.Runner) error {
			return NewRedis(scratch, settings).SelfTest(ctx, pacing.SelfTest)
		},
	}
	for _, o := range operations {
		suite.Operations = append(suite.Operations, scripttest.Operation{
			Name: o.name, Touches: strings.Fields(o.touches), Writes: strings.Fields(o.writes), Trims: o.trims(),
			Call: func(ctx context.Context, runner *script.Runner) error {
				r := NewRedis(runner, settings)
				if !strings.Contains(o.touches, "leased") {
					return o.call(ctx, r, Lease{})
				}
				lease, err := seededLease(ctx, r)
				if err != nil {
					return err
				}
				return o.call(ctx, r, lease)
			},
		})
	}
	suite.Run(t)
}

// TestLongRecordsNeedNoOtherRight has the scripts read long sets, for which they use other commands.
func TestLongRecordsNeedNoOtherRight(t *testing.T) {
	t.Parallel()
	server, _ := startRedis(t)
	client := scripttest.SetUser(t, server, "worker", scripttest.Rights())
	r := newRedis(client, scripttest.UserPrefix, Settings{Tree: newTree(t, "none", "none", ""), Lease: testLease, Retention: testRetention})
	testkit.NoError(t, errors.Join(decide(t.Context(), r, several(200, "first", "a")...), decide(t.Context(), r, several(200, "second", "a")...)))
}

// TestMissingRightToForget decides an event with an expired record, without the right to remove that record.
func TestMissingRightToForget(t *testing.T) {
	t.Parallel()
	server, admin := startRedis(t)
	seeded(t, newRedis(admin, scripttest.UserPrefix, scriptSettings(t)))
	admin.ZAdd(t.Context(), "{rights}:done", redis.Z{Score: 1, Member: "forgotten"})
	before := scripttest.Contents(t, admin)
	client := scripttest.SetUser(t, server, "without-zrem", scripttest.Without(scripttest.Rights(), "zrem"))
	err := decide(t.Context(), newRedis(client, scripttest.UserPrefix, scriptSettings(t)), request("forgotten", scriptPath).withCost(2))
	testkit.Fails(t, "error", err, script.ErrRefused)
	scripttest.WantUnchanged(t, admin, before)
}
