package stream

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/trusted"
)

const (
	sweepEvery   = 10 * time.Second // how often new messages are examined: each pass costs a consumer
	sweepSilence = time.Minute      // how long nothing is examined after reading or removing failed
)

// Sweep removes messages that neither a worker nor an operator wrote from a stream that workers only add to: dead letters or entries of the
// journal. Each message is examined once. One goroutine uses a Sweep.
type Sweep struct {
	Client   *Client
	Stream   string
	Subjects string // of all messages
	Removed  func() // called for each message that this Sweep, and not another worker's, has removed

	created time.Time // when the stream was created: a new stream has new sequences
	upto    uint64    // last examined sequence
	next    time.Time // when the next pass is due; zero: now
}

// Run examines up to headersAtOnce new messages if a pass is due.
func (s *Sweep) Run(ctx context.Context) error {
	if time.Now().Before(s.next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	before := s.upto
	left, err := s.examine(ctx)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), err == nil && left == 0:
		s.next = time.Now().Add(sweepEvery)
		return nil
	case s.upto == before:
		s.next = time.Now().Add(sweepSilence)
		return err
	}
	return nil // the next call continues
}

// examine examines some of the new messages, and returns how many it leaves.
func (s *Sweep) examine(ctx context.Context) (left uint64, err error) {
	in, err := s.Client.JetStream.Stream(ctx, s.Stream)
	if err != nil {
		return 0, err
	}
	info := in.CachedInfo()
	if !s.created.Equal(info.Created) {
		s.created, s.upto = info.Created, 0
	}
	if info.State.Msgs > 0 && info.State.LastSeq > s.upto {
		left, err = Headers{Client: s.Client, Stream: in, Subjects: s.Subjects, From: s.upto + 1, Most: headersAtOnce}.Each(ctx, func(m *nats.Msg, sequence uint64) error {
			if !trusted.IsMarked(m.Header) {
				if err := Remove(ctx, in, sequence, s.Removed); err != nil {
					return err
				}
			}
			s.upto = sequence
			return nil
		})
	}
	if err == nil && left == 0 {
		s.upto = max(s.upto, info.State.LastSeq) // the last messages may have been removed
	}
	return left, err
}

// Remove deletes a message, and calls removed if this call has deleted it. Otherwise another worker was faster or the stream forbids deletion.
func Remove(ctx context.Context, from jetstream.Stream, sequence uint64, removed func()) error {
	ctx, cancel := context.WithTimeout(ctx, APITimeout)
	defer cancel()
	err := from.DeleteMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return nil
	}
	if err == nil {
		removed()
	}
	return err
}

// Headers are the messages of a stream without their bodies.
type Headers struct {
	Client   *Client
	Stream   jetstream.Stream
	Subjects string
	From     uint64 // first sequence
	Most     int    // after so many messages no more are requested; 0: all are read
}

const headersAtOnce = 1000

// Each calls take for each message, until take fails. It returns how many messages were not read.
func (h Headers) Each(ctx context.Context, take func(m *nats.Msg, sequence uint64) error) (left uint64, err error) {
	// The consumer acknowledges nothing, is kept in the memory of one server, and expires by itself.
	consumer, err := h.Stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, FilterSubject: h.Subjects, HeadersOnly: true,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: h.From,
		InactiveThreshold: APITimeout, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return 0, err
	}
	requests := h.Client.Connection.NewRequests(APITimeout)
	defer requests.Close()
	left = consumer.CachedInfo().NumPending
	for read, before := 0, -1; left > 0 && read > before && (h.Most == 0 || read < h.Most); {
		if err := requests.Ask(consumer, int(min(headersAtOnce, left)), time.Second); err != nil {
			return left, err
		}
		for before = read; requests.Left() > 0; read++ {
			m, _, err := requests.Receive(time.Second)
			if m == nil && err == nil {
				break
			}
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return left, err
			}
			meta, err := m.Metadata()
			if err != nil {
				return left, err
			}
			left = meta.NumPending
			if err := take(m, meta.Sequence.Stream); err != nil {
				return left, err
			}
		}
	}
	return left, nil
}
