package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var names = Names{Stream: "JOURNAL", Subject: "notify", Age: 24 * time.Hour, MaxBytes: 1 << 20, Replicas: 1}

// storage is a fake of JetStream that keeps the published messages.
type storage struct {
	mu      sync.Mutex
	fails   error
	refused string        // the first level whose messages are too large
	slow    time.Duration // the length of a publish
	entries []Entry
	stored  []string // subjects of the messages
}

func (s *storage) PublishMsg(ctx context.Context, message *nats.Msg, _ ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	select {
	case <-time.After(s.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused != "" && strings.HasSuffix(message.Subject, "."+s.refused) {
		return nil, nats.ErrMaxPayload
	}
	if s.fails != nil {
		return nil, s.fails
	}
	entries, err := decode(message.Header, message.Data, nil)
	s.entries = append(s.entries, entries...)
	s.stored = append(s.stored, message.Subject)
	return &jetstream.PubAck{}, err
}

func (s *storage) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails = err
}

func (s *storage) all() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.entries)
}

// kit is a recorder in a synctest bubble.
type kit struct {
	*Recorder
	storage storage
	log     *testkit.Log
	lost    testkit.Counts
	stop    func()
}

func (k *kit) JournalLost(entries int) { k.lost.Add("lost", entries) }

func start(t *testing.T) *kit { return startWith(t, nil) }

func startWith(t *testing.T, provision func(ctx context.Context, k *kit) error) *kit {
	k := &kit{log: testkit.NewLog(t)}
	o := Options{Publisher: &k.storage, Names: names, Instance: "worker-1", Logger: k.log.Logger(), Metrics: k}
	if provision != nil {
		o.Provision = func(ctx context.Context) error { return provision(ctx, k) }
	}
	k.Recorder = NewRecorder(o)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { k.Run(ctx) })
	k.stop = func() { cancel(); running.Wait() }
	t.Cleanup(k.stop)
	return k
}

// numbered returns entries whose sequences begin at first.
func numbered(first int) func(i int, d Detail) Entry {
	return func(i int, _ Detail) Entry {
		return Entry{ID: fmt.Sprintf("evt-%d", first+i), Sequence: uint64(first + i)}
	}
}

func (k *kit) drop(category, level string, first, n int) {
	k.Record(category, Dropped, level, n, numbered(first))
}

// total counts the events and the single entries among the matching entries.
func total(entries []Entry, matches func(Entry) bool) (events, singles int) {
	for _, e := range entries {
		if matches(e) {
			events += max(1, e.Count)
			if e.Count == 0 {
				singles++
			}
		}
	}
	return events, singles
}

func dropsOf(category string) func(Entry) bool {
	return func(e Entry) bool { return e.Category == category && e.Result == Dropped }
}

func TestEntriesMatchTheRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		stored := time.Date(2026, 11, 22, 9, 14, 2, 113e6, time.UTC)
		k.Record("payments.refunds", Dropped, "category", 1, func(int, Detail) Entry {
			return Entry{
				ID: "evt-4711", Stream: "NOTIFICATIONS", Sequence: 4711, Title: "card\n  declined", Path: "payments", Limit: "10/30m",
				Used: 10, Size: 10, Next: stored.Add(time.Hour), Revision: "1:2", Stored: stored, Decided: stored.Add(time.Millisecond),
			}
		})
		time.Sleep(publishEvery + time.Millisecond)
		testkit.EqualDeeply(t, k.storage.all(), []Entry{{
			ID: "evt-4711", Stream: "NOTIFICATIONS", Sequence: 4711, Category: "payments.refunds", Title: "card declined", Result: Dropped,
			Level: "category", Path: "payments", Limit: "10/30m", Used: 10, Size: 10, Next: stored.Add(time.Hour), Revision: "1:2",
			Stored: stored, Decided: stored.Add(time.Millisecond), Instance: "worker-1",
		}}, "entries")
		testkit.EqualSlices(t, k.storage.stored, []string{"notify-journal.payments"}, "subjects")
	})
}

func TestFloodIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		for batch := range 100 {
			k.drop("payments", "category", batch*1000, 1000)
			k.drop("payments", "global", 1_000_000+batch, 1)
		}
		k.Record("payments", Sent, "", 1, numbered(7))
		k.drop("orders", "category", 0, SinglesPerCategory)
		time.Sleep(publishEvery + time.Millisecond)

		entries := k.storage.all()
		events, singles := total(entries, dropsOf("payments"))
		testkit.Equal(t, events, 100_100, "drops of payments")
		testkit.Equal(t, singles, SinglesPerCategory, "single entries of payments")
		testkit.Equal(t, len(entries), SinglesPerCategory+2+1+SinglesPerCategory, "entries")
		for _, e := range entries {
			if e.Count > 0 && e.Level == "category" {
				testkit.EqualSlices(t, []any{e.ID, e.Sequence, e.LastID, e.LastSequence, e.Count},
					[]any{"evt-100", uint64(100), "evt-99999", uint64(99_999), 99_900}, "counted entry")
			}
		}
		_, singles = total(entries, dropsOf("orders"))
		testkit.Equal(t, singles, SinglesPerCategory, "single entries of orders")

		k.drop("payments", "category", 0, 1)
		time.Sleep(publishEvery)
		testkit.Equal(t, len(k.storage.all()), len(entries)+1, "entries a second later")
	})
}

// TestCountsHaveARange records messages out of order. The counting entry names the first and the last one.
func TestCountsHaveARange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		inFull := 0
		for _, first := range []int{500, 900, 100, 700} {
			k.Record("payments", Dropped, "category", 150, func(i int, d Detail) Entry {
				if d == Full {
					inFull++
				}
				return numbered(first)(i, d)
			})
		}
		time.Sleep(publishEvery + time.Millisecond)
		entries := k.storage.all()
		counted := entries[len(entries)-1]
		testkit.EqualSlices(t, []any{counted.Count, counted.ID, counted.Sequence, counted.LastID, counted.LastSequence},
			[]any{500, "evt-100", uint64(100), "evt-1049", uint64(1049)}, "counted entry")
		testkit.Equal(t, inFull, SinglesPerCategory+2, "full entries")
	})
}

// TestJunkTakesNoNeighboursEntries has a producer use more categories than the bound of kinds.
func TestJunkTakesNoNeighboursEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		const junk = 5 * maxKinds
		for i := range junk {
			k.drop(fmt.Sprintf("junk.c%d", i), "category", 0, 2)
		}
		k.drop("security", "category", 0, 1)
		time.Sleep(publishEvery + time.Millisecond)
		entries := k.storage.all()
		events, singles := total(entries, func(e Entry) bool { return event.IsBelow(e.Category, "junk") })
		testkit.Equal(t, events, 2*junk, "events of junk")
		testkit.Equal(t, singles, singlesPerFirst, "single entries of junk")
		_, singles = total(entries, dropsOf("security"))
		testkit.Equal(t, singles, 1, "single entries of security")
		testkit.AtMost(t, len(entries), singlesPerFirst+maxKinds+1+1, "entries")

		for i := range junk {
			k.drop(fmt.Sprintf("first%d", i), "category", 0, 1)
		}
		time.Sleep(publishEvery)
		events, singles = total(k.storage.all()[len(entries):], func(Entry) bool { return true })
		testkit.Equal(t, events, junk, "events of many first levels")
		testkit.Equal(t, singles, junk, "single entries of many first levels")

		for i := range junk {
			k.drop(fmt.Sprintf("first%d", i), "category", 0, 3)
		}
		before := len(k.storage.all())
		time.Sleep(publishEvery)
		after := k.storage.all()[before:]
		events, singles = total(after, func(Entry) bool { return true })
		testkit.Equal(t, events, 3*junk, "events of many first levels")
		testkit.Equal(t, singles, singlesPerWorker, "single entries of many first levels")
		events, _ = total(after, func(e Entry) bool { return e.Category == "" && e.Below })
		testkit.Check(t, events != 0, "events beyond the bounds: got none, want some in one entry")
	})
}

func TestUnpublishedEntriesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.storage.fail(errors.New("nats: no response"))
		k.drop("payments", "category", 0, 1)
		time.Sleep(10 * publishEvery)
		k.drop("payments", "category", 1, 1)
		k.log.WantCount(t, 1, "cannot write the journal")
		k.storage.fail(nil)
		time.Sleep(publishEvery + time.Millisecond)
		testkit.Equal(t, len(k.storage.all()), 2, "entries")
		k.log.WantCount(t, 1, "writing the journal again")
		testkit.Equal(t, k.lost.Get("lost"), 0, "lost entries")
	})
}

// TestTooLargeBatchIsLost has a batch that the server does not take. It is counted as lost, and the entries of others are written.
func TestTooLargeBatchIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.storage.refused = "evil"
		k.drop("evil", "category", 0, 3)
		k.drop("payments", "category", 0, 1)
		time.Sleep(publishEvery + time.Millisecond)
		results := make(map[Result]int)
		for _, e := range k.storage.all() {
			results[e.Result] += max(1, e.Count)
		}
		testkit.EqualMaps(t, results, map[Result]int{Dropped: 1, Lost: 3}, "entries")
		testkit.Equal(t, k.lost.Get("lost"), 3, "lost entries")
		k.log.WantCount(t, 0, "cannot write the journal")
	})
}

// TestBatchesAreBounded records long entries. No message is much larger than a full batch.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	s := newSecond()
	for i := range 200 {
		s.add(&Entry{ID: strings.Repeat("i", 1000), Sequence: uint64(i), Category: "payments", Result: Dropped})
	}
	testkit.Equal(t, len(s.full), 3, "full batches")
	for _, p := range s.full {
		testkit.AtMost(t, len(p.lines), fullBatch+2000, "bytes of a batch")
	}
}

// TestEndDuringAPublish ends the context while a batch is published. The batch is published again, and the log has no complaint.
func TestEndDuringAPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.storage.slow = StopPatience / 2
		k.drop("payments", "category", 0, 1)
		time.Sleep(publishEvery + k.storage.slow/2)
		k.stop()
		testkit.Equal(t, len(k.storage.all()), 1, "entries")
		k.log.WantCount(t, 0, "the journal")
	})
}

// TestHealth has a worker that cannot write. Its health says since when, what is kept and what is lost; the log says so when entries begin
// to be lost. Later the journal itself says what it lacks.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		begin := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
		record := func(first, n int) {
			for i := range n / SinglesPerCategory {
				k.Record(fmt.Sprintf("c%d.x", i), Sent, "", SinglesPerCategory, func(j int, _ Detail) Entry {
					number := first + i*SinglesPerCategory + j
					return Entry{ID: fmt.Sprint("evt-", number), Decided: begin.Add(time.Duration(number) * time.Millisecond)}
				})
			}
			time.Sleep(publishEvery)
		}
		time.Sleep(time.Millisecond)
		record(0, SinglesPerCategory)
		testkit.Equal(t, k.Health(), Health{}, "health of a worker that writes")
		k.storage.fail(errors.New("nats: no response"))
		const perSecond = 4000
		for second := range 5 {
			record(1000+second*perSecond, perSecond)
		}
		testkit.Equal(t, k.Health(), Health{Error: "nats: no response", Complete: begin.Add(time.Second), Kept: maxUnpublished}, "health before entries are lost")
		k.log.WantCount(t, 0, "lost journal entries")
		record(1000+5*perSecond, perSecond)
		testkit.Equal(t, k.Health(), Health{Error: "nats: no response", Complete: begin.Add(time.Second), Kept: maxUnpublished, Lost: perSecond}, "health")
		testkit.Equal(t, k.lost.Get("lost"), perSecond, "lost entries")
		k.log.WantCount(t, 1, "lost journal entries")
		record(1000+6*perSecond, perSecond)
		k.log.WantCount(t, 1, "lost journal entries") // the log says so once a minute

		k.storage.fail(nil)
		time.Sleep(publishEvery)
		testkit.Equal(t, k.Health(), Health{Lost: 2 * perSecond}, "health of a worker that writes again")
		entries := k.storage.all()
		testkit.EqualDeeply(t, entries[len(entries)-1], Entry{
			Result: Lost, Count: 2 * perSecond, Stored: begin.Add(time.Second), LastStored: begin.Add(time.Second + (2*perSecond-1)*time.Millisecond),
			Decided: begin.Add(time.Second + (2*perSecond-1)*time.Millisecond), Instance: "worker-1",
		}, "the entry about what is lost")
		time.Sleep(10 * publishEvery)
		testkit.Equal(t, len(k.storage.all()), len(entries), "entries later")
		var nobody *Recorder
		nobody.Record("payments", Sent, "", 1, numbered(0))
		testkit.Equal(t, nobody.Health(), Health{}, "health without a journal")
	})
}

