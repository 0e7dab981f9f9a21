// Package streamscan reads what a JetStream stream holds without taking anything from it.
//
// It gets each message by its sequence, since a work queue allows no second consumer: nothing is acknowledged or
// delivered again, and the stream's consumers have neither more nor less to do afterwards. Each message is a request, and
// most of its time is spent waiting, so many pieces of the stream are read at once.
package streamscan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A stream is read in so many pieces, so many of them at once.
const (
	pieces       = 256
	piecesAtOnce = 16
	timeout      = 5 * time.Second // of one request
)

// progressEvery is how many messages lie between two calls of a progress.
const progressEvery = 1024

// Read hands each message that a stream holds now to take, and returns what take keeps, in the order of the messages'
// sequences. It calls take from several goroutines at once, and progress, in messages, from one at a time.
func Read[T any](
	ctx context.Context, js jetstream.JetStream, name string,
	take func(*jetstream.RawStreamMsg) (kept T, keep bool), progress func(done, total int64),
) ([]T, error) {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stream, err := js.Stream(asking, name)
	if err != nil {
		return nil, fmt.Errorf("looking for stream %q: %w", name, cmp.Or(context.Cause(ctx), err))
	}
	state := stream.CachedInfo().State
	r := &reader[T]{
		stream: stream, name: name, take: take, progress: progress,
		total: int64(state.Msgs), //nolint:gosec // a count of messages on a disk
	}
	if state.Msgs == 0 {
		return nil, nil
	}
	return r.read(ctx, state.FirstSeq, state.LastSeq)
}

// reader reads the pieces of a stream.
type reader[T any] struct {
	stream jetstream.Stream
	name   string
	take   func(*jetstream.RawStreamMsg) (T, bool)

	mu          sync.Mutex // guards what follows, and calls of progress
	progress    func(done, total int64)
	done, total int64
}

// read returns what is kept in the order of the sequences.
func (r *reader[T]) read(ctx context.Context, first, last uint64) ([]T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		size    = (last-first)/pieces + 1
		parts   = make([][]T, pieces)
		readers sync.WaitGroup
		next    = make(chan uint64)
	)
	for range piecesAtOnce {
		readers.Go(func() {
			for i := range next {
				from := first + i*size
				part, err := r.readPiece(ctx, from, min(from+size-1, last))
				if err != nil {
					cancel(err)
				}
				parts[i] = part
			}
		})
	}
	for i := uint64(0); i < pieces && first+i*size <= last; i++ {
		next <- i
	}
	close(next)
	readers.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return slices.Concat(parts...), nil
}

// readPiece reads the messages whose sequences are from..to. There may be gaps.
func (r *reader[T]) readPiece(ctx context.Context, from, to uint64) ([]T, error) {
	var part []T
	for from <= to {
		m, err := r.message(ctx, from)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return part, nil
		}
		if err != nil {
			return nil, fmt.Errorf("getting message %d of stream %q: %w", from, r.name, cmp.Or(context.Cause(ctx), err))
		}
		if m.Sequence > to {
			return part, nil
		}
		from = m.Sequence + 1
		r.count()
		if kept, keep := r.take(m); keep {
			part = append(part, kept)
		}
	}
	return part, nil
}

// message is the first one whose sequence is not below a number.
func (r *reader[T]) message(ctx context.Context, sequence uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return r.stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(">"))
}

func (r *reader[T]) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done++; r.done%progressEvery == 0 {
		r.progress(r.done, r.total)
	}
}
