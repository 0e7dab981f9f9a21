package store

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/limits"
)

// Message names a stored JetStream message. It is the same for every redelivery.
type Message struct {
	Stream   string
	Sequence uint64
	Stored   time.Time // when JetStream stored it
}

// versionSequences is how many messages of one millisecond a version distinguishes. JetStream stores fewer than a million messages a second
// in one stream.
const versionSequences = 1024

// version is the message as one number that a sorted set's score holds exactly (53 bits). The millisecond distinguishes the messages of a
// recreated stream from its predecessor's messages.
func (m Message) version() int64 {
	return m.Stored.UnixMilli()*versionSequences + int64((m.Sequence+hashOf(m.Stream))%versionSequences)
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
	Derived  bool   // the ID is derived from the message's place in the stream
	Message  Message
	Category string
	Key      string // what the event is about, for the limits of each key; "" for none
	Severity event.Severity
	Cost     int    // slots; 0: look up the event's record, take no slots; the event may be folded
	Pair     string // of a firing or resolved event: its category, a line feed and what it is about; "" for none
	Resolves bool   // it resolves its pair; no limit applies to it
	Slotless bool   // an operator has released it: it takes no slots, and neither limits nor its pair apply to it

	Fold Folding // when it is counted in a message of its pair instead of being posted

	RemindsOf string // a reminder: event key of the event that it posts again; "" for any other event
	Steady    Change // a report that its key is steady: the change since which it is; 0 for any other event

	MayWait   bool // if denied, it waits for a slot, behind the waiting events of its first-level category
	HasWaited bool // it has come back after such a wait
	Attempted bool // a worker may have posted it, whatever the record has
	Again     bool // its message may have been delivered before: if it may wait, it may have been planned to come back
	Recorded  bool // Redis may have a record of it
}

// Folding says when an event is folded into the newest message of its pair.
type Folding struct {
	Within    time.Duration // how old the message may be; 0: the event is folded only if its key is flapping
	Counts    bool          // the event counts for the rule for flapping
	Severity  int           // rank of the event's severity; an event is not folded into a message of a lower severity
	ComesBack time.Duration // how long it waits, if it has to wait for a message
}

// AsksForPair reports whether the pair of the event decides about it, and not the limits.
func (r Request) AsksForPair() bool { return r.Resolves && r.Cost > 0 && !r.Slotless }

// MayFold reports whether the event may be counted in a message of its pair. A reminder is a message of its own, and so is a released
// event.
func (r Request) MayFold() bool {
	return (r.Fold.Within > 0 || r.Fold.Counts) && r.Pair != "" && !r.Resolves && !r.Slotless && r.RemindsOf == ""
}

// eventKey returns the event's name in the delivery record: its identity. The version of the message follows a derived identity, since a
// recreated stream derives equal identities. No identity contains a line feed.
func (r Request) eventKey() string {
	if !r.Derived {
		return r.ID
	}
	return r.ID + "\n" + strconv.FormatInt(r.Message.version(), 10)
}

// keyAndVersion returns what the scripts take. The version is "" where the event key contains it.
func (r Request) keyAndVersion() (eventKey, version string) {
	if r.Derived {
		return r.eventKey(), ""
	}
	return r.ID, strconv.FormatInt(r.Message.version(), 10)
}

// messageName is unique for the stored message.
func (r Request) messageName() string {
	eventKey, version := r.keyAndVersion()
	return eventKey + "\n" + version
}

// Unheld is the End of a lease that nobody holds. A worker that dropped an event without Redis refunds it with this lease.
const Unheld = -1

// Lease is the right to deliver an admitted event.
type Lease struct {
	Request Request
	End     int64 // microseconds of the store's clock; it also distinguishes one holder from the next; 0: lost; Unheld

	rules     *Rules // that evaluated the event; nil if they are not known
	slotless  bool   // it took no slots: it was denied but forwarded in shadow mode, it was released, or it resolves a pair
	Resolving bool   // of an event that resolves a pair
	Unshown   bool   // of an event that resolves a pair: it keeps the pair when it is delivered, as some messages do not show that they are resolved
	Receipt   string // of the delivery, once there is one
	InDoubt   bool   // the event may have been delivered, by an earlier holder or, at the end, by this one
	Waits     bool   // the holder does not deliver the event before it has renewed the lease without Waits
}

// Counted returns the lease of an event that a failure policy admits although a limit is full: once Redis answers, the event takes slots.
func (l Lease) Counted() Lease {
	l.slotless = l.Request.Slotless
	return l
}

// evaluated is a set of limits in which the event of a lease may have slots.
type evaluated struct {
	name    string  // inForce or inShadow
	routes  *Routes // limits that evaluated the event; nil: it has no slots in this set
	current *Routes // limits of the set by now; nil: none
}

// evaluatedBy returns the limits in force and the shadow limits. Limits that are not known are today's.
func (l Lease) evaluatedBy(rules *Rules) [2]evaluated {
	by := cmp.Or(l.rules, rules)
	sets := [...]evaluated{{inForce, by.InForce, rules.InForce}, {inShadow, by.InShadow, rules.InShadow}}
	if l.slotless {
		sets[0].routes = nil
	}
	if l.Resolving {
		sets[1].routes = nil
	}
	return sets
}

// route returns the route of the event in the limits that evaluated it. A shadow returns only the slots that it has taken itself.
func (s evaluated) route(request Request) *Route {
	switch {
	case s.routes == nil:
		return nowhere
	case s.name == inShadow:
		return s.routes.Route(request.Category, request.Key)
	}
	return s.current.routeIn(s.routes, request)
}

// following lists the buckets whose slots return when the delivery of the event ends. If the delivery goes on for d, these are the buckets
// that today's limits still have.
func (s evaluated) following(request Request, d time.Duration) []bucket {
	if s.routes == nil || d > 0 && s.current == nil {
		return nil
	}
	before := s.routes.Route(request.Category, request.Key)
	if d == 0 {
		return before.following()
	}
	now := s.current.Route(request.Category, request.Key)
	return slices.DeleteFunc(now.following(), func(b bucket) bool { return before.named(b.name) < 0 })
}

// BatchResult answers a batch.
type BatchResult struct {
	At        int64 // microseconds of the store's clock
	Decisions []Decision
	Pauses    map[string]time.Duration // destinations that take no messages, and for how long still
}

// Settings that both stores share.
type Settings struct {
	Tree      *limits.Tree  // until other limits are adopted
	Shadow    *limits.Tree  // shadow limits, until other limits are adopted; nil: none
	Lease     time.Duration // how long a grant lasts unless it is renewed
	Retention time.Duration // how long delivered and abandoned events are remembered
	PairTTL   time.Duration // how long a pair can be resolved after its newest message or repetition
	Flap      Flap          // which keys are flapping
	Remind    time.Duration // how long after its newest message a repetition of an open event is posted again; 0: never
	Forward   bool          // shadow mode: denied events are leased too, without taking slots
}

func (s Settings) rules() limits.Ruleset { return limits.Ruleset{Tree: s.Tree, Shadow: s.Shadow} }

// micros returns a duration of n microseconds.
func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// tolerance is TOLERANCE of lib/prelude.lua, nonceKept is its NONCE_KEPT.
const (
	tolerance = algorithm.Tolerance
	nonceKept = 10 * time.Second
)
