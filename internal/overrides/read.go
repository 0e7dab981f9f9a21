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
	// readTimeout bounds the reading of all that a bucket holds.
	readTimeout = 10 * time.Second

	// heartbeat is how often the server says that a consumer is alive. The library reports two that are missing.
	heartbeat = time.Second

	// consumerTTL is how long the server keeps a consumer without a subscriber.
	consumerTTL = 5 * time.Second

	// readAhead is how many changes wait to be taken before the library buffers them.
	readAhead = 64
)

// Causes for the end of a reading.
var (
	errGap        = errors.New("a change was lost on the way")
	errMadeAnew   = errors.New("the bucket was made anew")
	errIncomplete = errors.New("not all that it holds arrived in time")
)

// Headers of a change, which every client of NATS reads in this way.
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	operationPurge  = "PURGE"
)

// Snapshot is what a bucket holds at one moment.
type Snapshot struct {
	Generation int64    // when the bucket was created, in Unix milliseconds
	Revision   uint64   // of the newest change up to that moment: a set, a deletion, or one of a key that is ignored; 0 for none
	Entries    []Change // the newest change of each override that is set or lost, ordered by name
	Forged     bool     // the newest message changed no override, since neither a worker nor an operator wrote it
}

// Change is one change of an override.
type Change struct {
	Name     Name
	Value    string // "" if it was deleted
	Deleted  bool
	Adopted  bool // no override was changed: the state was put in force in the place of what Value says
	Revision uint64
	Changed  time.Time // by the server's clock
	By       string    // author, "" if unknown; of an end, who set what ended

	Until time.Time // when the override ends by itself, by the server's clock; zero: never
	Then  string    // value that is set when the override ends; "": none is
	Ended uint64    // revision of the override that ended by itself with this change; 0: somebody made the change

	// Lost means that nobody knows the value: forged messages have pushed all changes of the override out of the bucket.
	Lost bool

	key         string
	foreign     bool // the key names no limit
	purged      bool // deleted, and the key's older changes are no longer stored
	forged      bool // neither a worker nor an operator wrote the message
	overwritten bool // Revision is that of a forged message, all else is of the newest change before it
}

// Load reads the whole state. It holds every change that was confirmed before the call.
func (b *Bucket) Load(ctx context.Context) (Snapshot, error) {
	r, err := b.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return Snapshot{}, b.fail("reading", err)
	}
	defer r.stop()
	return b.newState(r).snapshot(), nil
}

// state is a snapshot that changes with each record.
type state struct {
	generation int64
	revision   uint64
	entries    map[Name]Change // the newest change of each override that is set, lost or overwritten
	changed    time.Time       // of the newest change of an override
	forged     bool            // the newest message is
}

func (b *Bucket) newState(r *reading) *state {
	s := &state{generation: r.info.Created.UnixMilli(), revision: r.revision, entries: make(map[Name]Change)}
	newest := slices.SortedFunc(maps.Values(r.newest()), func(a, b Change) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, change := range newest {
		s.take(b, change)
	}
	return s
}

func (s *state) take(b *Bucket, c Change) {
	s.revision, s.forged = max(s.revision, c.Revision), c.forged || c.overwritten
	if !b.understands(c) {
		return
	}
	if c.forged {
		c = s.entries[c.Name].overwrittenBy(c)
	}
	if c.Changed.After(s.changed) {
		s.changed = c.Changed
	}
	s.entries[c.Name] = c
	if c.Deleted && !c.overwritten {
		delete(s.entries, c.Name)
	}
}

func (s *state) snapshot() Snapshot {
	entries := slices.SortedFunc(maps.Values(s.entries), func(a, b Change) int { return a.Name.Compare(b.Name) })
	entries = slices.DeleteFunc(entries, func(c Change) bool { return c.Deleted })
	return Snapshot{Generation: s.generation, Revision: s.revision, Entries: entries, Forged: s.forged}
}

// reading is what a bucket held, and the changes since then. It is for one goroutine at a time.
type reading struct {
	info     *jetstream.StreamInfo // of the bucket when it was read
	stored   []Change
	revision uint64 // that the stored changes lead to

	arrived  chan arrival
	stop     func()
	prefix   string
	received uint64 // messages so far
	last     uint64 // revision so far
}

// arrival is a message, or the error that ends the reading.
type arrival struct {
	message jetstream.Msg
	err     error
}

// read returns what the bucket holds, all changes or the last one of each key, and the changes since then.
func (b *Bucket) read(ctx context.Context, policy jetstream.DeliverPolicy) (*reading, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errIncomplete)
	defer cancel()
	stream, err := b.look(ctx)
	if err != nil {
		return nil, err
	}
	r, pending, err := b.consume(ctx, policy)
	if err != nil {
		return nil, err
	}
	if err := b.catchUp(ctx, r, stream, pending); err != nil {
		r.stop()
		return nil, err
	}
	if policy == jetstream.DeliverLastPerSubjectPolicy && slices.ContainsFunc(r.stored, Change.isForged) {
		r.stop()
		return b.read(ctx, jetstream.DeliverAllPolicy) // the last good changes stand before the forged ones
	}
	return r, nil
}

