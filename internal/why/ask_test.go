package why

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// at is a time on the day of the tests.
func at(clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", "2026-11-22 "+clock)
	if err != nil {
		panic(err)
	}
	return t
}

// known holds the data of the sources.
type known struct {
	entries  []journal.Entry
	record   store.Explanation
	recorded string // the identity of the record; "": any
	pending  []Pending
	letters  []Letter
	failing  []Writer
	lost     []journal.Entry // that the journal lacks
	delays   string          // the result of Denied
	fails    error           // of each source
}

func (k known) sources() Sources {
	return Sources{
		Entries: func(_ context.Context, queries []journal.Query, take func(int, journal.Entry)) ([]journal.Read, error) {
			reads := make([]journal.Read, len(queries))
			for i, q := range queries {
				reads[i].Begins, reads[i].Lost = at("08:00:00"), k.lost
				for _, e := range k.entries {
					if q.Matches(&e) {
						take(i, e)
					} else {
						reads[i].Counted += e.Count
					}
				}
			}
			return reads, k.fails
		},
		Explain: func(_ context.Context, request store.Request) (store.Explanation, error) {
			if k.recorded != "" && request.ID != k.recorded {
				return store.Explanation{At: k.record.At}, k.fails
			}
			return k.record, k.fails
		},
		Pending: func(_ context.Context, _ uint64, take func(Pending)) error {
			for _, p := range k.pending {
				take(p)
			}
			return k.fails
		},
		Letters: func(context.Context) ([]Letter, error) { return k.letters, k.fails },
		Policy: Policy{
			Denied: func(string) string { return k.delays },
			Expiry: func(category string) string { return "the age of " + category },

			Categories: func(context.Context) []string { return []string{"search", "payments.refunds", "search"} },
		},
		Now:     func() time.Time { return at("10:00:00") },
		Workers: Workers{Failing: k.failing, Paused: map[string]time.Time{"#ops": {}, "#payments": at("10:05:00")}},
	}
}

func (k known) ask(t *testing.T, q Question) Answer {
	t.Helper()
	return Ask(t.Context(), k.sources(), q)[0]
}

// refund is an entry of the event evt-4711.
func refund(result journal.Result, change func(*journal.Entry)) journal.Entry {
	e := journal.Entry{
		ID: "evt-4711", Stream: "NOTIFICATIONS", Sequence: 4711, Category: "payments.refunds", Title: "card declined",
		Stored: at("09:14:02"), Decided: at("09:14:02").Add(119 * time.Millisecond), Result: result, Channel: "#payments",
		Instance: "worker-1",
	}
	if change != nil {
		change(&e)
	}
	return e
}

// asLast is an entry about twelve events, of which evt-4711 is the last. All details are of the first.
func asLast(result journal.Result, change func(*journal.Entry)) journal.Entry {
	e := refund(result, change)
	e.ID, e.Sequence, e.Count, e.LastID, e.LastSequence, e.LastStored = "another", 4700, 12, e.ID, e.Sequence, e.Stored
	return e
}

func denied(e *journal.Entry) {
	e.Level, e.Limit, e.Used, e.Size, e.Next, e.Round = "category", "10/30m", 10, 10, at("09:31:40"), 3
}

// ofCategory is an explanation with the used slots of a category.
func ofCategory(used int64, wait time.Duration) store.Explanation {
	limit := limits.Limit{Count: 10, Window: 30 * time.Minute}
	use := limits.UseOf(limits.Node{Path: "payments", Level: "category"}, limit, used)
	known := store.Explanation{At: at("10:00:00"), Limits: []limits.Use{use}}
	if wait > 0 {
		next := known.At.Add(wait)
		known.Limits[0].Next, known.Denial = &next, &known.Limits[0]
	}
	return known
}

// stuck is evt-4711 in the producers' stream.
var stuck = Pending{
	ID: "evt-4711", Identity: "payments.refunds evt-4711", Category: "payments.refunds", Sequence: 4711, Stored: at("09:59:00"), Since: at("09:59:00"),
}

// inRoom is evt-4711 in the room.
func inRoom(reason string) Pending {
	p := stuck
	p.Stored, p.Reason, p.Since = at("09:14:02"), reason, at("09:20:00")
	if reason == "pair" || reason == "steady" {
		p.Due = at("10:05:00")
	}
	if reason == "channel" {
		p.Channel = room.Token("#payments")
	}
	return p
}

// withKey is another event that fires or resolves db-1.
func withKey(p Pending, id string, fires bool) Pending {
	p.ID, p.Key, p.Fires = id, "db-1", fires
	return p
}

// ofAnotherKey is a firing event of db-2.
var ofAnotherKey = Pending{ID: "evt-4699", Category: "payments.refunds", Key: "db-2", Fires: true, Stored: at("09:59:00")}

// Digests of #payments: digest has the round in which evt-4711 was counted, which is the third one of worker-1. The others have not, although
// later also covers later drops.
var (
	digest  = digestOf("09:30:00", 38, "worker-2 3 9 worker-1 3 5")
	earlier = digestOf("09:14:30", 3, "worker-1 1 2 worker-2 1 2")
	later   = digestOf("09:14:02", 7, "worker-1 6 6")
	ofOther = digestOf("09:14:03", 7, "worker-2 3 3")
)

func digestOf(clock string, count int, rounds journal.Rounds) journal.Entry {
	return journal.Entry{Result: journal.Digest, Channel: "#payments", Count: count, LastStored: at(clock), Decided: at(clock), Rounds: rounds}
}

// ofMute makes an entry about the events of a mute.
func ofMute(e journal.Entry) journal.Entry {
	e.Mute = "5:7"
	return e
}

