package journal

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// TestFollow reads recent entries, and then new ones until the reader leaves.
func TestFollow(t *testing.T) {
	t.Parallel()
	js, reader, recorder := startServer(t, testkit.NewLog(t))
	_, err := reader.Follow(t.Context(), time.Now())
	testkit.Fails(t, "error without a stream", err, ErrNoJournal)
	testkit.NoError(t, names.Provision(t.Context(), js))
	record := func(first, n int) {
		recorder.Record("orders", Dropped, "category", n, numbered(first))
		recorder.publish(t.Context())
	}
	record(0, 2)
	ctx, leave := context.WithCancel(testkit.Context(t))
	batches := testkit.Must(reader.Follow(ctx, time.Now().Add(-time.Minute)))(t)
	var last time.Time // when the last batch was stored
	want := func(ids ...string) {
		t.Helper()
		var got []string
		batch := <-batches
		for _, e := range batch.Entries {
			got = append(got, e.ID)
		}
		testkit.EqualSlices(t, got, ids, "IDs")
		testkit.Check(t, batch.Stored.After(last), "got a batch that was stored at %v, want it after the one of %v", batch.Stored, last)
		last = batch.Stored
	}
	want("evt-0", "evt-1")
	testkit.Must(js.Publish(t.Context(), "notify-journal.x", batchOf(t, "forged").Data))(t)
	unreadable := nats.NewMsg("notify-journal.x")
	trusted.Mark(unreadable.Header)
	testkit.Must(js.PublishMsg(t.Context(), unreadable))(t)
	record(2, 1)
	want("evt-2")
	later := testkit.Must(reader.Follow(ctx, time.Now()))(t)
	behind := testkit.Must(reader.Follow(ctx, last.Add(1)))(t)
	record(3, 1)
	want("evt-3")
	testkit.Equal(t, (<-later).Entries[0].ID, "evt-3", "first entry of a later reader")
	testkit.Equal(t, (<-behind).Entries[0].ID, "evt-3", "first entry of a reader that goes on behind a batch")
	leave()
	for _, followed := range []<-chan Batch{batches, later, behind} {
		entries, open := <-followed
		testkit.Check(t, !open, "entries after the reader has left: got %v, want none", entries)
	}
}

// TestSearchUsesOneConsumer reads a long journal several times. Each search leaves one consumer behind for a while.
func TestSearchUsesOneConsumer(t *testing.T) {
	t.Parallel()
	js, reader, recorder := startServer(t, testkit.NewLog(t))
	testkit.NoError(t, names.Provision(t.Context(), js))
	count := func(want int, queries ...Query) {
		t.Helper()
		found := 0
		testkit.Must(reader.Search(testkit.Context(t), queries, func(int, Entry) { found++ }))(t)
		testkit.Equal(t, found, want, "found entries")
	}
	count(0, Query{})
	const batches = 2*fetchBatch + 10
	for i := range batches {
		recorder.Record("orders", Dropped, "category", 1, numbered(i))
		recorder.publish(t.Context())
	}
	count(batches, Query{})
	count(1, Query{IDs: []string{"evt-7"}})
	count(0, Query{Category: "payments"})
	stream := testkit.Must(js.Stream(t.Context(), names.Stream))(t)
	testkit.AtMost(t, stream.CachedInfo().State.Consumers, 4, "consumers of four readers")
}