// consume starts to receive changes, and returns how many the consumer will deliver at once. The server deletes the consumer
// when its subscriber is gone.
func (b *Bucket) consume(ctx context.Context, policy jetstream.DeliverPolicy) (_ *reading, pending uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	subjects := b.prefix() + ">"
	consumer, err := b.js.CreatePushConsumer(ctx, b.stream(), jetstream.ConsumerConfig{
		DeliverSubject:    b.js.Conn().NewInbox(),
		DeliverPolicy:     policy,
		FilterSubject:     subjects,
		AckPolicy:         jetstream.AckNonePolicy,
		IdleHeartbeat:     heartbeat,
		InactiveThreshold: consumerTTL,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return nil, 0, b.explain(err, b.right("CONSUMER.CREATE")+".*."+subjects)
	}
	r := &reading{prefix: b.prefix(), arrived: make(chan arrival, readAhead)}
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

// catchUp receives what was stored when the consumer was created, and then what the leader had after that: the consumer may
// live on a replica that lags behind the leader.
func (b *Bucket) catchUp(ctx context.Context, r *reading, stream jetstream.Stream, pending uint64) error {
	created := stream.CachedInfo().Created
	// The consumer delivers each change that is stored after its creation, so the leader is asked only now.
	var err error
	if r.info, err = b.ask(ctx, stream); err != nil {
		return err
	}
	if !r.info.Created.Equal(created) {
		return errMadeAnew
	}
	newest := newestStored(r.info.State)
	for r.received < pending || r.last < newest {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case a := <-r.arrived:
			change, err := r.change(a)
			if err != nil {
				return err
			}
			r.stored = append(r.stored, change)
		}
	}
	r.revision = max(r.info.State.LastSeq, r.last)
	return nil
}

// ask has the leader tell the state of the stream, with the revisions that were removed.
func (b *Bucket) ask(ctx context.Context, stream jetstream.Stream) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := stream.Info(ctx, jetstream.WithDeletedDetails(true))
	return info, b.found(err)
}

// newestStored is the revision of the newest change that the stream still holds, or 0. Changes after it were removed.
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

// change reads a message. The library does not notice a message that was lost, so the numbers of messages are compared.
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
	r.last = meta.Sequence.Stream
	key, header := strings.TrimPrefix(a.message.Subject(), r.prefix), a.message.Headers()
	name, err := ParseKey(key)
	operation := header.Get(headerOperation)
	// A marker with a reason is what the server itself leaves in the place of a key that it removed.
	marker := header.Get(jetstream.MarkerReasonHeader)
	purged := operation == operationPurge || marker != ""
	until, _ := time.Parse(time.RFC3339Nano, header.Get(headerUntil)) // no end where the header is absent or no time
	ended, _ := strconv.ParseUint(header.Get(headerEnded), 10, 64)
	return Change{
		Name:     name,
		Value:    string(a.message.Data()),
		Deleted:  purged || operation == operationDelete,
		Adopted:  key == keyAdopted,
		Revision: meta.Sequence.Stream,
		Changed:  meta.Timestamp,
		By:       cleanName(header.Get(headerBy)),
		Until:    until,
		Then:     header.Get(headerThen),
		Ended:    ended,
		key:      key,
		foreign:  err != nil,
		purged:   purged,
		forged:   !trusted.IsMarked(header) && operation == "" && marker == "",
	}, nil
}