// sentences has the data about evt-4711 and the answer.
var sentences = []struct {
	name  string
	known known
	want  []string
}{
	{"dropped, in a digest", known{entries: []journal.Entry{digest, earlier, later, ofOther, refund(journal.Dropped, denied)}}, []string{
		"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40",
		"reported in #payments by the digest of 09:30:00 (38 suppressed)",
	}},
	{"dropped, in two digests", known{entries: []journal.Entry{digest, digestOf("09:29:00", 5, "worker-1 3 3"), refund(journal.Dropped, denied)}}, []string{
		"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40",
		"reported in #payments by the digest of 09:29:00 (5 suppressed), or of 09:30:00 (38 suppressed)",
	}},
	{"dropped by a mute", known{entries: []journal.Entry{digest, ofMute(digestOf("09:40:00", 2, "worker-1 3 3")), ofMute(refund(journal.Dropped, denied))}}, []string{
		"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40",
		"reported in #payments by the digest of 09:40:00 (2 suppressed)",
	}},
	{"dropped beside a mute", known{entries: []journal.Entry{ofMute(digest), refund(journal.Dropped, denied)}}, []string{
		"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40",
		"no digest in #payments has reported it, as far as the journal knows",
	}},
	{"dropped and not reported", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.Next, e.Used, e.Cost = at("10:31:40"), 0, 3
	})}}, []string{
		"dropped at 09:14:02.119 by category 10/30m (the event takes 3 slots): it was full, the next slot opens at 10:31:40",
		"no digest in #payments has reported it, as far as the journal knows",
	}},
	{"dropped since it could not wait", known{entries: []journal.Entry{digest, refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.Reason = journal.TooMany
	})}}, []string{
		"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40; it could not wait: too many events waited already",
		"reported in #payments by the digest of 09:30:00 (38 suppressed)",
	}},
	{"dropped since it can never fit", known{entries: []journal.Entry{digest, refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.Next, e.Used, e.Cost = time.Time{}, 0, 20
	})}}, []string{
		"dropped at 09:14:02.119 by category 10/30m (the event takes 20 slots): it can never fit, since the limit has 10 slots",
		"reported in #payments by the digest of 09:30:00 (38 suppressed)",
	}},
	{"unpaired", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		e.Level, e.Channel = limits.LevelUnpaired, ""
	})}}, []string{"dropped at 09:14:02.119 by unpaired: it resolves an event that was never posted"}},
	{"no room", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		e.Level, e.Channel = limits.LevelRoom, ""
	})}}, []string{"dropped at 09:14:02.119 by room: too many events of its first-level category were waiting"}},
	{"too large for the room", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		e.Level, e.Channel, e.Reason = limits.LevelRoom, "", journal.TooLarge
	})}}, []string{"dropped at 09:14:02.119 by room: it is larger with its headers than the messages that the room accepts"}},
	{"without redis", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		e.Level, e.Channel = limits.LevelClosed, ""
	})}}, []string{"dropped at 09:14:02.119 by closed: redis was unavailable, and NOTIFIER_REDIS_FAILURE=closed drops what cannot be counted"}},
	{"waited and sent", known{entries: []journal.Entry{
		refund(journal.Waiting, func(e *journal.Entry) { denied(e); e.Reason = "slot" }),
		refund(journal.Failed, func(e *journal.Entry) {
			e.Reason, e.Error, e.Decided = "transient", "not sent: connection refused", at("09:31:41")
		}),
		refund(journal.Sent, func(e *journal.Entry) { e.Decided = at("09:31:43") }),
	}}, []string{
		"began to wait at 09:14:02.119 for a slot of category 10/30m, until 09:31:40.000",
		"could not be posted at 09:31:41.000: transient: not sent: connection refused; it is tried again",
		"sent at 09:31:43.000 to #payments",
	}},
	{"waited again and again", known{entries: []journal.Entry{
		refund(journal.Waiting, func(e *journal.Entry) { e.Reason, e.Next = "pair", at("09:14:02") }),
		refund(journal.Waiting, func(e *journal.Entry) { e.Reason, e.Decided, e.Next = "pair", at("09:14:03"), at("09:14:04") }),
		refund(journal.Waiting, func(e *journal.Entry) { e.Reason, e.Decided, e.Next = "pair", at("09:14:04"), at("09:14:06") }),
		refund(journal.Sent, func(e *journal.Entry) { e.Decided = at("09:14:06") }),
	}, pending: []Pending{inRoom("steady")}}, []string{
		"began to wait at 09:14:02.119 for the outcome of an earlier event of its key, 3 times, the last time at 09:14:04.000, until 09:14:06.000",
		"sent at 09:14:06.000 to #payments",
		"the report that its key is steady waits in the room, unless the key changes, until 10:05:00.000",
	}},
	{"sent in shadow mode", known{entries: []journal.Entry{refund(journal.Sent, denied)}},
		[]string{"sent at 09:14:02.119 to #payments; in shadow mode, category 10/30m would have denied it"}},
	{"duplicate", known{entries: []journal.Entry{refund(journal.Duplicate, nil)}},
		[]string{"duplicate at 09:14:02.119: another message with its ID was admitted before, or waited for a slot"}},
	{"dead letter", known{
		entries: []journal.Entry{refund(journal.Dead, func(e *journal.Entry) { e.Reason, e.Error = "rejected", "invalid_blocks" })},
		letters: []Letter{{Number: 7, ID: "evt-4711", Category: "payments.refunds", Reason: "rejected", Stored: at("09:14:03")}},
	}, []string{
		"stored as a dead letter at 09:14:02.119: rejected: invalid_blocks",
		"dead letter 7 holds it since 09:14:03.000: rejected; notifier dlq replay 7 sends it again",
	}},
	{"expired", known{entries: []journal.Entry{refund(journal.Expired, nil)}},
		[]string{"expired at 09:14:02.119: it had become older than the age of payments.refunds"}},
	{"in hand", known{pending: []Pending{stuck}, record: store.Explanation{At: at("10:00:00"), Leased: at("10:00:20")}},
		[]string{"is in the stream without an outcome, since 09:59:00.000", "a worker is processing it"}},
	{"settled while the question was asked", known{entries: []journal.Entry{refund(journal.Sent, nil)}, pending: []Pending{inRoom("")}},
		[]string{"sent at 09:14:02.119 to #payments"}},
	{"a replayed dead letter", known{
		entries: []journal.Entry{refund(journal.Dead, func(e *journal.Entry) { e.Reason = "bad_json" })}, pending: []Pending{inRoom("replay")},
	}, []string{"stored as a dead letter at 09:14:02.119: bad_json", "is in the room now and waits for a worker"}},
	{"resolved before its firing event is decided", known{pending: []Pending{
		withKey(inRoom("pair"), "evt-4711", false), withKey(stuck, "evt-4700", true), ofAnotherKey,
	}}, []string{
		`is in the room now and waits for the outcome of an earlier event of its key, with the key "db-1", until 10:05:00.000`,
		"the firing event evt-4700 of 09:59:00.000 is in the stream without an outcome, since 09:59:00.000",
	}},
	{"resolved while its firing event is delivered", known{
		pending: []Pending{withKey(inRoom("pair"), "evt-4711", false)}, record: store.Explanation{Pair: store.PairUnderWay},
	}, []string{
		`is in the room now and waits for the outcome of an earlier event of its key, with the key "db-1", until 10:05:00.000`,
		"the firing event has its slots, and is being delivered",
	}},
	{"resolved after its firing event was sent", known{
		pending: []Pending{withKey(stuck, "evt-4711", false)},
		record:  store.Explanation{Pair: store.PairOpen, PairUntil: at("11:00:00")},
	}, []string{
		"is in the stream without an outcome, since 09:59:00.000",
		"the message of the firing event is out, and can be resolved until 11:00:00.000", "no worker has admitted it so far",
	}},
	{"resolved while its firing event waits", known{
		pending: []Pending{withKey(inRoom("pair"), "evt-4711", false)},
		record:  store.Explanation{Pair: store.PairWaits, PairUntil: at("10:31:40")},
	}, []string{
		`is in the room now and waits for the outcome of an earlier event of its key, with the key "db-1", until 10:05:00.000`,
		"the firing event waits for a slot, until 10:31:40.000",
	}},
	{"resolved while its firing event is seen to wait", known{
		pending: []Pending{withKey(inRoom("pair"), "evt-4711", false), withKey(inRoom("slot"), "evt-4700", true)},
		record:  store.Explanation{Pair: store.PairWaits, PairUntil: at("10:31:40")},
	}, []string{
		`is in the room now and waits for the outcome of an earlier event of its key, with the key "db-1", until 10:05:00.000`,
		"the firing event evt-4700 of 09:14:02.000 is in the room now and waits for a slot",
	}},
	{"back from the room", known{pending: []Pending{inRoom(room.Due)}}, []string{"is back from the room, and the next worker takes it"}},
	{"lost on its way", known{entries: []journal.Entry{refund(journal.Waiting, func(e *journal.Entry) { e.Reason = "part" })}}, []string{
		"began to wait at 09:14:02.119 for a worker",
		"what became of it then is not known: it waits nowhere, and the journal lists no outcome of it",
	}},
	{"the first of those counted", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.Count, e.LastID, e.LastSequence, e.Channel = 12, "another", 4800, ""
	})}}, []string{"dropped at 09:14:02.119 by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40"}},
	{"the last of those counted", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.ID, e.Count, e.LastID, e.LastSequence, e.Channel = "another", 12, "evt-4711", 4800, ""
	})}}, []string{"dropped at 09:14:02.119 by category 10/30m: it had no slot for the event"}},
	{"blocked", known{entries: []journal.Entry{refund(journal.Dropped, func(e *journal.Entry) { e.Level, e.Limit, e.Channel = "payments", "0/1h", "" })}},
		[]string{"dropped at 09:14:02.119 by payments 0/1h, which lets nothing through"}},
	{"the last of those folded", known{entries: []journal.Entry{asLast(journal.Folded, func(e *journal.Entry) {
		e.Number, e.Message, e.Flapping = 37, at("09:02:00"), true
	})}}, []string{"folded at 09:14:02.119 into a message of its key"}},
	{"the last of those muted", known{entries: []journal.Entry{
		digest, ofMute(digestOf("09:40:00", 2, "worker-1 3 3")),
		asLast(journal.Dropped, func(e *journal.Entry) {
			e.Level, e.Path, e.Reason, e.Mute, e.LastRound = "mute", "payments", "ann: upgrade", "5:6", 3
		}),
	}}, []string{"dropped at 09:14:02.119 by a mute", "reported in #payments by the digest of 09:40:00 (2 suppressed)"}},
	{"the last of the dead letters", known{entries: []journal.Entry{asLast(journal.Dead, func(e *journal.Entry) { e.Reason = "bad_json" })}},
		[]string{"stored as a dead letter at 09:14:02.119"}},
	{"the last of those released", known{entries: []journal.Entry{asLast(journal.Sent, func(e *journal.Entry) { e.By = "ann" })}},
		[]string{"sent at 09:14:02.119 to #payments"}},
	{"the last of the failed posts", known{entries: []journal.Entry{
		asLast(journal.Failed, func(e *journal.Entry) { e.Reason = "transient" }),
		asLast(journal.Waiting, func(e *journal.Entry) { e.Reason = "channel" }),
		refund(journal.Sent, func(e *journal.Entry) { e.Decided = at("09:15:00") }),
	}}, []string{"could not be posted at 09:14:02.119; it is tried again", "began to wait at 09:14:02.119", "sent at 09:15:00.000 to #payments"}},
	{"folded, and not shown yet", known{
		entries: []journal.Entry{refund(journal.Folded, func(e *journal.Entry) { e.Number, e.Message = 37, at("09:02:00") })},
		pending: []Pending{inRoom("update")},
	}, []string{
		"folded at 09:14:02.119 into the message of 09:02 as number 37",
		"an update of a message of its key is in the room now and waits for its turn among the updates",
	}},
	{"of yesterday", known{entries: []journal.Entry{refund(journal.Sent, func(e *journal.Entry) { e.Decided = e.Decided.AddDate(0, 0, -1) })}},
		[]string{"sent at 2026-11-21 09:14:02.119 to #payments"}},
	{"still waiting", known{
		entries: []journal.Entry{refund(journal.Waiting, func(e *journal.Entry) { e.Reason = "channel" })},
		pending: []Pending{inRoom("channel")},
		record:  store.Explanation{At: at("10:00:00"), Leased: at("09:20:00")},
	}, []string{
		"began to wait at 09:14:02.119 for its channel",
		"is in the room now and waits for its channel",
		"the channel #payments is paused until 10:05:00.000",
		"it has its slots, and no worker is processing it",
	}},
	{"not decided yet", known{pending: []Pending{stuck}},
		[]string{"is in the stream without an outcome, since 09:59:00.000", "no worker has admitted it so far"}},
	{"lost by the journal", known{
		pending: []Pending{stuck},
		record:  store.Explanation{At: at("10:00:00"), Leased: at("10:01:00"), Done: at("11:00:00")},
	}, []string{
		"is in the stream without an outcome, since 09:59:00.000",
		"the delivery record has it as delivered",
	}},
	{"folded, and lost by the journal", known{
		pending: []Pending{stuck},
		record:  store.Explanation{At: at("10:00:00"), Done: at("11:00:00"), Fold: &store.Fold{Number: 37, Posted: at("09:02:00")}},
	}, []string{
		"is in the stream without an outcome, since 09:59:00.000",
		"the delivery record has it as folded into the message of 09:02 as number 37",
	}},
}