// TestEndWithoutAJournal ends a worker that cannot write. What it has kept is counted and logged as lost.
func TestEndWithoutAJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		k.storage.fail(errors.New("nats: no response"))
		k.drop("payments", "category", 0, 7)
		time.Sleep(publishEvery + time.Millisecond)
		k.drop("payments", "category", 7, 5)
		k.stop()
		testkit.Equal(t, k.lost.Get("lost"), 12, "lost entries")
		k.log.WantCount(t, 1, "lost journal entries")
	})
}

// TestRecorderIsUsedByMany records from several goroutines. The end of the recorder publishes all entries.
func TestRecorderIsUsedByMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t)
		var users sync.WaitGroup
		for user := range 8 {
			users.Go(func() {
				for i := range 1000 {
					k.drop("payments", "category", user*1000+i, 3)
				}
			})
		}
		users.Wait()
		k.stop()
		events, _ := total(k.storage.all(), dropsOf("payments"))
		testkit.Equal(t, events, 8*3000, "events")
	})
}

// TestSlowRecreation has the stream deleted where it takes three seconds to create it, as in a cluster with too few servers for its replicas.
func TestSlowRecreation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := startWith(t, func(ctx context.Context, k *kit) error {
			if !await.For(ctx, 3*time.Second) {
				return ctx.Err()
			}
			k.storage.fail(nil)
			return nil
		})
		time.Sleep(3 * time.Second) // the recorder creates the stream at its start
		k.storage.fail(jetstream.ErrNoStreamResponse)
		k.drop("payments", "global", 1, 1)
		time.Sleep(6 * time.Second)
		testkit.Equal(t, len(k.storage.all()), 1, "stored entries")
	})
}

// startServer starts a NATS server without a stream, and makes a reader and a recorder for it.
func startServer(t *testing.T, log *testkit.Log) (js jetstream.JetStream, reader Reader, recorder *Recorder) {
	t.Helper()
	js = servertest.JetStream(t, servertest.StartNATS(t).URL)
	recorder = NewRecorder(Options{
		Publisher: js, Names: names, Instance: "worker-1", Logger: log.Logger(), Metrics: &kit{},
		Provision: func(ctx context.Context) error { return names.Provision(ctx, js) },
	})
	return js, Reader{JetStream: js, Names: names}, recorder
}

