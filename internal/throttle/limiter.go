package throttle

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// Limiter keeps the sliding logs and the delivery record. [Redis] and [Memory] behave alike, which one conformance
// suite and a step-by-step comparison show. All methods may be called at once, by any number of goroutines and, for
// Redis, processes.
type Limiter interface {
	// Decide judges the requests in their order, as one step: no other call comes between. It returns one decision
	// for each request. On an error it is unknown whether anything was decided; asking again takes no second slot.
	Decide(ctx context.Context, requests []Request) (Ruling, error)

	// Finish records that the events were delivered. It tells for each whether that is new: of several holders of one
	// event, one is told so. Repeating it is harmless.
	Finish(ctx context.Context, leases []Lease) (newly []bool, err error)

	// Extend renews the leases for d from now, or ends them if d is 0, and returns them with their new ends. A lease
	// that is no longer the caller's comes back with End 0. Whoever takes over what was ended in doubt, or has lapsed, is
	// told so.
	Extend(ctx context.Context, leases []Lease, d time.Duration) ([]Lease, error)

	// Refund returns the slots of events that were definitely not delivered and forgets the events. It tells for each
	// whether the lease was still the caller's; if not, nothing was changed. Repeating it is harmless.
	Refund(ctx context.Context, leases []Lease) ([]bool, error)
}

// Message names a stored JetStream message. It is the same for every redelivery.
type Message struct {
	Stream   string
	Sequence uint64
	Stored   time.Time // when JetStream stored it
}

// stampSequences is how many messages of one millisecond a stamp tells apart: JetStream does not store a million
// messages a second in one stream.
const stampSequences = 1024

// stamp is the message as one number that a sorted set's score holds exactly (53 bits). The millisecond makes it differ
// for a stream that was deleted and made anew, whose sequence starts at 1 again.
func (m Message) stamp() int64 {
	return m.Stored.UnixMilli()*stampSequences + int64((m.Sequence+hashOf(m.Stream))%stampSequences)
}

// hashOf is the 32-bit FNV-1a hash of a name, without the allocation that hash/fnv makes for each.
func hashOf(name string) uint64 {
	const offset, prime = 2166136261, 16777619
	hash := uint32(offset)
	for i := range len(name) {
		hash = (hash ^ uint32(name[i])) * prime
	}
	return uint64(hash)
}

// Request asks for one event.
type Request struct {
	ID       string // the event's identity, which its category begins: see event.Event.Identity
	Derived  bool   // it was made from the message's place in the stream
	Message  Message
	Category string
	Cost     int    // slots; 0 asks only what is known of the event
	Pair     string // of a firing or resolved event: its category, a line feed and what it is about; "" for none

	MayWait   bool // denied, it waits for a slot: it does not overtake those of its first-level category that do already
	HasWaited bool // it has come back from that
}

// record is the event's name in the delivery record: its identity, and the stamp of its message behind a derived one, which
// alone would not tell the messages of a stream from those of its predecessor of the same name. No identity holds a line feed.
func (r Request) record() string {
	if !r.Derived {
		return r.ID
	}
	var room [event.MaxIdentityBytes + len("\n") + maxDigits]byte
	name := append(append(room[:0], r.ID...), '\n')
	return string(strconv.AppendInt(name, r.Message.stamp(), 10))
}

// maxDigits is how long a number gets, its sign included.
const maxDigits = 20

// identity is the record and the stamp as the scripts take them: a record that contains the stamp goes without.
func (r Request) identity() (record, stamp string) {
	if r.Derived {
		return r.record(), ""
	}
	return r.ID, strconv.FormatInt(r.Message.stamp(), 10)
}

// messageName is unique for the stored message.
func (r Request) messageName() string {
	record, stamp := r.identity()
	return record + "\n" + stamp
}

// Lease is the right to deliver an admitted event.
type Lease struct {
	Request
	End int64 // microseconds of the limiter's clock; it also tells one holder from the next

	tree, shadow *Tree  // in which the event was judged; nil in doubt
	slotless     bool   // of an event that was denied and forwarded all the same, or that resolves a pair
	resolving    bool   // of an event that resolves a pair
	receipt      string // of the delivery, once there is one
	inDoubt      bool   // the event may have been delivered, by an earlier holder or, at the end, by this one
}

func (l Lease) treeOr(current *Tree) *Tree   { return cmp.Or(l.tree, current) }
func (l Lease) shadowOr(current *Tree) *Tree { return cmp.Or(l.shadow, current) }

// Verdict is what was decided about a request.
type Verdict int

// The verdicts, numbered as in parts/judging.lua and resolve.lua.
const (
	Admitted  Verdict = iota + 1 // recorded in every log of its path; the caller has the lease
	Denied                       // some limit was full
	NeverFits                    // its cost is above some limit's count
	Repeated                     // admitted earlier, and whoever had the lease let it lapse; the caller has it now
	Leased                       // someone else is delivering it
	Done                         // this very message was delivered
	Duplicate                    // another stored message with its ID was admitted
	Unknown                      // nothing is known of it (Cost 0)
	Unpaired                     // it resolves nothing (Resolve)
)

// Decision answers one Request.
type Decision struct {
	Verdict Verdict
	Node    Node          // Denied, NeverFits: whose limit denied
	Limit   Limit         // Denied, NeverFits: that limit
	Wait    time.Duration // Denied: until enough slots open; Leased: until the lease ends
	Lease   Lease         // Admitted, Repeated, and denials that are forwarded
	Shadow  ShadowDecision
	InDoubt bool // Repeated: an earlier holder of the lease may have delivered the event
}

// ShadowDecision is what the shadow limits say of an event that was judged. Its Verdict is 0 if there are none, or the
// event was not judged anew.
type ShadowDecision struct {
	Verdict Verdict // Admitted, Denied or NeverFits
	Node    Node
	Limit   Limit
	Wait    time.Duration
}

// Ruling answers a batch.
type Ruling struct {
	At        int64 // microseconds of the limiter's clock
	Decisions []Decision
	Pauses    map[string]time.Duration // destinations that take no messages, and for how long still
}

// Settings that both limiters share.
type Settings struct {
	Tree      *Tree         // until others are adopted
	Shadow    *Tree         // likewise; nil: none
	Lease     time.Duration // how long a grant lasts unless it is renewed
	Retention time.Duration // how long a delivered event, or one nobody delivers, is remembered
	PairTTL   time.Duration // how long after its first message a pair can be resolved
	Forward   bool          // shadow mode: denied events are leased too, without taking slots
}

func (s Settings) rules() *Ruleset { return &Ruleset{Tree: s.Tree, Shadow: s.Shadow} }

// tolerance is TOLERANCE of prelude.lua, nonceKept is its NONCE_KEPT.
const (
	tolerance = time.Minute
	nonceKept = 10 * time.Second
)
