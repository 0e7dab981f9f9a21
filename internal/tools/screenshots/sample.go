package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/status"
	"github.com/seed-4578ace9/notifier/internal/why"
)

// sample is a made-up deployment in the middle of a storm.
type sample struct{ now time.Time }

// Status says what the deployment does.
func (s sample) Status(context.Context) (status.Status, error) {
	slot, later := s.now.Add(4*time.Minute), s.now.Add(17*time.Minute)
	all := status.Status{
		At: s.now, Revision: "1:14",
		Backlog: status.Backlog{Waiting: 212, Unacked: 24, InRoom: map[string]int64{"slot": 18, "channel": 6}, Stream: 236, Bytes: 190_000, Capacity: 1 << 30},
		Redis:   status.Redis{Role: "primary", Version: "7.2.4", Replicas: 1, Memory: 3_400_000, SlowestCall: 4 * time.Millisecond},
		NATS:    status.NATS{Server: "nats-1", Version: "2.12.1", Cluster: "main", Replicas: 3, Bytes: 41_000_000},
		Limits: []status.Limit{
			{Use: limits.Use{Level: "global", Limit: "100/30m", Used: 71, Size: 100}},
			{Use: limits.Use{Level: "category", Path: "payments", Limit: "10/30m", Used: 10, Size: 10, Next: &slot}, PerMinute: 318},
			{Use: limits.Use{Level: "payments.*", Path: "payments.refunds", Limit: "5/30m", Used: 5, Size: 5, Next: &later}, PerMinute: 41},
			{Use: limits.Use{Level: "payments.*", Path: "payments.cards", Limit: "5/30m", Used: 4, Size: 5}},
			{Use: limits.Use{Level: "category", Path: "search", Limit: "10/30m", Used: 8, Size: 10}},
			{Use: limits.Use{Level: "category", Path: "infra", Limit: "10/30m", Used: 3, Size: 10}},
		},
		Suppressed: []status.Suppressed{
			{Category: "payments", Level: "category", Count: 1204, Titles: []string{"card declined by the bank", "3-D Secure timed out"}, Since: s.now.Add(-22 * time.Minute), Until: slot},
			{Category: "payments.refunds", Level: "payments.*", Count: 87, Titles: []string{"refund is overdue"}, Since: s.now.Add(-9 * time.Minute), Until: later},
		},
		Channels: []status.Channel{
			{Name: "#payments", PausedUntil: s.now.Add(30 * time.Second), Queue: new(int64(6)), PerMinute: 48, Rate: 1, LastDigest: s.now.Add(-8 * time.Minute)},
			{Name: "#infra", Queue: new(int64(0)), PerMinute: 3, Rate: 1},
		},
		Changes:     []status.Change{{Path: "debug", Limit: "0/1h", By: "alice", At: s.now.Add(-20 * time.Minute), Until: s.now.Add(40 * time.Minute)}},
		DeadLetters: []status.DeadLetter{{Reason: "bad_json", Count: 2}},
	}
	for i, name := range []string{"notifier-7f9c-a", "notifier-7f9c-b", "notifier-7f9c-c"} {
		all.Workers = append(all.Workers, status.Worker{
			Instance: name, Name: name, Version: "v1.4.0", Started: s.now.Add(-time.Duration(3+i) * time.Hour), Up: time.Duration(3+i) * time.Hour, Ready: true, InHand: 8, Revision: "1:14",
			PerMinute: status.Rates{Sent: int64(16 + i), Dropped: int64(118 + 7*i), Delayed: 3},
		})
	}
	for i := range 60 {
		storm := max(0, i-35)
		all.Minutes = append(all.Minutes, status.Minute{
			At:   s.now.Add(time.Duration(i-59) * time.Minute),
			Sent: int64(30 + 17*i%13 + storm/2), Dropped: int64(5 + i%4 + storm*15 + 31*i%17), Delayed: int64(3 + i%5 + storm/3),
		})
	}
	return all, nil
}

// Why is not asked for a picture.
func (s sample) Why(context.Context, string, why.Question) why.Answer { return why.Answer{} }

// Decisions hands over a few, once.
func (s sample) Decisions(ctx context.Context, _ time.Time) (<-chan journal.Batch, error) {
	var entries []journal.Entry
	for i, e := range []journal.Entry{
		{Category: "infra.disk", Title: "disk 90 % full on db-3", Result: journal.Sent, Channel: "#infra"},
		{Category: "payments.cards", Title: "card declined by the bank", Result: journal.Dropped, Level: "category", Limit: "10/30m", Used: 10, Size: 10},
		{Category: "search.index", Title: "index is 4 minutes behind", Result: journal.Sent, Channel: "#search"},
		{Category: "payments.refunds", Title: "refund is overdue", Result: journal.Waiting, Reason: "slot", Level: "payments.*", Limit: "5/30m"},
	} {
		e.ID, e.Decided = fmt.Sprintf("evt-%d", 4711+i), s.now.Add(time.Duration(i-4)*1500*time.Millisecond)
		entries = append(entries, e)
	}
	decisions := make(chan journal.Batch)
	go func() {
		defer close(decisions)
		select {
		case decisions <- journal.Batch{Entries: entries, Stored: s.now}:
		case <-ctx.Done():
			return
		}
		<-ctx.Done()
	}()
	return decisions, nil
}