// TestDuplicateOfADelivery has only the duplicate of an event in the journal: the worker that delivered the event was killed before it wrote its entry.
func TestDuplicateOfADelivery(t *testing.T) {
	t.Parallel()
	delivered := store.Explanation{At: at("10:00:00"), Done: at("11:00:00"), Another: true}
	lost := known{entries: []journal.Entry{refund(journal.Duplicate, nil)}, record: delivered}
	states := func(k known, q Question) (states []State) {
		t.Helper()
		for _, e := range k.ask(t, q).Events {
			states = append(states, e.State)
		}
		return states
	}
	ofID := Question{ID: "evt-4711"}
	events := lost.ask(t, ofID).Events
	testkit.EqualSlices(t, states(lost, ofID), []State{State(journal.Sent), State(journal.Duplicate)}, "states")
	testkit.EqualSlices(t, events[0].Sentences, []string{"the delivery record has it as delivered"}, "what became of the first message")
	testkit.EqualSlices(t, states(lost, Question{Sequence: 4711}), []State{State(journal.Duplicate)}, "states of one message")

	dropped := known{entries: []journal.Entry{refund(journal.Dropped, nil)}, record: delivered}
	testkit.EqualSlices(t, states(dropped, ofID), []State{State(journal.Sent), State(journal.Dropped)}, "states with a dropped copy")
	dropped.record = store.Explanation{At: at("10:00:00"), Leased: at("09:30:00")}
	testkit.EqualSlices(t, states(dropped, ofID), []State{State(journal.Dropped)}, "states with the record of a lease that the drop has left")

	first := refund(journal.Sent, func(e *journal.Entry) { e.Sequence, e.Stored = 4700, at("09:14:01") })
	lost.entries = append(lost.entries, first)
	testkit.EqualSlices(t, states(lost, ofID), []State{State(journal.Sent), State(journal.Duplicate)}, "states with both entries")
}

