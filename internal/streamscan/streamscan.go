// Package streamscan reads what a JetStream stream holds without taking anything from it.
//
// It gets each message by its sequence, since a work queue allows no second consumer. It acknowledges nothing, and does not affect the
// stream's consumers. Each message is a request that mostly waits, so Read reads many pieces of the stream concurrently.
package streamscan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	pieces       = 256             // of a stream
	piecesAtOnce = 16              // read concurrently
	timeout      = 5 * time.Second // of one request
)

// progressEvery is the number of messages between two calls of progress.
const progressEvery = 1024

// Read calls take for each message that a stream holds now, and returns the kept values in the order of the sequences. It calls take
// concurrently. It calls progress from one goroutine at a time, with numbers of messages.
func Read[T any](
	ctx context.Context, js jetstream.JetStream, name string,
	take func(*jetstream.RawStreamMsg) (kept T, keep bool), progress func(done, total int64),
) ([]T, error) {
	return ReadSubject(ctx, js, Place{Stream: name, Subject: ">"}, take, progress)
}

// Place is the messages of a stream on the subjects that a pattern matches.
type Place struct{ Stream, Subject string }

// ReadSubject is [Read] for the messages of a place. The total of progress is that of the stream.
func ReadSubject[T any](
	ctx context.Context, js jetstream.JetStream, of Place,
	take func(*jetstream.RawStreamMsg) (kept T, keep bool), progress func(done, total int64),
) ([]T, error) {
	var parts [pieces][]T // a piece has one reader
	err := read(ctx, js, of, func(piece uint64, m *jetstream.RawStreamMsg) {
		if kept, keep := take(m); keep {
			parts[piece] = append(parts[piece], kept)
		}
	}, progress)
	if err != nil {
		return nil, err
	}
	return slices.Concat(parts[:]...), nil
}

// read calls take for each message of a place, with the number of its piece.
func read(
	ctx context.Context, js jetstream.JetStream, of Place, take func(piece uint64, m *jetstream.RawStreamMsg), progress func(done, total int64),
) error {
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stream, err := js.Stream(asking, of.Stream)
	if err != nil {
		return fmt.Errorf("looking for stream %q: %w", of.Stream, cmp.Or(context.Cause(ctx), err))
	}
	state := stream.CachedInfo().State
	r := &reader{
		stream: stream, of: of, take: take, progress: progress,
		total: int64(state.Msgs), //nolint:gosec // a count of messages on a disk
	}
	if state.Msgs == 0 {
		return nil
	}
	return r.read(ctx, state.FirstSeq, state.LastSeq)
}

// reader reads the pieces of a stream.
type reader struct {
	stream jetstream.Stream
	of     Place
	take   func(piece uint64, m *jetstream.RawStreamMsg)

	mu          sync.Mutex // guards the fields below and calls of progress
	progress    func(done, total int64)
	done, total int64
}

func (r *reader) read(ctx context.Context, first, last uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		size    = (last-first)/pieces + 1
		readers sync.WaitGroup
		next    = make(chan uint64)
	)
	for range piecesAtOnce {
		readers.Go(func() {
			for i := range next {
				from := first + i*size
				if err := r.readPiece(ctx, i, from, min(from+size-1, last)); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := uint64(0); i < pieces && first+i*size <= last; i++ {
		next <- i
	}
	close(next)
	readers.Wait()
	return context.Cause(ctx)
}

// readPiece reads the messages with the sequences from..to. There may be gaps.
func (r *reader) readPiece(ctx context.Context, piece, from, to uint64) error {
	for m, err := range From(ctx, r.stream, r.of.Subject, from) {
		if err != nil {
			return fmt.Errorf("reading stream %q from message %d on: %w", r.of.Stream, from, cmp.Or(context.Cause(ctx), err))
		}
		if m.Sequence > to {
			break
		}
		r.count()
		r.take(piece, m)
	}
	return nil
}

// From gets the messages that a stream holds on a subject, from a sequence on, one after the other. It ends after an error.
func From(ctx context.Context, stream jetstream.Stream, subject string, sequence uint64) iter.Seq2[*jetstream.RawStreamMsg, error] {
	get := func() (*jetstream.RawStreamMsg, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(subject))
	}
	return func(yield func(*jetstream.RawStreamMsg, error) bool) {
		for {
			m, err := get()
			if errors.Is(err, jetstream.ErrMsgNotFound) || !yield(m, err) || err != nil {
				return
			}
			sequence = m.Sequence + 1
		}
	}
}

func (r *reader) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done++; r.done%progressEvery == 0 {
		r.progress(r.done, r.total)
	}
}