func TestMatches(t *testing.T) {
	t.Parallel()
	single := Entry{ID: "g-1/disk", Sequence: 10, Category: "a.b", Title: "Card declined", Result: Dropped}
	counted := Entry{ID: "first", LastID: "last", Sequence: 20, LastSequence: 30, Category: "a.b", Count: 9, Result: Dropped}
	long := strings.Repeat("i", event.MaxIDBytes)
	below := Entry{Category: "a", Below: true, Count: 9, Sequence: 20, LastSequence: 30}
	tests := []struct {
		name  string
		query Query
		entry Entry
		want  bool
	}{
		{"no condition", Query{}, single, true},
		{"ID of a group", Query{IDs: []string{"g-1"}}, single, true},
		{"ID of a part", Query{IDs: []string{"g-1/disk"}}, single, true},
		{"another ID", Query{IDs: []string{"g-11"}}, single, false},
		{"ID behind the category, as ingest has it", Query{IDs: []string{"order-1"}}, Entry{ID: "a.b/order-1", Category: "a.b"}, true},
		{"ID behind another category", Query{IDs: []string{"order-1"}}, Entry{ID: "a.c/order-1", Category: "a.b"}, false},
		{"long ID behind the category", Query{IDs: []string{long}}, Entry{ID: event.OverHTTP("a.b", long), Category: "a.b"}, true},
		{"long ID behind another category", Query{IDs: []string{long}}, Entry{ID: event.OverHTTP("a.c", long), Category: "a.b"}, false},
		{"first of those counted", Query{IDs: []string{"first"}}, counted, true},
		{"last of those counted", Query{IDs: []string{"last"}}, counted, true},
		{"sequence", Query{Sequence: 10}, single, true},
		{"another sequence", Query{Sequence: 11}, single, false},
		{"sequence within those counted", Query{Sequence: 25}, counted, true},
		{"sequence outside those counted", Query{Sequence: 31}, counted, false},
		{"category", Query{Category: "a.b"}, single, true},
		{"parent category", Query{Category: "a"}, single, true},
		{"a name that begins alike", Query{Category: "a.bc"}, single, false},
		{"category below those counted", Query{Category: "a.c"}, below, true},
		{"another first level", Query{Category: "b"}, below, false},
		{"part of the title", Query{Title: "DECL"}, single, true},
		{"another title", Query{Title: "refund"}, single, false},
		{"any title of counted events", Query{Title: "refund"}, counted, true},
	}
	for _, test := range tests {
		testkit.Equal(t, test.query.Matches(&test.entry), test.want, "%s", test.name)
	}
}

