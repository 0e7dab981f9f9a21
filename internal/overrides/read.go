package overrides

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// readTimeout bounds the reading of all that a bucket holds.
	readTimeout = 10 * time.Second

	// heartbeat is how often the server says that there is no change, and silence how long it may say nothing at all.
	heartbeat = time.Second
	silence   = 3 * time.Second

	// forgetAfter is how long the server keeps a consumer that nobody listens to any more.
	forgetAfter = 5 * time.Second
)

// What ends a reading.
var (
	errSilent     = errors.New("the server has gone silent")
	errGap        = errors.New("a change was lost on the way")
	errMadeAnew   = errors.New("the bucket was made anew")
	errIncomplete = errors.New("not all that it holds arrived in time")
)

// Snapshot is what a bucket holds at one moment.
type Snapshot struct {
	Generation int64   // when the bucket was created, in Unix milliseconds
	Revision   uint64  // of the newest change up to that moment: a set, a deletion, or one of a key that is ignored; 0 for none
	Entries    []Entry // ordered by name
}

// Entry is an override that is set.
type Entry struct {
	Name     Name
	Value    string
	Revision uint64
	Changed  time.Time // by the server's clock
	By       string    // who set it, "" if that is not known
}

// Load reads the whole state. It holds every change that was confirmed before the call.
func (b *Bucket) Load(ctx context.Context) (Snapshot, error) {
	r, records, err := b.read(ctx, jetstream.DeliverLastPerSubjectPolicy)
	if err != nil {
		return Snapshot{}, b.fail("reading", err)
	}
	defer r.stop()
	s := newState(r.start)
	for _, record := range records {
		s.take(b, record)
	}
	return s.snapshot(), nil
}

// state is a snapshot that moves on with each change.
type state struct {
	generation int64
	revision   uint64
	entries    map[Name]Entry
	changed    time.Time // when an override was set or unset last
}

// newState is empty, at the revision at which all records of the reading's start are taken.
func newState(start status) *state {
	return &state{generation: start.generation(), revision: start.last, entries: make(map[Name]Entry)}
}

func (s *state) take(b *Bucket, r record) {
	s.revision = max(s.revision, r.revision)
	name, ok := b.name(r)
	switch {
	case !ok:
	case r.deleted:
		s.changed = latest(s.changed, r.changed)
		delete(s.entries, name)
	default:
		s.changed = latest(s.changed, r.changed)
		s.entries[name] = Entry{Name: name, Value: r.value, Revision: r.revision, Changed: r.changed, By: r.by}
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *state) snapshot() Snapshot {
	entries := slices.SortedFunc(maps.Values(s.entries), func(a, b Entry) int { return a.Name.Compare(b.Name) })
	return Snapshot{Generation: s.generation, Revision: s.revision, Entries: entries}
}

// record is one message of the stream behind a bucket: a change of one key.
type record struct {
	key      string
	value    string
	deleted  bool
	purged   bool // deleted, and the key's older changes are no longer stored
	revision uint64
	changed  time.Time
	by       string
}

// reading delivers a bucket's changes in their order. It is for one goroutine at a time.
type reading struct {
	subscription *nats.Subscription
	prefix       string
	start        status // of the bucket when reading began; last is the revision at which the records read then stand
	received     uint64
	newest       uint64 // revision received so far
}

func (r *reading) stop() { _ = r.subscription.Unsubscribe() }

// read returns what the bucket holds, all of it or the last change of each key, and a reading that goes on from there.
func (b *Bucket) read(ctx context.Context, policy jetstream.DeliverPolicy) (_ *reading, _ []record, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readTimeout, errIncomplete)
	defer cancel()
	before, err := b.status(ctx)
	if err != nil {
		return nil, nil, err
	}
	inbox := b.js.Conn().NewInbox()
	subscription, err := b.js.Conn().SubscribeSync(inbox)
	if err != nil {
		return nil, nil, err
	}
	r := &reading{subscription: subscription, prefix: b.prefix()}
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	stored, err := b.consume(ctx, inbox, policy)
	if err != nil {
		return nil, nil, err
	}
	// Only now that the consumer is there, since what is stored before it was asked for is to be among what it delivers.
	if r.start, err = b.status(ctx); err != nil {
		return nil, nil, err
	}
	if !r.start.created.Equal(before.created) {
		return nil, nil, errMadeAnew
	}
	records, err := b.catchUp(ctx, r, stored)
	if err != nil {
		return nil, nil, err
	}
	return r, records, nil
}

