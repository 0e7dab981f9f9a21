package stream

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/oplog"
)

// configWatch logs when the configuration of a consumer begins and ceases to differ from the settings: anybody with the rights may pause or edit
// a consumer while workers run. Its methods may be called concurrently.
type configWatch struct {
	o Options

	mu        sync.Mutex
	consumers map[string]*watchedConsumer // by name
}

type watchedConsumer struct {
	*oplog.Condition
	asked time.Time // when the latest answer that counts was asked for
}

func newConfigWatch(o Options) *configWatch {
	return &configWatch{o: o, consumers: make(map[string]*watchedConsumer)}
}

// look compares a consumer with the settings. The consumers of channels have the given lease. An answer that was asked for before an answer that
// has already come may be outdated, and does not count.
func (w *configWatch) look(info *jetstream.ConsumerInfo, asked time.Time, lease time.Duration) {
	var err error
	switch info.Name {
	case w.o.Names.Consumer:
		err = cmp.Or(w.o.Names.fitConsumer(info.Config), outlasts(info.Config, w.o.Longest), remarks(info, w.o.Names.ConsumerConfig(w.o.AckWait, nil)))
	case w.o.Names.roomConsumer():
		err = cmp.Or(w.o.Names.fitRoomConsumer(info.Config), outlasts(info.Config, w.o.Longest), remarks(info, w.o.Names.RoomConsumerConfig(w.o.AckWait)))
	default:
		err = w.o.Names.fitQueue(info, lease)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if of := w.of(info.Name); !asked.Before(of.asked) {
		of.asked = asked
		of.Note(err, "stream", info.Stream, "consumer", info.Name)
	}
}

// of requires the lock.
func (w *configWatch) of(consumer string) *watchedConsumer {
	known := w.consumers[consumer]
	if known == nil {
		known = &watchedConsumer{Condition: oplog.NewCondition(w.o.Logger, "consumer differs from the settings", "consumer agrees with the settings again")}
		w.consumers[consumer] = known
	}
	return known
}

// unfit returns why a consumer cannot be used any more. A paused consumer is no fault of the worker.
func (w *configWatch) unfit() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range []string{w.o.Names.Consumer, w.o.Names.roomConsumer()} {
		if err := w.of(name).Err(); errors.Is(err, ErrUnfit) {
			return err
		}
	}
	return nil
}

// remarks returns a warning about what an operator should know about an existing consumer; nil for nothing.
func remarks(info *jetstream.ConsumerInfo, wanted jetstream.ConsumerConfig) error {
	var notes []string
	if until := pausedUntil(info); !until.IsZero() {
		notes = append(notes, fmt.Sprintf("it delivers nothing: somebody paused it until %s (nats consumer resume)", until.Format(time.RFC3339)))
	}
	found := info.Config
	if found.MaxDeliver > 0 {
		notes = append(notes, fmt.Sprintf("it delivers a message at most %d times, after that it is lost; expected no bound", found.MaxDeliver))
	}
	if lease := leaseOf(found); lease != wanted.AckWait {
		notes = append(notes, fmt.Sprintf("its acknowledgement wait is %s, not %s; the shortest of all consumers is used", lease, wanted.AckWait))
	}
	if len(found.BackOff) > 0 {
		notes = append(notes, "it has a back-off, which adds to the delays that a worker asks for")
	}
	if found.MaxAckPending != wanted.MaxAckPending {
		notes = append(notes, fmt.Sprintf("all workers together may have %d unacknowledged messages (max_ack_pending), not %d", found.MaxAckPending, wanted.MaxAckPending))
	}
	if len(notes) == 0 {
		return nil
	}
	return warn(notes)
}

// pausedUntil returns when the pause of a consumer ends; zero: the consumer is not paused. The server's clock counts.
func pausedUntil(info *jetstream.ConsumerInfo) time.Time {
	if until := info.Config.PauseUntil; until != nil && info.Paused {
		return until.UTC()
	}
	return time.Time{}
}
