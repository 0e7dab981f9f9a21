package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/script/scripttest"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// waitingOperations are as operations, of the scripts that have events wait.
var waitingOperations = []operation{
	{
		"delay", []string{"calls", "room:a", "line:a:a"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, _, err := r.Delay(ctx, postponed(request("new", scriptPath)), 10)
			return err
		},
	},
	{
		"enter the room", []string{"calls", "room:a"}, []string{"zadd", "pexpire", "zrem"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.EnterRoom(ctx, []Stay{{First: "a", Member: "new", Weight: 2, For: time.Minute}}, 10)
			return err
		},
	},
	{
		"turn", []string{"calls", "leased", "room:a", "line:a:a"}, nil,
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, err := r.turns(ctx, []Request{request("new", scriptPath).inMessage(9)})
			return err
		},
	},
	{
		"leave", []string{"calls", "room:a", "line:a:a"}, []string{"zrem", "zadd"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			return r.leave(ctx, []Request{request("waits", scriptPath)})
		},
	},
	{
		"delay a firing", []string{"calls", "room:a", "line:a:a", "pairs:a", "pairs:until:a", "leased"},
		[]string{"zadd", "pexpire", "zrem", "hset", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			_, _, err := r.Delay(ctx, postponed(request("new", scriptPath).ofPair("under way")), 10)
			return err
		},
	},
	{
		"refuse a firing", []string{"calls", "room:a", "line:a:a", "pairs:a", "pairs:until:a"}, []string{"zadd", "pexpire", "zrem", "hdel"},
		func(ctx context.Context, r *Redis, _ Lease) error {
			p := postponed(request("waits", scriptPath).ofPair("waits"))
			p.Longest, p.HasWaited = 0, true
			_, _, err := r.Delay(ctx, p, 10)
			return err
		},
	},
}

// seedWaiting leaves every kind of key that those scripts have.
func seedWaiting(t *testing.T, r *Redis) {
	t.Helper()
	lapsed := Lease{Request: request("lapsed", scriptPath).ofPair("under way")}
	_, _, delayed := r.Delay(t.Context(), postponed(request("waits", scriptPath).ofPair("waits")), 10)
	testkit.NoError(t, errors.Join(r.announce(t.Context(), []Decision{{Lease: lapsed}}), delayed))
}

func TestKeysOfTheWrongTypeWhileEventsWait(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	client := newClient(t, redis.Options{Addr: server.Addr})
	for _, o := range waitingOperations {
		for _, kind := range []string{"calls", "leased", "room:a", "line:a:a", "pairs:a", "pairs:until:a"} {
			t.Run(o.name+"/"+kind, func(t *testing.T) {
				client.FlushDB(t.Context())
				r := newRedis(client, "wrong", scriptSettings(t))
				lease := seed(t, r)
				seedWaiting(t, r)
				client.Del(t.Context(), "{wrong}:"+kind)
				client.RPush(t.Context(), "{wrong}:"+kind, "a list")
				client.PExpire(t.Context(), "{wrong}:"+kind, time.Hour)
				before := scripttest.Contents(t, client)
				err := o.call(t.Context(), r, lease)
				scripttest.WantExpiries(t, client)
				if !slices.Contains(o.touches, kind) {
					if err != nil {
						t.Fatalf("it does not need that key: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) || !strings.Contains(fmt.Sprint(err), "WRONGTYPE") {
					t.Fatalf("error %v, want %v of a wrong type", err, script.ErrRefused)
				}
				scripttest.WantUnchanged(t, client, before)
			})
		}
	}
}

func TestRightsWhileEventsWait(t *testing.T) {
	t.Parallel()
	server := servertest.StartRedis(t)
	admin := newClient(t, redis.Options{Addr: server.Addr})
	settings := scriptSettings(t)
	for _, command := range []string{"none", "zadd", "pexpire", "zrem", "zremrangebyrank", "hset", "hdel"} {
		client := scripttest.SetUser(t, server, "without-"+command, scripttest.Without(scripttest.Rights(), command))
		for _, o := range waitingOperations {
			t.Run(command+"/"+o.name, func(t *testing.T) {
				admin.FlushDB(t.Context())
				r := newRedis(admin, "rights", settings)
				lease := seed(t, r)
				seedWaiting(t, r)
				server.CLI("SCRIPT", "FLUSH", "SYNC")
				if command == "zremrangebyrank" && slices.Contains(o.writes, command) {
					plantStale(t, admin, o.touches)
				}
				before := scripttest.Contents(t, admin)
				err := o.call(t.Context(), newRedis(client, "rights", settings), lease)
				for _, key := range scripttest.WantExpiries(t, admin) {
					if !strings.HasPrefix(key, "{rights}:") {
						t.Errorf("key %q is not of this deployment", key)
					}
				}
				if !slices.Contains(o.writes, command) {
					if err != nil {
						t.Fatalf("it does not need that command: %v", err)
					}
					return
				}
				if !errors.Is(err, script.ErrRefused) {
					t.Fatalf("error %v, want %v", err, script.ErrRefused)
				}
				scripttest.WantUnchanged(t, admin, before)
			})
		}
	}
}