// consume creates a consumer that delivers to the inbox, and returns how many messages it will deliver at once. The
// server deletes it when nobody listens there.
func (b *Bucket) consume(ctx context.Context, inbox string, policy jetstream.DeliverPolicy) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	subjects := b.prefix() + ">"
	consumer, err := b.js.CreatePushConsumer(ctx, b.stream(), jetstream.ConsumerConfig{
		DeliverSubject:    inbox,
		DeliverPolicy:     policy,
		FilterSubject:     subjects,
		AckPolicy:         jetstream.AckNonePolicy,
		IdleHeartbeat:     heartbeat,
		InactiveThreshold: forgetAfter,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return 0, b.explain(err, b.right("CONSUMER.CREATE")+".*."+subjects)
	}
	return consumer.CachedInfo().NumPending, nil
}

// catchUp receives what was stored when the consumer was created, and goes on to what the stream's leader had after that:
// the consumer may live on a server that lags behind the leader.
func (b *Bucket) catchUp(ctx context.Context, r *reading, stored uint64) ([]record, error) {
	var records []record
	target, checked := r.start.last, false
	for r.received < stored || r.newest < target {
		if r.received >= stored && !checked {
			// The newest message may have been removed, and will not come.
			var err error
			if target, err = b.newestStored(ctx, r.start); err != nil {
				return nil, err
			}
			checked = true
			continue
		}
		record, err := r.next(ctx)
		if err != nil {
			return nil, err
		}
		if record != nil {
			records = append(records, *record)
		}
	}
	r.start.last = max(r.start.last, r.newest)
	return records, nil
}

// newestStored is the revision of the newest change that the stream still holds, or 0.
func (b *Bucket) newestStored(ctx context.Context, of status) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	info, err := of.stream.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return 0, b.explain(err, b.right("STREAM.INFO"))
	}
	if info.State.Msgs == 0 {
		return 0, nil
	}
	newest := info.State.LastSeq
	for slices.Contains(info.State.Deleted, newest) {
		newest--
	}
	return newest, nil
}

// next waits for the next change. It returns nil when the server says that there is none yet.
func (r *reading) next(ctx context.Context) (*record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, silence, errSilent)
	defer cancel()
	message, err := r.subscription.NextMsgWithContext(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("waiting for changes: %w", err)
	case message.Reply == "":
		return nil, r.idle(message)
	}
	return r.record(message)
}

// idle reads what is no stored message but a word of the server: that it has sent so many, and has no more.
func (r *reading) idle(message *nats.Msg) error {
	if status := message.Header.Get("Status"); status != "100" {
		return fmt.Errorf("waiting for changes: the server says %s %s", status, message.Header.Get("Description"))
	}
	sent, err := strconv.ParseUint(message.Header.Get("Nats-Last-Consumer"), 10, 64)
	if err == nil && sent != r.received {
		return errGap
	}
	return nil
}

func (r *reading) record(message *nats.Msg) (*record, error) {
	meta, err := message.Metadata()
	if err != nil {
		return nil, fmt.Errorf("reading a change's metadata: %w", err)
	}
	r.received++
	if meta.Sequence.Consumer != r.received {
		return nil, errGap
	}
	r.newest = meta.Sequence.Stream
	// A marker with a reason is what the server itself leaves in the place of a key that it removed.
	operation, reason := message.Header.Get("KV-Operation"), message.Header.Get(jetstream.MarkerReasonHeader)
	return &record{
		key:      message.Subject[len(r.prefix):],
		value:    string(message.Data),
		deleted:  operation == "DEL" || operation == "PURGE" || reason != "",
		purged:   operation == "PURGE" || reason != "",
		revision: meta.Sequence.Stream,
		changed:  meta.Timestamp,
		by:       cleanName(message.Header.Get(headerBy)),
	}, nil
}