func TestSentences(t *testing.T) {
	t.Parallel()
	for _, test := range sentences {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			answer := test.known.ask(t, Question{ID: "evt-4711"})
			testkit.Require(t, len(answer.Events) == 1, "events: got %+v, want one", answer)
			testkit.EqualSlices(t, answer.Events[0].Sentences, test.want, "sentences")
			testkit.EqualSlices(t, answer.Unknown, nil, "what is unknown")
		})
	}
}

func TestNow(t *testing.T) {
	t.Parallel()
	k := known{entries: []journal.Entry{refund(journal.Sent, nil)}}
	single := Question{ID: "evt-4711"}
	for name, test := range map[string]struct {
		question Question
		record   store.Explanation
		delays   string
		want     string
	}{
		"free": {single, ofCategory(4, 0), "", "an event of payments.refunds would be sent now: payments 4 of 10 used"},
		"full": {single, ofCategory(10, 5*time.Minute), "",
			"an event of payments.refunds would be denied now by category 10/30m: 10 of 10 used, the next slot opens at 10:05:00"},
		"a category, full, with delays": {Question{Category: "payments"}, ofCategory(10, 5*time.Minute), "it would wait for a slot",
			"an event of payments would be denied now by category 10/30m: 10 of 10 used, the next slot opens at 10:05:00; it would wait for a slot"},
		"blocked, with delays": {single, store.Explanation{Denial: &limits.Use{Level: "payments", Limit: "0/1h", Used: 2}}, "it would wait for a slot",
			"an event of payments.refunds would be denied now by payments 0/1h, which lets nothing through"},
		"guarantees of all slots, with delays": {single, store.Explanation{Denial: &limits.Use{Level: "global", Limit: "50/1m", Size: 50, Never: true}}, "it would wait for a slot",
			"an event of payments.refunds would be denied now by global 50/1m: guarantees reserve all of its slots"},
		"muted": {single, store.Explanation{Muted: &limits.Mute{Path: "payments", Reason: "upgrade", By: "ann", Spare: "critical", Until: at("11:00:00")}}, "",
			"an event of payments.refunds would be dropped now: payments is muted until 11:00:00, except critical events by ann: upgrade"},
		"a limit of each key": {Question{Category: "payments"}, store.Explanation{OfKeys: []limits.Node{
			{Path: "payments", Level: "payments@key", Limits: limits.Limits{{Count: 2, Window: time.Hour}}},
			{Path: "payments", Level: "*@key", Limits: limits.Limits{{Count: 5, Window: time.Hour}}},
		}}, "", "an event of payments would be sent now, unless its key has filled payments@key 2/1h or *@key 5/1h"},
		"no limits": {single, store.Explanation{}, "", "an event of payments.refunds would be sent now"},
	} {
		k.record, k.delays = test.record, test.delays
		testkit.EqualSlices(t, k.ask(t, test.question).Now, []string{test.want}, "%s", name)
	}
}

