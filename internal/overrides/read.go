package overrides

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

const (
	// readTimeout bounds the reading of a whole bucket.
	readTimeout = 10 * time.Second

	// heartbeat is the interval of the server's heartbeats. The library reports two missing heartbeats.
	heartbeat = time.Second

	// consumerTTL is how long the server keeps a consumer without a subscriber.
	consumerTTL = 5 * time.Second

	// readAhead is the number of changes in the channel before the library buffers further changes.
	readAhead = 64
)

// Causes for the end of a reading.
var (
	errGap        = errors.New("a change was lost in transit")
	errMadeAnew   = errors.New("the bucket was recreated")
	errIncomplete = errors.New("its contents did not arrive in time")
)

// Headers of a change, as defined by NATS' key-value clients.
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	operationPurge  = "PURGE"
)

// Snapshot is what a bucket holds at one moment.
type Snapshot struct {
	Generation int64    // when the bucket was created, in Unix milliseconds
	Revision   uint64   // of the newest message, including deletions and ignored keys; 0: there is none
	Entries    []Change // the newest change of each set or lost override of a limit, ordered by name
	Mutes      []Change // the mutes in force and the recurring mutes, ordered by name
	Forged     bool     // the newest message is forged, so it changed no override

	changed time.Time // time of the newest change of an override

	// Load sets these fields. A watcher leaves them empty.
	Read   time.Time         // by the server's clock
	newest map[string]Change // the newest change of each key, also of deleted overrides
}

// Change is one change of an override.
type Change struct {
	Name     Name
	Value    string // "" if it was deleted
	Deleted  bool
	Revision uint64
	Changed  time.Time // by the server's clock
	By       string    // author, "" if unknown; of an end, the author of the expired override

	Until time.Time // when the override expires, by the server's clock; zero: never
	Then  string    // value after the end; "": unset
	Ended uint64    // revision of the override that expired with this change; 0: an operator made the change

	Muting Muting // of a mute; its Value is the reason

	// Lost means that the value is unknown: forged messages have pushed all changes of the override out of the bucket.
	Lost bool

	stored stored
}

// Muting is what only a mute has.
type Muting struct {
	Every string // schedule of a recurring mute; "" for any other mute
	Spare string // severity that it does not mute; "" for none
}

// Adopted reports whether the change is a note that changes no override: this state replaced the newer limits that Value describes.
func (c Change) Adopted() bool { return c.stored.key == keyAdopted }

type stored struct {
	key         string
	foreign     bool // the key names no limit
	purged      bool // deleted together with the key's older changes
	forged      bool // neither a worker nor an operator wrote the message
	overwritten bool // Revision belongs to a forged message, all other fields to the newest change before it
}

// Load reads the whole state, with every change that was confirmed before the call.
func (b *Bucket) Load(ctx context.Context) (Snapshot, error) {
	r, err := b.source.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return Snapshot{}, b.source.fail("reading", err)
	}
	defer r.stop()
	s := b.newState(r).snapshot()
	s.Read, s.newest = r.read, r.after(r.last)
	return s, nil
}

// state is a snapshot under construction, without its Entries and Mutes.
type state struct {
	Snapshot
	entries map[Name]Change // the newest change of each override that is set, lost or overwritten
}

func (b *Bucket) newState(r *reading) *state {
	s := &state{Snapshot: Snapshot{Generation: r.created.UnixMilli(), Revision: r.last}, entries: make(map[Name]Change)}
	newest := slices.SortedFunc(maps.Values(r.after(r.last)), func(a, b Change) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, change := range newest {
		s.take(b, change)
	}
	return s
}

func (s *state) take(b *Bucket, c Change) {
	s.Revision, s.Forged = max(s.Revision, c.Revision), c.stored.forged || c.stored.overwritten
	if !b.understands(c) {
		return
	}
	if c.stored.forged {
		c = s.entries[c.Name].overwrittenBy(c)
	}
	if c.Changed.After(s.changed) {
		s.changed = c.Changed
	}
	s.entries[c.Name] = c
	if c.Deleted && !c.stored.overwritten && c.Name.Rule == "" { // begin looks at the ends of recurring mutes
		delete(s.entries, c.Name)
	}
}

func (s *state) snapshot() Snapshot {
	entries := slices.SortedFunc(maps.Values(s.entries), func(a, b Change) int { return a.Name.Compare(b.Name) })
	entries = slices.DeleteFunc(entries, func(c Change) bool { return c.Deleted })
	mutes := slices.IndexFunc(entries, func(c Change) bool { return c.Name.Kind != Limit })
	if mutes < 0 {
		mutes = len(entries)
	}
	next := s.Snapshot
	next.Entries, next.Mutes = entries[:mutes:mutes], entries[mutes:]
	return next
}

// reading holds the contents of a bucket and receives the changes since then. It is not safe for concurrent use.
type reading struct {
	history
	created time.Time // when the bucket was created

	arrived  chan arrival
	stop     func()
	prefix   string
	received uint64 // messages so far
	newest   uint64 // revision of the newest of these messages
}

// arrival is a message. If err is set, it ends the reading.
type arrival struct {
	message jetstream.Msg
	err     error
}

// read reads the bucket, depending on the policy all changes or the last change of each key, and continues to receive changes.
func (s source) read(ctx context.Context, policy jetstream.DeliverPolicy) (*reading, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errIncomplete)
	defer cancel()
	stream, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	r, pending, err := s.consume(ctx, policy)
	if err != nil {
		return nil, err
	}
	if err := s.catchUp(ctx, r, stream, pending); err != nil {
		r.stop()
		return nil, err
	}
	if policy == jetstream.DeliverLastPerSubjectPolicy && slices.ContainsFunc(r.changes, func(c Change) bool { return c.stored.forged }) {
		r.stop()
		return s.read(ctx, jetstream.DeliverAllPolicy) // the last good changes stand before the forged ones
	}
	return r, nil
}

