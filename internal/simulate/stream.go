package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// A stream is read in so many pieces, so many of them at once: each message is a request, and most of its time is spent
// waiting.
const (
	pieces        = 256
	piecesAtOnce  = 16
	streamTimeout = 5 * time.Second // of one request
)

// ReadStream reads the events that a stream holds now, at the times at which JetStream stored them. It gets each
// message by its sequence, since a work queue allows no second consumer: nothing is taken from the stream, acknowledged
// or delivered again. Messages outside the decoder's subjects are left out. Progress is in messages.
func ReadStream(
	ctx context.Context, js jetstream.JetStream, name string, decoder event.Decoder, progress Progress,
) (*History, error) {
	asking, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	stream, err := js.Stream(asking, name)
	if err != nil {
		return nil, fmt.Errorf("looking for stream %q: %w", name, cmp.Or(context.Cause(ctx), err))
	}
	info := stream.CachedInfo()
	r := &streamReader{
		stream: stream, name: name, decoder: decoder, progress: progress,
		total: int64(info.State.Msgs), //nolint:gosec // a count of messages on a disk
	}
	if info.State.Msgs == 0 {
		return &History{}, nil
	}
	parts, err := r.read(ctx, info.State.FirstSeq, info.State.LastSeq)
	if err != nil {
		return nil, err
	}
	h := &History{}
	for _, part := range parts {
		h.events = slices.Grow(h.events, len(part))
		for _, m := range part {
			err := m.err
			if err == nil {
				err = h.add(m.stored, m.event)
			}
			if err != nil {
				h.reject(m.sequence, err)
			}
		}
	}
	return h, nil
}

// streamMessage is a decoded message, without what a replay does not need.
type streamMessage struct {
	sequence uint64
	stored   time.Time
	event    replayed
	err      error // why it is no event
}

// streamReader reads the pieces of a stream.
type streamReader struct {
	stream  jetstream.Stream
	name    string
	decoder event.Decoder

	mu          sync.Mutex // guards what follows, and calls of progress
	progress    Progress
	done, total int64
}

// read returns the messages in the order of their sequences, a slice for each piece.
func (r *streamReader) read(ctx context.Context, first, last uint64) ([][]streamMessage, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		size    = (last-first)/pieces + 1
		parts   = make([][]streamMessage, pieces)
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
	return parts, context.Cause(ctx)
}

// readPiece reads the messages whose sequences are from..to. There may be gaps.
func (r *streamReader) readPiece(ctx context.Context, from, to uint64) ([]streamMessage, error) {
	var part []streamMessage
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
		if !r.isEvent(m.Subject) {
			continue
		}
		e, err := r.decoder.Decode(event.Message{
			Subject: m.Subject, Header: m.Header, Data: m.Data, Stream: r.name, Sequence: m.Sequence,
		})
		part = append(part, streamMessage{sequence: m.Sequence, stored: m.Time, event: replayedOf(e), err: err})
	}
	return part, nil
}

// message is the first one whose sequence is not below a number.
func (r *streamReader) message(ctx context.Context, sequence uint64) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, streamTimeout)
	defer cancel()
	return r.stream.GetMsg(ctx, sequence, jetstream.WithGetMsgSubject(">"))
}

func (r *streamReader) isEvent(subject string) bool {
	return subject == r.decoder.Prefix || strings.HasPrefix(subject, r.decoder.Prefix+".")
}

func (r *streamReader) count() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done++; r.done%progressEvery == 0 {
		r.progress(r.done, r.total)
	}
}