// TestNowOfAKey asks the limits about the key of the event, if a limit of each key denied it.
func TestNowOfAKey(t *testing.T) {
	t.Parallel()
	limit := limits.Limit{Count: 1, Window: time.Hour}
	byKey := refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.Level, e.Limit, e.Used, e.Size, e.Path, e.Key = "payments@key", "1/1h", 1, 1, "payments", "db-1"
	})
	sources := known{entries: []journal.Entry{byKey}}.sources()
	sources.Explain = func(_ context.Context, request store.Request) (store.Explanation, error) {
		if request.ID != "payments.refunds " { // about the delivery record of the event
			return store.Explanation{At: at("10:00:00")}, nil
		}
		testkit.Equal(t, request.Key, "db-1", "key in the request")
		next := at("10:30:00")
		use := limits.UseOf(limits.Node{Path: "payments", Key: limits.HashOfKey("db-1"), Level: "payments@key"}, limit, 1)
		use.Next = &next
		return store.Explanation{At: at("10:00:00"), Limits: []limits.Use{use}, Denial: &use}, nil
	}
	answer := Ask(t.Context(), sources, Question{ID: "evt-4711"})[0]
	testkit.Contains(t, "the denial", answer.Events[0].Sentences[0], "by payments@key 1/1h: 1 of 1 used, the next slot opened at 09:31:40")
	testkit.EqualSlices(t, answer.Now, []string{
		`an event of payments.refunds with the key "db-1" would be denied now by payments@key 1/1h: 1 of 1 used, the next slot opens at 10:30:00`,
	}, "now")
	testkit.Equal(t, answer.Events[0].Entries[0].Key, "db-1", "key of the entry")
	sent := refund(journal.Sent, func(e *journal.Entry) { e.Key = "db-1" })
	sources.Entries = known{entries: []journal.Entry{sent}}.sources().Entries
	testkit.EqualSlices(t, Ask(t.Context(), sources, Question{ID: "evt-4711"})[0].Now, answer.Now, "now, after an event that was sent")
}

// TestAggregatedEntriesAreNoAnswer has entries that count events. The answer shows them as counts.
func TestAggregatedEntriesAreNoAnswer(t *testing.T) {
	t.Parallel()
	counted := refund(journal.Dropped, func(e *journal.Entry) {
		denied(e)
		e.ID, e.LastID, e.Sequence, e.LastSequence, e.Count = "first", "last", 4000, 5000, 1204
	})
	k := known{entries: []journal.Entry{counted}}
	answer := k.ask(t, Question{Sequence: 4711})
	testkit.Equal(t, answer.Known(), false, "known")
	testkit.EqualSlices(t, answer.Counted, []string{
		"at least 1204 events of payments.refunds that were dropped by category 10/30m in the second of 09:14:02 may be meant, " +
			"of messages 4000 to 5000: they are counted, not listed one by one",
	}, "counted")
	testkit.EqualSlices(t, k.ask(t, Question{Sequence: 5001}).Counted, nil, "counted, for another message")
	testkit.Equal(t, len(k.ask(t, Question{ID: "NOTIFICATIONS:4711"}).Counted), 1, "counted, for an ID that says where the event is stored")
	testkit.Equal(t, len(k.ask(t, Question{ID: "ANOTHER:4711"}).Counted), 0, "counted, for an event of another stream")
	waited := refund(journal.Waiting, func(e *journal.Entry) { e.Reason = "body" })
	answer = known{entries: []journal.Entry{waited, counted}}.ask(t, Question{ID: "evt-4711"})
	testkit.Equal(t, answer.Events[0].State, StateUnknown, "state of an event whose outcome is counted")
	testkit.Equal(t, len(answer.Counted), 1, "counted, for an event whose message is known")
	another := counted
	another.Category = "payments.cards"
	answer = known{entries: []journal.Entry{waited, another}}.ask(t, Question{ID: "evt-4711"})
	testkit.Equal(t, len(answer.Counted), 0, "counted, in another category")
	testkit.Equal(t, k.ask(t, Question{ID: "evt-4711"}).Missing,
		"the journal begins at 08:00:00.000, and has only counts of 1204 events since then", "what is missing")
	testkit.Equal(t, known{}.ask(t, Question{ID: "evt-4711", Since: at("09:00:00")}).Missing, "the journal was read from 09:00:00.000", "what is missing")

	answer = k.ask(t, Question{Category: "payments"})
	testkit.EqualSlices(t, answer.Totals, []Total{{journal.Dropped, "category", "10/30m", 1204}}, "totals")
	below := counted
	below.Category, below.Below = "payments", true
	answer = known{entries: []journal.Entry{below}}.ask(t, Question{Category: "payments.refunds"})
	testkit.EqualSlices(t, answer.Totals, nil, "totals of a category, of events of other categories beside it")
	testkit.Equal(t, len(answer.Counted), 1, "counted, for a category that may be one of several")
	testkit.EqualSlices(t, known{entries: []journal.Entry{below}}.ask(t, Question{Category: "payments"}).Totals,
		[]Total{{journal.Dropped, "category", "10/30m", 1204}}, "totals of all the categories")
	answer = k.ask(t, Question{Title: "card"})
	testkit.EqualSlices(t, answer.Totals, nil, "totals of a title, which counts do not have")
	testkit.Equal(t, len(answer.Counted), 1, "counts among which the title may be")
}

// TestIncompleteJournal asks while workers cannot write the journal, and after one has lost entries. The answer says what is missing
// wherever that may be what was asked for.
func TestIncompleteJournal(t *testing.T) {
	t.Parallel()
	const failing = "the journal is complete until 09:10:00.000: worker host-b cannot write it: nats: no response; 213 entries are kept until it can, 4 are lost"
	const lost = "the journal is incomplete: worker host-a-x could not write 9 entries of results between 08:30:00.000 and 08:31:00.000"
	k := known{
		failing: []Writer{
			{"host-b", journal.Health{Error: "nats: no response", Complete: at("09:10:00"), Kept: 213, Lost: 4}},
			{"host-c", journal.Health{Error: "nats: no response", Complete: at("09:12:00")}},
		},
		lost: []journal.Entry{{Result: journal.Lost, Instance: "host-a-x", Count: 9, Stored: at("08:30:00"), LastStored: at("08:31:00")}},
	}
	answer := k.ask(t, Question{ID: "evt-4711"})
	testkit.Equal(t, answer.Missing,
		"the journal begins at 08:00:00.000, and is complete until 09:10:00.000, since workers cannot write it", "what is missing")
	testkit.EqualSlices(t, []string{answer.Unknown[0], answer.Unknown[2]}, []string{failing, lost}, "what is unknown")
	k.entries = []journal.Entry{refund(journal.Waiting, nil)}
	testkit.Equal(t, len(k.ask(t, Question{ID: "evt-4711"}).Unknown), 3, "sentences about an event whose outcome is unknown")
	testkit.Equal(t, len(k.ask(t, Question{Category: "payments"}).Unknown), 3, "sentences about a category")
	k.entries = append(k.entries, refund(journal.Sent, nil))
	testkit.EqualSlices(t, k.ask(t, Question{ID: "evt-4711"}).Unknown, nil, "what is unknown of an event with an outcome")
}