// TestRealStream writes and reads a stream, and deletes it meanwhile.
func TestRealStream(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	js, reader, recorder := startServer(t, log)
	_, err := reader.Search(t.Context(), []Query{{}}, nil)
	testkit.Fails(t, "error without a stream", err, ErrNoJournal)

	begin := time.Now()
	record := func(category string, first, n int) {
		recorder.Record(category, Dropped, "category", n, func(i int, d Detail) Entry {
			e := numbered(first)(i, d)
			e.Decided = begin.Add(time.Duration(first+i) * time.Second)
			return e
		})
		recorder.publish(t.Context())
	}
	record("payments.refunds", 0, 1000)
	record("orders", 1000, 1)
	wantIDs := func(q Query, want ...string) {
		t.Helper()
		ids := make([]string, 0)
		read := testkit.Must(reader.Search(t.Context(), []Query{{IDs: []string{"none"}}, q}, func(query int, e Entry) {
			testkit.Equal(t, query, 1, "query that %s matches", e.ID)
			ids = append(ids, e.ID)
		}))(t)
		testkit.Equal(t, read[1].Unreadable, 0, "unreadable messages")
		testkit.EqualSlices(t, ids, want, "IDs found")
	}
	wantIDs(Query{IDs: []string{"none", "evt-42"}}, "evt-42")
	wantIDs(Query{Sequence: 500}, "evt-100")
	wantIDs(Query{Category: "orders"}, "evt-1000")
	wantIDs(Query{Category: "payments", Title: "x"}, "evt-100") // the titles of counted events are unknown
	wantIDs(Query{Since: begin.Add(time.Hour)})
	read := testkit.Must(reader.Search(t.Context(), []Query{{IDs: []string{"evt-500"}}}, func(_ int, e Entry) { t.Errorf("got %+v, want nothing", e) }))(t)[0]
	testkit.Equal(t, read.Counted, 900, "counted events")
	age := time.Since(read.Begins)
	testkit.Check(t, age >= 0 && age <= time.Since(begin), "begin of the journal: got %v, want a time since %v", read.Begins, begin)
	for _, q := range []Query{{Category: "orders"}, {Category: "nothing"}, {Since: time.Now().Add(time.Hour)}} {
		filtered := testkit.Must(reader.Search(t.Context(), []Query{q}, func(int, Entry) {}))(t)[0]
		testkit.Equal(t, filtered.Begins, read.Begins, "begin of the journal for %+v", q)
	}
	unreadable := nats.NewMsg("notify-journal.x")
	trusted.Mark(unreadable.Header)
	testkit.Must(js.PublishMsg(t.Context(), unreadable))(t)
	forged := batchOf(t, "forged")
	forged.Header = nil
	testkit.Must(js.PublishMsg(t.Context(), forged))(t)
	read = testkit.Must(reader.Search(t.Context(), []Query{{}}, func(_ int, e Entry) { testkit.Equal(t, e.ID == "forged", false, "a forged entry") }))(t)[0]
	testkit.Equal(t, read.Unreadable, 1, "unreadable messages")
	testkit.Equal(t, read.Forged, 1, "forged messages")

	recorder.lost = Entry{Result: Lost, Count: 9, Stored: begin, LastStored: begin.Add(time.Second)}
	recorder.publish(t.Context())
	read = testkit.Must(reader.Search(t.Context(), []Query{{IDs: []string{"none"}}}, func(_ int, e Entry) { t.Errorf("got %+v, want nothing", e) }))(t)[0]
	testkit.Check(t, len(read.Lost) == 1 && read.Lost[0].Count == 9 && read.Lost[0].Stored.Equal(begin),
		"what the journal lacks: got %+v, want 9 entries", read.Lost)

	removed := time.Now()
	testkit.NoError(t, js.DeleteStream(t.Context(), names.Stream))
	record("orders", 2000, 1)
	wantIDs(Query{}, "evt-2000")
	made := testkit.Must(js.Stream(t.Context(), names.Stream))(t).CachedInfo().Created
	testkit.Between(t, made.Sub(removed), replicas.DeletionTime, time.Minute, "time after which the stream is recreated")
	log.WantCount(t, 0, "cannot write the journal")
}

// TestTooLargeForTheStream has a stream with a bound for one message. A batch above it is lost, and later batches are written.
func TestTooLargeForTheStream(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	js, reader, recorder := startServer(t, log)
	config := names.Config()
	config.MaxMsgSize = 1000
	testkit.Must(js.CreateStream(t.Context(), config))(t)
	const large = 50
	recorder.Record("evil", Dropped, "category", large, func(int, Detail) Entry { return Entry{ID: rand.Text() + rand.Text()} })
	recorder.publish(t.Context())
	recorder.Record("orders", Dropped, "category", 1, numbered(1))
	recorder.publish(t.Context())
	var ids []string
	read := testkit.Must(reader.Search(t.Context(), []Query{{}}, func(_ int, e Entry) { ids = append(ids, e.ID) }))(t)[0]
	testkit.EqualSlices(t, ids, []string{"evt-1"}, "entries")
	testkit.Check(t, len(read.Lost) == 1 && read.Lost[0].Count == large, "what the journal lacks: got %+v, want %d entries", read.Lost, large)
	log.WantCount(t, 0, "cannot write the journal")
}

// batchOf is a message with one entry, as a worker writes it.
func batchOf(t *testing.T, id string) *nats.Msg {
	t.Helper()
	s := newSecond()
	s.add(&Entry{ID: id, Category: "orders", Result: Dropped})
	return newMessage(names.SubjectOf("orders"), "worker", id, s.piles["orders"].lines)
}
