package overrides

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
)

// The classes of errors that a caller may act on.
var (
	ErrNoBucket        = errors.New("the limits bucket is absent")
	ErrNotSet          = errors.New("no such override is set")
	ErrConflict        = errors.New("someone else changed it in the meantime")
	ErrUnknownRevision = errors.New("revision is not known")
)

// Options say which bucket to use.
type Options struct {
	Name      string // such as notifier-limits
	Provision bool   // create the bucket where it is absent; one that exists is never altered
	Replicas  int    // of the bucket where it is created; [replicas.Auto]: what the cluster allows
	By        string // who makes the changes, for the history; "" if that is not known
	Logger    *slog.Logger
}

// requestTimeout bounds one request to the server. One that is not permitted takes that long.
const requestTimeout = 5 * time.Second

// Bucket is a bucket of overrides. Its methods may run at once.
type Bucket struct {
	js jetstream.JetStream
	o  Options

	mu      sync.Mutex
	noted   int64             // the generation that was remarked on
	foreign map[string]uint64 // key that is no limit's -> its revision when that was logged
}

// Open finds the bucket, or creates it where the options allow that. The error is an [ErrNoBucket] if they do not.
func Open(ctx context.Context, js jetstream.JetStream, o Options) (*Bucket, error) {
	b := newBucket(js, o)
	if err := b.find(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func newBucket(js jetstream.JetStream, o Options) *Bucket {
	return &Bucket{js: js, o: o, foreign: make(map[string]uint64)}
}

// The stream behind a bucket, and the subjects of its keys, are what every client of NATS takes them to be.
func (b *Bucket) stream() string { return "KV_" + b.o.Name }
func (b *Bucket) prefix() string { return "$KV." + b.o.Name + "." }

// right is the subject of a request to JetStream about that stream.
func (b *Bucket) right(request string) string { return "$JS.API." + request + "." + b.stream() }

func (b *Bucket) fail(doing string, err error) error {
	return fmt.Errorf("%s bucket %q: %w", doing, b.o.Name, err)
}

// find makes sure that the bucket is there.
func (b *Bucket) find(ctx context.Context) error {
	found, err := b.status(ctx)
	if errors.Is(err, ErrNoBucket) && b.o.Provision {
		if err := b.create(ctx); err != nil {
			return b.fail("creating", err)
		}
		found, err = b.status(ctx)
	}
	if err != nil {
		return b.fail("looking for", err)
	}
	b.remark(found)
	return nil
}

func (b *Bucket) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := replicas.Create(ctx, b.o.Replicas, func(count int) error {
		_, err := b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:      b.o.Name,
			Description: "Live overrides of the notifier's limits",
			History:     jetstream.KeyValueMaxHistory,
			Storage:     jetstream.FileStorage,
			Replicas:    count,
		})
		return err
	})
	if errors.Is(err, jetstream.ErrBucketExists) { // another instance was faster
		return nil
	}
	if err != nil {
		return b.explain(err, "$JS.API.INFO", b.right("STREAM.CREATE"))
	}
	b.o.Logger.Info("limits bucket is created", "bucket", b.o.Name)
	return nil
}

// status is the state of the stream behind the bucket, as its leader knows it.
type status struct {
	stream  jetstream.Stream
	created time.Time
	last    uint64 // the revision of the newest change, whether it is still stored or not
	history int64  // how many changes of each key are kept
	expiry  time.Duration
}

func (s status) generation() int64 { return s.created.UnixMilli() }

// status asks for it. The error is an [ErrNoBucket] if there is no bucket.
func (b *Bucket) status(ctx context.Context) (status, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.stream())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return status{}, ErrNoBucket
	case err != nil:
		return status{}, b.explain(err, b.right("STREAM.INFO"))
	}
	info := stream.CachedInfo()
	if info.Config.MaxMsgsPerSubject < 1 {
		return status{}, jetstream.ErrBadBucket
	}
	return status{
		stream:  stream,
		created: info.Created,
		last:    info.State.LastSeq,
		history: info.Config.MaxMsgsPerSubject,
		expiry:  info.Config.MaxAge,
	}, nil
}

// explain adds to a timeout what may be behind it: the server leaves a request that is not permitted without an answer.
func (b *Bucket) explain(err error, rights ...string) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
		return err
	case !b.js.Conn().IsConnected():
		return fmt.Errorf("%w (nats is not connected)", err)
	default:
		return fmt.Errorf("%w (no answer: nats is not well, or the right to publish %s is missing)",
			err, strings.Join(rights, " and "))
	}
}

// remark logs what an operator should know of a bucket that was made by someone else, once for each such bucket.
func (b *Bucket) remark(found status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.noted == found.generation() {
		return
	}
	b.noted = found.generation()
	clear(b.foreign)
	if found.history < jetstream.KeyValueMaxHistory {
		b.o.Logger.Warn("limits bucket keeps few changes of each limit, so a rollback does not reach far",
			"bucket", b.o.Name, "history", found.history, "expected", jetstream.KeyValueMaxHistory)
	}
	if found.expiry > 0 {
		b.o.Logger.Warn("limits bucket expires its keys, which workers notice only with the next change",
			"bucket", b.o.Name, "ttl", found.expiry)
	}
}

// name reads a key. One that is no limit's is logged once for each of its revisions; a deleted one says nothing.
func (b *Bucket) name(r record) (Name, bool) {
	name, err := ParseKey(r.key)
	if err == nil {
		return name, true
	}
	if r.key == keyAdopted {
		return Name{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !r.deleted && b.foreign[r.key] < r.revision {
		b.foreign[r.key] = r.revision
		b.o.Logger.Warn("limits bucket holds a key that is not the name of a limit, it is ignored",
			"bucket", b.o.Name, "key", r.key, "revision", r.revision)
	}
	return Name{}, false
}
