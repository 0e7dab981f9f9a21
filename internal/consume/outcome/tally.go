package outcome

import (
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/nats-io/nats.go"

	"github.com/seed-4578ace9/notifier/internal/consume/received"
	"github.com/seed-4578ace9/notifier/internal/consume/stream"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/plain"
	"github.com/seed-4578ace9/notifier/internal/summary"
	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// EventMetrics counts what becomes of events. Its methods may be called concurrently.
type EventMetrics interface {
	Event(category, outcome string, n int)
	Dropped(category, level string, n int, trace string) // trace: the trace ID of one of the events, "" for none
	EventAge(d time.Duration, trace string)              // age of a sent event that waited for no slot, and its trace ID, "" for none
	Redelivered(n int)
	Resolved(result string) // "paired", "unpaired"
}

type dropCounter struct {
	count      func([]summary.Drop) (round int64)
	showsFolds bool // see Options.ShowsFolds
}

// tally counts each settlement that the server has confirmed once. Its methods may be called concurrently.
type tally struct {
	conn       *nats.Conn
	metrics    EventMetrics
	remembered *lru.Cache[stored, struct{}] // messages that were settled late or in a second delivery
}

func newTally(conn *nats.Conn, metrics EventMetrics) *tally {
	remembered, _ := lru.New[stored, struct{}](mostRemembered) // fails only if the size is not positive
	return &tally{conn: conn, metrics: metrics, remembered: remembered}
}

// stored identifies a message, even if its stream is recreated.
type stored struct {
	stream   string
	sequence uint64
	at       int64
}

func storedAs(m *received.Message) stored {
	return stored{m.Meta.Stream, m.Meta.Sequence.Stream, m.Meta.Timestamp.UnixNano()}
}

// mostRemembered bounds the messages that a tally remembers: more than all instances together can have unacknowledged.
const mostRemembered = 2 * stream.MaxAckPending

// knows reports whether the event of a message has ended here, and the message was delivered again before a late acknowledgement was handled.
func (t *tally) knows(m *received.Message) bool {
	return t.remembered.Len() > 0 && t.remembered.Contains(storedAs(m))
}

// count counts confirmed settlements, and returns them with their kinds. If a message was delivered again because its settlement was late, the
// first of its two settlements is counted and returned, whichever it is. Failed is when the consumer last failed to confirm; zero: never.
func (t *tally) count(batch []Settlement, failed time.Time) (counted []Settlement, groups []outcomes) {
	for _, settled := range batch {
		settled.Span.Settled(string(settled.Outcome), settled.decided)
	}
	now, connection := time.Now(), t.conn.Stats().Reconnects
	counted = slices.DeleteFunc(batch, func(settled Settlement) bool {
		// It is late on a lost connection, with an expired lease, or for a consumer that may have been recreated before it confirmed.
		late := settled.From.Reconnects != connection || settled.Lease.LeftAt(now) <= 0 || settled.decided.Before(failed)
		if late || settled.Meta.NumDelivered > 1 {
			before, _ := t.remembered.ContainsOrAdd(storedAs(settled.Message), struct{}{})
			return before
		}
		return t.knows(settled.Message)
	})
	groups = alike(counted)
	for _, g := range groups {
		t.metrics.Event(g.category, string(g.outcome), len(g.members))
		if g.level != "" {
			t.metrics.Dropped(g.category, g.level, len(g.members), g.trace)
		}
	}
	return counted, groups
}

// kind is the key by which outcomes are counted together.
type kind struct {
	category string
	outcome  journal.Result
	level    string
	mute     string // text of the mute that denied the events; "" for none
}

type outcomes struct {
	kind
	members []int  // positions in the batch
	trace   string // trace ID of one member; "" for none
}

func alike(batch []Settlement) (groups []outcomes) {
	numbers := make(map[kind]int)
	for i, settled := range batch {
		if settled.Outcome == "" {
			continue
		}
		k := kind{settled.About.Category, settled.Outcome, LevelOf(settled.Denial), muteOf(settled.Denial)}
		number, known := numbers[k]
		if !known {
			number = len(groups)
			numbers[k] = number
			groups = append(groups, outcomes{kind: k})
		}
		groups[number].members = append(groups[number].members, i)
		if settled.Span != nil {
			groups[number].trace = settled.Span.TraceID()
		}
	}
	return groups
}

// dropsOf returns the drops of a batch for the digests, with the first title of each kind, and folded events that no message can show.
func (c dropCounter) dropsOf(batch []Settlement, groups []outcomes) (drops []summary.Drop) {
	for _, g := range groups {
		drop := summary.Drop{Category: g.category, Level: g.level, N: len(g.members), Mute: g.mute}
		switch {
		case g.outcome == journal.Folded && !c.showsFolds:
			drop.Level = store.LevelFolded
		case g.outcome != journal.Dropped:
			continue
		}
		for _, member := range g.members {
			if g.mute != "" {
				drop.Keys = appendKey(drop.Keys, batch[member].Message)
			}
		}
		for _, member := range g.members {
			if drop.Title = plain.Title(event.QuickTitle(batch[member].Data)); drop.Title != "" {
				break
			}
		}
		drops = append(drops, drop)
	}
	return drops
}

// muteOf returns the text of the mute of a denial; "" for another denial.
func muteOf(denial *store.Denial) string {
	if denial == nil || denial.Mute == nil {
		return ""
	}
	return denial.Mute.Text
}

// endsUnderMutes returns what the resolved events of a batch change in the reports about mutes: their keys no longer fire.
func (s *Settler) endsUnderMutes(batch []Settlement) (ended []summary.Drop) {
	for i := range batch {
		m := batch[i].Message
		if !m.About.Resolves || m.About.Pair == "" {
			continue
		}
		for _, text := range s.mutes.UnreportedMutes(m.About.Category) {
			ended = append(ended, summary.Drop{Category: m.About.Category, Mute: text, Keys: appendKey(nil, m)})
		}
	}
	return ended
}

// LevelOf returns the level of a denial; "" for none.
func LevelOf(denial *store.Denial) string {
	if denial == nil {
		return ""
	}
	return denial.Level
}

// appendKey appends the state of the key of a message's event, if the event has a key.
func appendKey(keys []summary.Key, m *received.Message) []summary.Key {
	if m.About.Pair == "" {
		return keys
	}
	return append(keys, summary.Key{
		Name: plain.Line(m.About.Pair), At: m.Entry.Origin.Stored, Firing: !m.About.Resolves, Title: plain.Title(received.TitleOf(m)),
	})
}