// TestTheSameSequenceTwice has a stream that was recreated: two events have one sequence, and a dead letter and a waiting event of each.
func TestTheSameSequenceTwice(t *testing.T) {
	t.Parallel()
	before, after := at("09:00:00"), at("09:30:00")
	var k known
	for title, stored := range map[string]time.Time{"before": before, "after": after} {
		k.entries = append(k.entries, refund(journal.Sent, func(e *journal.Entry) {
			e.Title, e.Stored, e.Decided = title, stored, stored.Add(time.Second)
		}))
		k.letters = append(k.letters, Letter{
			ID: "evt-4711", Category: "payments.refunds", Sequence: 4711, Published: stored, Title: title, Stored: stored.Add(time.Minute), Reason: title,
		})
		update := inRoom(string(room.Update))
		update.Stored, update.Title = stored, title
		k.pending = append(k.pending, update)
	}
	answer := k.ask(t, Question{Sequence: 4711})
	testkit.Equal(t, len(answer.Events), 2, "events")
	for i, title := range []string{"before", "after"} {
		e := answer.Events[i]
		if e.Title != title || len(e.Entries) != 1 || e.Entries[0].Title != title ||
			len(e.letters) != 1 || e.letters[0].Reason != title || len(e.waits.updates) != 1 || e.waits.updates[0].Title != title {
			t.Errorf("event %d: got %+v, want one outcome, one letter and one update, each titled %q", i, e, title)
		}
	}
}

// TestIDsOfOthers asks about an ID that other producers use too, and that its own producer repeats. The answer has the event that was sent, and says
// that it does not have all events.
func TestIDsOfOthers(t *testing.T) {
	t.Parallel()
	entry := func(category string, sequence uint64, result journal.Result) journal.Entry {
		return refund(result, func(e *journal.Entry) {
			e.Category, e.Sequence, e.Stored = category, sequence, at("09:00:00").Add(time.Duration(sequence)*time.Second)
		})
	}
	entries := []journal.Entry{entry("payments.refunds", 1, journal.Sent)}
	for i := range uint64(5 * keptEvents / 2) {
		entries = append(entries, entry(fmt.Sprint("evil.q", i), 2+2*i, journal.Dropped), entry("payments.refunds", 3+2*i, journal.Duplicate))
	}
	answer := known{entries: entries}.ask(t, Question{ID: "evt-4711"})
	testkit.Equal(t, len(answer.Events), maxEvents, "events")
	testkit.Equal(t, answer.Found, len(entries), "events found")
	sent := answer.Events[0]
	testkit.Check(t, sent.Sequence == 1 && sent.Category == "payments.refunds", "the first event: got %+v, want the one that was sent", sent)
}

// TestSeveralOutcomes has dead letters that were replayed: one is dead again, one was sent, and one waits.
func TestSeveralOutcomes(t *testing.T) {
	t.Parallel()
	outcome := func(id string, result journal.Result, later time.Duration) journal.Entry {
		return refund(result, func(e *journal.Entry) { e.ID, e.Decided = id, e.Decided.Add(later) })
	}
	k := known{
		entries: []journal.Entry{
			outcome("a", journal.Dead, 0), outcome("b", journal.Dead, 0), outcome("c", journal.Dead, 0),
			outcome("a", journal.Dead, time.Minute), outcome("b", journal.Sent, time.Minute),
		},
		pending: []Pending{withKey(inRoom("slot"), "c", false)},
	}
	answer := k.ask(t, Question{Category: "payments"})
	testkit.EqualSlices(t, answer.Totals, []Total{{Result: journal.Dead, Count: 3}, {Result: journal.Sent, Count: 1}}, "totals")
	testkit.Equal(t, answer.Found, 3, "events found")
	testkit.Equal(t, len(answer.Events), 3, "reported events")
}

// TestSeveralWaits has two events that wait again and again for the same thing. Each counts once, and both have one reason.
func TestSeveralWaits(t *testing.T) {
	t.Parallel()
	waiting := func(id string, after time.Duration) journal.Entry {
		return refund(journal.Waiting, func(e *journal.Entry) { e.ID, e.Reason, e.Decided = id, "pair", e.Decided.Add(after) })
	}
	k := known{entries: []journal.Entry{
		waiting("a", 0), waiting("b", 0), waiting("a", time.Minute), waiting("a", 2*time.Minute),
		refund(journal.Sent, func(e *journal.Entry) { e.ID, e.Decided = "a", e.Decided.Add(3*time.Minute) }),
		refund(journal.Sent, func(e *journal.Entry) { e.ID, e.Decided = "b", e.Decided.Add(3*time.Minute) }),
	}}
	answer := k.ask(t, Question{Category: "payments"})
	testkit.EqualSlices(t, answer.Totals, []Total{{Result: journal.Waiting, Count: 2}, {Result: journal.Sent, Count: 2}}, "totals")
	testkit.Equal(t, answer.Events[0].Reason, answer.Events[1].Reason, "reasons")
	testkit.Equal(t, strings.Count(answer.Events[0].Reason, "began to wait"), 1, "waits in the reason %q", answer.Events[0].Reason)
}

func TestOnlyTheNewestEventsAreReported(t *testing.T) {
	t.Parallel()
	var entries []journal.Entry
	for i := range uint64(100) {
		entries = append(entries, refund(journal.Sent, func(e *journal.Entry) { e.Sequence = i + 1 }))
	}
	answer := known{entries: entries}.ask(t, Question{Category: "payments"})
	testkit.Equal(t, len(answer.Events), maxEvents, "events")
	testkit.Equal(t, answer.Events[maxEvents-1].Sequence, uint64(100), "sequence of the last one")
	testkit.EqualSlices(t, answer.Totals, []Total{{Result: journal.Sent, Count: 100}}, "totals")
}

