package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/fleet"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/room"
)

// Options selects a deployment and the connections to it.
type Options struct {
	Conn       *nats.Conn
	Deployment string // see fleet.Options
	Names      stream.Names
	Overrides  overrides.Options // the bucket of live limits, read if no worker answers; Collect never creates it

	// RedisInfo returns the sections of Redis' INFO. nil: Collect does not ask Redis.
	RedisInfo func(ctx context.Context) (map[string]map[string]string, error)
}

// partTimeout bounds each part. A forbidden request runs into it.
const partTimeout = 2 * time.Second

type collecting struct {
	o  Options
	js jetstream.JetStream

	mu     sync.Mutex
	status Status
	queues map[string]int64 // by room.Token
}

// Workers returns the reports of the workers of a deployment, ordered by name, and the errors of workers that could not report.
func Workers(ctx context.Context, conn *nats.Conn, deployment string) ([]Report, error) {
	answers, failed := fleet.Ask(ctx, conn, deployment)
	var reports []Report
	for _, answer := range answers {
		var report Report
		if err := json.Unmarshal(answer, &report); err != nil {
			failed = errors.Join(failed, fmt.Errorf("reading a worker's report: %w", err))
			continue
		}
		reports = append(reports, report)
	}
	slices.SortStableFunc(reports, func(a, b Report) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.Started.Compare(b.Started), strings.Compare(a.Instance, b.Instance))
	})
	return reports, failed
}

// Collect asks all parts of a deployment concurrently. It changes nothing.
func Collect(ctx context.Context, o Options) (Status, error) {
	js, err := jetstream.New(o.Conn, jetstream.WithDefaultTimeout(partTimeout))
	if err != nil {
		return Status{}, fmt.Errorf("using jetstream: %w", err)
	}
	o.Overrides.Provision = false // read only
	c := &collecting{o: o, js: js, status: Status{At: time.Now().UTC()}}
	var parts sync.WaitGroup
	for _, part := range []func(context.Context){c.askWorkers, c.askBacklog, c.askDeadLetters, c.askRedis} {
		parts.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, partTimeout)
			defer cancel()
			part(ctx)
		})
	}
	parts.Wait()
	if ctx.Err() != nil {
		return Status{}, context.Cause(ctx)
	}
	if c.queues != nil {
		c.addQueues()
	}
	slices.Sort(c.status.Unknown)
	return c.status, nil
}

// UnnamedChannel is the reason of events in [Backlog.InRoom] that wait for channels that no worker's settings name.
const UnnamedChannel = "a channel that no worker names"

// addQueues adds how many events wait for each channel, and for channels that are not listed.
func (c *collecting) addQueues() {
	s := &c.status
	named := int64(0)
	for i := range s.Channels {
		queue := c.queues[room.Token(s.Channels[i].Name)]
		s.Channels[i].Queue = &queue
		named += queue
	}
	if waiting := s.Backlog.InRoom[string(room.Channel)]; waiting > named && len(s.Workers) > 0 && len(s.Omitted) == 0 {
		s.Backlog.InRoom[string(room.Channel)], s.Backlog.InRoom[UnnamedChannel] = named, waiting-named
	}
}

func (c *collecting) set(change func(*Status)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.status)
}

func (c *collecting) unknown(what string, err error) {
	c.set(func(s *Status) { s.Unknown = append(s.Unknown, fmt.Sprintf("%s: %v", what, err)) })
}

func (c *collecting) askWorkers(ctx context.Context) {
	reports, err := Workers(ctx, c.o.Conn, c.o.Deployment)
	if err == nil && len(reports) == 0 {
		err = errors.New("none answers")
	}
	if err != nil {
		c.unknown("workers", err)
	}
	if len(reports) == 0 {
		c.askOverrides(ctx)
		return
	}
	c.set(func(s *Status) { s.merge(reports) })
}

// serverName returns the name of the connected NATS server. A server without a configured name calls itself by its ID of 56 letters, which
// nobody knows: then serverName returns its address.
func serverName(conn *nats.Conn) string {
	if name := conn.ConnectedServerName(); name != conn.ConnectedServerId() {
		return name
	}
	return conn.ConnectedAddr()
}

