package journal

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestFollow reads what was written shortly before and what is written meanwhile, until the stream is deleted or the reader leaves.
func TestFollow(t *testing.T) {
	t.Parallel()
	conn := testkit.Must(nats.Connect(servertest.StartNATS(t).URL))(t)
	t.Cleanup(conn.Close)
	js := testkit.Must(jetstream.New(conn))(t)
	reader := Reader{JetStream: js, Names: names}
	if _, err := reader.Follow(t.Context(), time.Now()); !errors.Is(err, ErrNoJournal) {
		t.Fatalf("without a stream the error is %v", err)
	}
	testkit.NoError(t, names.Provision(t.Context(), js))
	recorder := NewRecorder(Options{
		Publisher: js, Names: names, Instance: "worker-1", Logger: testkit.NewLog(t).Logger(), Metrics: &kit{},
	})
	record := func(first, n int) {
		recorder.Record("orders", Dropped, "category", n, numbered(first))
		recorder.publish(t.Context())
	}
	record(0, 2)
	ctx, leave := context.WithCancel(testkit.Context(t))
	batches := testkit.Must(reader.Follow(ctx, time.Now().Add(-time.Minute)))(t)
	want := func(ids ...string) {
		t.Helper()
		var got []string
		for _, e := range <-batches {
			got = append(got, e.ID)
		}
		testkit.EqualSlices(t, got, ids, "IDs")
	}
	want("evt-0", "evt-1")
	testkit.Must(js.Publish(t.Context(), "notify-journal.x", []byte("no batch")))(t)
	record(2, 1)
	want("evt-2")
	later := testkit.Must(reader.Follow(ctx, time.Now()))(t)
	record(3, 1)
	want("evt-3")
	testkit.Equal(t, (<-later)[0].ID, "evt-3", "the first that comes later")
	leave()
	for _, followed := range []<-chan []Entry{batches, later} {
		if entries, open := <-followed; open {
			t.Errorf("after the reader has left come %v", entries)
		}
	}
}

// TestSearchUsesOneConsumer reads a long journal: the server takes a bounded number of consumers, and they stay for a while.
func TestSearchUsesOneConsumer(t *testing.T) {
	t.Parallel()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	reader := Reader{JetStream: js, Names: names}
	testkit.NoError(t, names.Provision(t.Context(), js))
	count := func(want int, queries ...Query) {
		t.Helper()
		found := 0
		testkit.Must(reader.Search(testkit.Context(t), queries, func(int, Entry) { found++ }))(t)
		testkit.Equal(t, found, want, "entries that are found")
	}
	count(0, Query{})
	recorder := NewRecorder(Options{
		Publisher: js, Names: names, Instance: "worker-1", Logger: testkit.NewLog(t).Logger(), Metrics: &kit{},
	})
	const batches = 2*fetchBatch + 10
	for i := range batches {
		recorder.Record("orders", Dropped, "category", 1, numbered(i))
		recorder.publish(t.Context())
	}
	count(batches, Query{})
	count(1, Query{ID: "evt-7"})
	count(0, Query{Category: "payments"})
	stream := testkit.Must(js.Stream(t.Context(), names.Stream))(t)
	testkit.AtMost(t, stream.CachedInfo().State.Consumers, 4, "consumers of four readers")
}