func TestFailingSources(t *testing.T) {
	t.Parallel()
	answer := known{fails: errors.New("no permission")}.ask(t, Question{ID: "evt-4711", Category: "payments"})
	testkit.EqualSlices(t, answer.Unknown, []string{
		"not every event that waits was looked at: no permission", "the dead letters cannot be read: no permission",
		"the journal cannot be read: no permission", "the delivery record cannot be read: no permission", "the limits cannot be asked: no permission",
	}, "what is unknown")
	answer = known{fails: journal.ErrNoJournal}.ask(t, Question{Category: "payments"})
	testkit.Contains(t, "without a journal", strings.Join(answer.Unknown, "\n"), "NOTIFIER_JOURNAL_AGE=0")
}

func TestStates(t *testing.T) {
	t.Parallel()
	waiting := []journal.Entry{refund(journal.Waiting, nil)}
	leased := store.Explanation{At: at("10:00:00"), Leased: at("09:20:00")}
	for name, test := range map[string]struct {
		known known
		want  State
		final bool
	}{
		"sent":       {known{entries: []journal.Entry{refund(journal.Sent, nil)}}, "sent", true},
		"a letter":   {known{letters: []Letter{{ID: "evt-4711", Category: "payments.refunds"}}}, "dead", true},
		"waiting":    {known{entries: waiting, pending: []Pending{inRoom("slot")}}, StateWaiting, true},
		"undecided":  {known{pending: []Pending{stuck}}, StateUndecided, true},
		"admitted":   {known{pending: []Pending{stuck}, record: leased}, StateAdmitted, true},
		"split":      {known{entries: []journal.Entry{refund(journal.Split, nil)}, pending: []Pending{inRoom("")}}, StateSplit, true},
		"on its way": {known{entries: waiting}, StateUnknown, false},
		"delivered":  {known{entries: waiting, record: store.Explanation{Done: at("11:00:00")}}, "sent", true},
		"folded":     {known{entries: waiting, record: store.Explanation{Done: at("11:00:00"), Fold: &store.Fold{Number: 2}}}, "folded", true},
	} {
		answer := test.known.ask(t, Question{ID: "evt-4711"})
		testkit.Check(t, len(answer.Events) == 1 && answer.Events[0].State == test.want && answer.Final() == test.final,
			"%s: got %+v, final %t, want %s, %t", name, answer.Events, answer.Final(), test.want, test.final)
	}
}

// TestRecordAlone finds an event by its delivery record. The question has its category, or is asked everywhere.
func TestRecordAlone(t *testing.T) {
	t.Parallel()
	k := known{record: store.Explanation{At: at("10:00:00"), Done: at("11:00:00"), Another: true}, recorded: "payments.refunds evt-4711"}
	testkit.Equal(t, k.ask(t, Question{ID: "evt-4711"}).Known(), false, "known without the category")
	testkit.Equal(t, k.ask(t, Question{ID: "evt-4712", Category: "payments.refunds"}).Known(), false, "another event is known")
	testkit.Equal(t, k.ask(t, Question{ID: "evt-4712", Everywhere: true}).Known(), false, "another event is known")
	for _, q := range []Question{{ID: "evt-4711", Category: "payments.refunds"}, {ID: "evt-4711", Everywhere: true}} {
		answer := k.ask(t, q)
		if len(answer.Events) != 1 || answer.Events[0].Category != "payments.refunds" {
			t.Fatalf("events: got %+v, want one of payments.refunds", answer.Events)
		}
		testkit.EqualSlices(t, answer.Events[0].Sentences, []string{"the delivery record has it as delivered"}, "sentences")
	}
}

// TestManyWaitingEvents asks about a category with waiting events.
func TestManyWaitingEvents(t *testing.T) {
	t.Parallel()
	k := known{pending: []Pending{stuck, inRoom("slot")}, entries: []journal.Entry{refund(journal.Sent, nil)}}
	for i := range 3 {
		k.pending = append(k.pending, withKey(inRoom("channel"), fmt.Sprint("evt-", i), false))
	}
	answer := k.ask(t, Question{Category: "payments"})
	testkit.EqualSlices(t, answer.Waiting, []string{
		"waiting in the room now for its channel: 3", "in the stream of the producers now, without an outcome: 1",
		"waiting in the room now for a slot: 1",
	}, "what waits")
	testkit.Equal(t, answer.Found, 5, "events found")
	testkit.EqualSlices(t, k.ask(t, Question{Category: "payments", Since: at("09:59:30")}).Waiting, answer.Waiting, "what waits now, asked since a time")
}

// TestWhereAnEventIsNow asks since a time at which the event waited already, or was a dead letter. Where an event is now counts whenever it
// came there.
func TestWhereAnEventIsNow(t *testing.T) {
	t.Parallel()
	waits := []journal.Entry{refund(journal.Waiting, func(e *journal.Entry) { e.Reason = "slot" })}
	for name, test := range map[string]struct {
		known known
		want  State
	}{
		"it waits":                         {known{pending: []Pending{inRoom("slot")}}, StateWaiting},
		"it waits, and the journal agrees": {known{entries: waits, pending: []Pending{inRoom("slot")}}, StateWaiting},
		"it is in the stream":              {known{pending: []Pending{stuck}}, StateUndecided},
		"it is a dead letter":              {known{letters: []Letter{{ID: "evt-4711", Category: "payments.refunds", Stored: at("09:14:03")}}}, "dead"},
	} {
		for _, q := range []Question{{ID: "evt-4711"}, {Sequence: 4711}, {ID: "evt-4711", Category: "payments"}} {
			q.Since = at("09:59:30")
			if len(test.known.letters) > 0 {
				test.known.letters[0].Sequence = 4711
			}
			answer := test.known.ask(t, q)
			testkit.Check(t, len(answer.Events) == 1 && answer.Events[0].State == test.want,
				"%s, asked %+v: got %+v, want one event, %s", name, q, answer.Events, test.want)
		}
	}
	answer := known{entries: waits, pending: []Pending{inRoom("slot")}}.ask(t, Question{Category: "payments", Since: at("09:10:00")})
	testkit.Equal(t, answer.Events[0].State, StateWaiting, "state of an event of a category")
}