func (c *collecting) askBacklog(ctx context.Context) {
	backlog, err := c.o.Names.Backlog(ctx, c.js)
	if err != nil {
		c.unknown(BacklogPart, err)
	}
	conn := c.o.Conn
	c.set(func(s *Status) {
		s.NATS.Server, s.NATS.Version, s.NATS.Cluster = serverName(conn), conn.ConnectedServerVersion(), conn.ConnectedClusterName()
		c.queues = backlog.Queues
		s.Backlog.Waiting, s.Backlog.Unacked, s.Backlog.InRoom = backlog.Waiting, backlog.Unacked, backlog.InRoom
		s.Backlog.Paused = backlog.Paused
		if backlog.Room != nil {
			s.NATS.Bytes += int64(backlog.Room.State.Bytes) //nolint:gosec // bytes on a disk
		}
		stream := backlog.Stream
		if stream == nil {
			return
		}
		s.Backlog.Stream, s.Backlog.Bytes = int64(stream.State.Msgs), int64(stream.State.Bytes) //nolint:gosec // a count and bytes on a disk
		s.Backlog.Capacity = max(0, stream.Config.MaxBytes)
		s.NATS.Bytes += s.Backlog.Bytes
		s.NATS.Replicas = stream.Config.Replicas
		if stream.Cluster != nil {
			for _, replica := range stream.Cluster.Replicas {
				if !replica.Current {
					s.NATS.Lagging++
				}
			}
		}
	})
}

func (c *collecting) askDeadLetters(ctx context.Context) {
	stream, counts, err := deadletters.Counts(ctx, c.js, c.o.Names)
	if err != nil {
		c.unknown(DeadLettersPart, err)
		return
	}
	c.set(func(s *Status) {
		s.NATS.Bytes += int64(stream.State.Bytes) //nolint:gosec // bytes on a disk
		for _, reason := range slices.Sorted(maps.Keys(counts)) {
			s.DeadLetters = append(s.DeadLetters, DeadLetter{Reason: reason, Count: counts[reason]})
		}
	})
}

func (c *collecting) askRedis(ctx context.Context) {
	if c.o.RedisInfo == nil {
		return
	}
	info, err := c.o.RedisInfo(ctx)
	if err != nil {
		c.unknown("redis", err)
		return
	}
	number := func(section, key string) int64 {
		n, _ := strconv.ParseInt(info[section][key], 10, 64)
		return n
	}
	role := info["Replication"]["role"]
	switch role { // in Redis' own words
	case "master":
		role = "primary"
	case "slave":
		role = "replica"
	}
	c.set(func(s *Status) {
		s.Redis.Role, s.Redis.Version = role, info["Server"]["redis_version"]
		if valkey := info["Server"]["valkey_version"]; valkey != "" { // the version of Redis is that of which it has the features
			s.Redis.Version = "valkey " + valkey
		}
		s.Redis.Replicas = int(number("Replication", "connected_slaves"))
		s.Redis.Memory, s.Redis.MaxMemory = number("Memory", "used_memory"), number("Memory", "maxmemory")
	})
}

// askOverrides reads the bucket of live limits when no worker answers.
func (c *collecting) askOverrides(ctx context.Context) {
	bucket, err := overrides.Open(ctx, c.js, c.o.Overrides)
	if errors.Is(err, overrides.ErrNoBucket) {
		return
	}
	var found overrides.Snapshot
	if err == nil {
		found, err = bucket.Load(ctx)
	}
	if err != nil {
		c.unknown("live limits", err)
		return
	}
	c.set(func(s *Status) { s.Changes, s.Mutes = Changes(found), Mutes(found) })
}

// Mutes returns the mutes of a bucket that workers apply.
func Mutes(s overrides.Snapshot) []Mute {
	var mutes []Mute
	for _, c := range s.Mutes {
		if c.Lost || c.Name.Kind == overrides.Mute && c.Until.IsZero() { // workers ignore it
			continue
		}
		mutes = append(mutes, Mute{
			Path: c.Name.MutedPath(), Reason: c.Value, By: c.By, Except: c.Muting.Spare, Every: c.Muting.Every, At: c.Changed.UTC(), Until: c.Until,
		})
	}
	return mutes
}

// Changes returns the overrides of a bucket.
func Changes(s overrides.Snapshot) []Change {
	var changes []Change
	for _, entry := range s.Entries {
		if entry.Lost {
			continue
		}
		changes = append(changes, Change{
			Path: entry.Name.Pattern, Shadow: entry.Name.Shadow, Limit: entry.Value, By: entry.By, At: entry.Changed.UTC(), Until: entry.Until,
		})
	}
	return changes
}