// consume starts to receive changes, and returns how many are stored already. The server deletes a consumer without a subscriber.
func (s source) consume(ctx context.Context, policy jetstream.DeliverPolicy) (_ *reading, pending uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	subjects := s.prefix() + ">"
	consumer, err := s.js.CreatePushConsumer(ctx, s.stream(), jetstream.ConsumerConfig{
		DeliverSubject:    s.js.Conn().NewInbox(),
		DeliverPolicy:     policy,
		FilterSubject:     subjects,
		AckPolicy:         jetstream.AckNonePolicy,
		IdleHeartbeat:     heartbeat,
		InactiveThreshold: consumerTTL,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return nil, 0, s.explain(err, s.right("CONSUMER.CREATE")+".*."+subjects)
	}
	r := &reading{prefix: s.prefix(), arrived: make(chan arrival, readAhead)}
	stopped := make(chan struct{})
	pass := func(a arrival) {
		select {
		case r.arrived <- a:
		case <-stopped:
		}
	}
	consuming, err := consumer.Consume(
		func(m jetstream.Msg) { pass(arrival{message: m}) },
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) { pass(arrival{err: err}) }))
	if err != nil {
		return nil, 0, err
	}
	r.stop = func() {
		close(stopped)
		consuming.Stop()
	}
	return r, consumer.CachedInfo().NumPending, nil
}

// catchUp receives the changes that were stored when the consumer was created, and then the changes that the leader had at that time: the
// consumer may live on a replica that lags behind the leader.
func (s source) catchUp(ctx context.Context, r *reading, stream jetstream.Stream, pending uint64) error {
	r.created = stream.CachedInfo().Created
	// Ask the leader after creating the consumer, which delivers every later change.
	info, err := s.ask(ctx, stream)
	if err != nil {
		return err
	}
	if !info.Created.Equal(r.created) {
		return errMadeAnew
	}
	r.limit, r.read = int(info.Config.MaxMsgsPerSubject), info.TimeStamp
	stored := newestStored(info.State)
	for r.received < pending || r.newest < stored {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-r.arrived:
			change, err := r.change(a)
			if err != nil {
				return err
			}
			r.changes = append(r.changes, change)
		}
	}
	r.last = max(info.State.LastSeq, r.newest)
	return nil
}

// ask returns the leader's state of the stream, with the removed revisions.
func (s source) ask(ctx context.Context, stream jetstream.Stream) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	return info, s.found(err)
}

// newestStored returns the revision of the newest change that the stream still holds; 0: it holds none. Later changes were removed.
func newestStored(state jetstream.StreamState) uint64 {
	if state.Msgs == 0 {
		return 0
	}
	newest := state.LastSeq
	for slices.Contains(state.Deleted, newest) {
		newest--
	}
	return newest
}

// change decodes a message. The library does not notice lost messages, so change compares their numbers.
func (r *reading) change(a arrival) (Change, error) {
	if a.err != nil {
		return Change{}, fmt.Errorf("waiting for changes: %w", a.err)
	}
	meta, err := a.message.Metadata()
	if err != nil {
		return Change{}, fmt.Errorf("reading a change's metadata: %w", err)
	}
	r.received++
	if meta.Sequence.Consumer != r.received {
		return Change{}, errGap
	}
	r.newest = meta.Sequence.Stream
	key, header := strings.TrimPrefix(a.message.Subject(), r.prefix), a.message.Headers()
	name, err := ParseKey(key)
	operation := header.Get(headerOperation)
	// The server replaces a key that it removes by a marker with a reason.
	marker := header.Get(jetstream.MarkerReasonHeader)
	purged := operation == operationPurge || marker != ""
	until, _ := time.Parse(time.RFC3339Nano, header.Get(headerUntil)) // zero if the header is absent or invalid
	ended, _ := strconv.ParseUint(header.Get(headerEnded), 10, 64)
	return Change{
		Name:     name,
		Value:    string(a.message.Data()),
		Deleted:  purged || operation == operationDelete,
		Revision: meta.Sequence.Stream,
		Changed:  meta.Timestamp,
		By:       cleanName(header.Get(headerBy)),
		Until:    until,
		Then:     header.Get(headerThen),
		Ended:    ended,
		Muting:   Muting{Every: header.Get(headerEvery), Spare: header.Get(headerSpare)},
		stored: stored{
			key: key, foreign: err != nil, purged: purged,
			forged: !trusted.IsMarked(header) && operation == "" && marker == "",
		},
	}, nil
}
