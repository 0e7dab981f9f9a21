package status

import (
	"context"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestQueuesOfUnnamedChannels counts events that wait for channels that no worker names apart, unless a report may lack the channel.
func TestQueuesOfUnnamedChannels(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		workers []Worker
		omitted []string
		want    map[string]int64
	}{
		"a worker":             {workers: []Worker{{}}, want: map[string]int64{"channel": 2, UnnamedChannel: 3}},
		"no worker":            {want: map[string]int64{"channel": 5}},
		"an incomplete report": {workers: []Worker{{}}, omitted: []string{"12 of 512 channels"}, want: map[string]int64{"channel": 5}},
	} {
		c := &collecting{
			status: Status{
				Workers: test.workers, Omitted: test.omitted, Channels: []Channel{{Name: "#a"}, {Name: "#b"}}, Backlog: Backlog{InRoom: map[string]int64{"channel": 5}},
			},
			queues: map[string]int64{room.Token("#a"): 2, room.Token("#earlier"): 3},
		}
		c.addQueues()
		testkit.EqualMaps(t, c.status.Backlog.InRoom, test.want, "%s: events in the room", name)
		testkit.Equal(t, c.status.Channels[0].Queued(), 2, "%s: queue of a channel", name)
		testkit.Equal(t, c.status.Channels[1].Queue != nil, true, "%s: an empty queue is known", name)
	}
}

// Redis calls a replica by another name than this project does, and Valkey names a version of Redis beside its own.
func TestWordsOfRedis(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ role, valkey, want string }{
		{"master", "", "primary 7.2.4"}, {"slave", "", "replica 7.2.4"}, {"master", "8.0.1", "primary valkey 8.0.1"}, {"", "", " 7.2.4"},
	} {
		c := &collecting{o: Options{RedisInfo: func(context.Context) (map[string]map[string]string, error) {
			return map[string]map[string]string{
				"Replication": {"role": test.role}, "Server": {"redis_version": "7.2.4", "valkey_version": test.valkey},
			}, nil
		}}}
		c.askRedis(t.Context())
		testkit.Equal(t, c.status.Redis.Role+" "+c.status.Redis.Version, test.want, "server with the role %q", test.role)
	}
}