// TestWaitingEventsBeyondTheBound has more events wait than are kept. The newest of them are reported as waiting.
func TestWaitingEventsBeyondTheBound(t *testing.T) {
	t.Parallel()
	var k known
	for i := range 5 * keptEvents / 2 {
		p := withKey(inRoom("slot"), fmt.Sprint("evt-", i), false)
		p.Stored, p.Sequence = at("09:00:00").Add(time.Duration(i)*time.Millisecond), uint64(i)
		k.pending = append(k.pending, p)
		k.entries = append(k.entries, refund(journal.Waiting, func(e *journal.Entry) { e.ID, e.Sequence, e.Stored = p.ID, p.Sequence, p.Stored }))
	}
	answer := k.ask(t, Question{Category: "payments"})
	testkit.EqualSlices(t, answer.Waiting, []string{"waiting in the room now for a slot: 2500"}, "what waits")
	testkit.Equal(t, len(answer.Events), maxEvents, "reported events")
	for _, e := range answer.Events {
		testkit.Equal(t, e.State, StateWaiting, "state of %s", e.ID)
	}
}

// TestGroups has events of a category with four reasons. Events of one reason and digest are one group, whatever their times are.
func TestGroups(t *testing.T) {
	t.Parallel()
	var k known
	for i := range 6 {
		result := journal.Dropped
		if i%3 == 2 {
			result = journal.Sent
		}
		k.entries = append(k.entries, refund(result, func(e *journal.Entry) {
			e.ID, e.Sequence, e.Stored = fmt.Sprint("evt-", i), uint64(i), e.Stored.Add(time.Duration(i)*time.Second)
			if e.Decided = e.Stored.Add(time.Millisecond); result == journal.Dropped {
				denied(e)
			}
		}))
	}
	for i := range 2 {
		k.entries = append(k.entries, refund(journal.Folded, func(e *journal.Entry) {
			e.ID, e.Sequence, e.Stored = fmt.Sprint("evt-", 7+i), uint64(7+i), at("09:10:00").Add(time.Duration(i)*time.Second)
			e.Decided, e.Number, e.Message = e.Stored, int64(2+i), at("09:02:00")
		}))
	}
	p := withKey(inRoom("pair"), "evt-6", false)
	p.Stored = at("09:14:20")
	k.pending = append(k.pending, p)
	var got []string
	for _, group := range k.ask(t, Question{Category: "payments"}).Groups() {
		for _, e := range group.Events {
			group.Reason += " | " + strings.TrimSpace(e.ID+" "+e.Note)
		}
		got = append(got, group.Reason)
	}
	testkit.EqualSlices(t, got, []string{
		`is in the room now and waits for the outcome of an earlier event of its key, with the key "db-1" | evt-6 until 10:05:00.000`,
		"sent to #payments | evt-5 | evt-2",
		"dropped by category 10/30m: 10 of 10 used, the next slot opened at 09:31:40; " +
			"no digest in #payments has reported it, as far as the journal knows | evt-4 | evt-3 | evt-1 | evt-0",
		"folded into the message of 09:02 | evt-8 number 3 | evt-7 number 2",
	}, "groups")
}

func TestTotalsInWords(t *testing.T) {
	t.Parallel()
	for want, total := range map[string]Total{
		"began to wait for a slot of later 3/1h": {Result: journal.Waiting, Level: "later", Limit: "3/1h"},
		"began to wait":                          {Result: journal.Waiting},
		"dropped by category 10/30m":             {Result: journal.Dropped, Level: "category", Limit: "10/30m"},
		"dropped by unpaired":                    {Result: journal.Dropped, Level: "unpaired"},
		"sent":                                   {Result: journal.Sent},
		"sent, though denied by global 1/1h":     {Result: journal.Sent, Level: "global", Limit: "1/1h"},
		"failed and tried again":                 {Result: journal.Failed},
	} {
		testkit.Equal(t, total.What(), want, "%+v", total)
	}
}

// TestProducersIDs asks about events by the IDs that their producers gave, which workers replace or show with a part.
func TestProducersIDs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 40)
	for _, test := range []struct {
		id       string
		identity event.Event
	}{
		{long, event.Named(long)[0]},
		{"a\tb", event.Named("a\tb")[0]},
		{" a  b\n", event.Named(" a  b\n")[0]},
		{long + "/shop/7", event.Named(long + "/shop/7")[0]},
		{long + "/disk", event.Event{ID: event.Named(long)[0].ID, Part: "disk"}},
		{"shop/7", event.Event{ID: "shop/7"}},
		{"shop/7/disk", event.Event{ID: "shop/7", Part: "disk"}}, // of a group and a part
	} {
		id, identity := test.id, test.identity
		identity.Category = "payments.refunds"
		sent := known{entries: []journal.Entry{refund(journal.Sent, func(e *journal.Entry) { e.ID = identity.ShownID() })}}
		waits := known{pending: []Pending{inRoom("slot")}}
		waits.pending[0].ID = identity.ShownID()
		dead := known{letters: []Letter{{ID: identity.ShownID(), Category: identity.Category}}}
		recorded := known{record: store.Explanation{At: at("10:00:00"), Done: at("11:00:00")}, recorded: identity.Identity()}
		testkit.Equal(t, recorded.ask(t, Question{ID: id, Category: identity.Category}).Known(), true, "known by the delivery record")
		delivered := recorded // after it has waited
		delivered.entries = []journal.Entry{refund(journal.Waiting, func(e *journal.Entry) { e.ID = identity.ShownID() })}
		for _, k := range []struct {
			known
			want State
		}{{sent, "sent"}, {waits, StateWaiting}, {dead, "dead"}, {delivered, "sent"}} {
			answer := k.ask(t, Question{ID: id, Category: identity.Category})
			testkit.Check(t, len(answer.Events) == 1 && answer.Events[0].State == k.want,
				"%.20q: got %+v, want one event, %s", id, answer.Events, k.want)
		}
	}
}
