package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// trouble keeps what is going wrong, so that the log says it once when it starts and once when it ends.
type trouble struct {
	logger *slog.Logger

	mu          sync.Mutex
	deadLetters error                  // dead letters cannot be stored
	sink        error                  // deliveries fail
	consumer    error                  // the consumer is not there
	room        error                  // events that have to wait cannot be stored in the room
	queues      error                  // the queues of channels cannot be asked for
	unsettled   error                  // as many messages are unacknowledged as the server allows
	faults      map[string]*setupFault // by destination
	changed     chan struct{}          // closed and replaced when there are no more faults
}

func newTrouble(logger *slog.Logger) *trouble {
	return &trouble{logger: logger, faults: make(map[string]*setupFault), changed: make(chan struct{})}
}

// deadLettersStored notes how storing a dead letter went.
func (t *trouble) deadLettersStored(err error) {
	switch starts, ends := t.change(&t.deadLetters, err); {
	case starts:
		t.logger.Warn("dead letters cannot be stored", "error", err)
	case ends:
		t.logger.Info("dead letters can be stored again")
	}
}

// sinkTried notes how a delivery went that was neither rejected nor put off by the destination.
func (t *trouble) sinkTried(err error) {
	switch starts, ends := t.change(&t.sink, err); {
	case starts:
		t.logger.Warn("deliveries fail and are tried again", "error", err)
	case ends:
		t.logger.Info("deliveries work again")
	}
}

// consumerFound notes whether the consumer is there.
func (t *trouble) consumerFound(err error) {
	switch starts, ends := t.change(&t.consumer, err); {
	case starts:
		t.logger.Warn("the consumer is not there", "error", err)
	case ends:
		t.logger.Info("the consumer is there")
	}
}

// roomStored notes how storing events in the room went.
func (t *trouble) roomStored(err error) {
	switch starts, ends := t.change(&t.room, err); {
	case starts:
		t.logger.Warn("events that have to wait cannot be stored", "error", err)
	case ends:
		t.logger.Info("events that have to wait can be stored again")
	}
}

// queuesServed notes whether the consumers of channels' queues are there.
func (t *trouble) queuesServed(err error) {
	switch starts, ends := t.change(&t.queues, err); {
	case starts:
		t.logger.Warn("queues of channels cannot be served", "error", err)
	case ends:
		t.logger.Info("queues of channels can be served again")
	}
}

// unacknowledged notes how many messages all workers together have not acknowledged. At the consumer's bound the server delivers
// no more.
func (t *trouble) unacknowledged(n, most int) {
	var err error
	if most > 0 && n >= most {
		err = fmt.Errorf("%d messages are unacknowledged: the server delivers no more (max_ack_pending)", most)
	}
	switch starts, ends := t.change(&t.unsettled, err); {
	case starts:
		t.logger.Warn("nothing more is delivered: too many messages are unacknowledged", "max_ack_pending", most)
	case ends:
		t.logger.Info("messages are delivered again")
	}
}

// change notes an error or its end and tells whether that is new.
func (t *trouble) change(kind *error, err error) (starts, ends bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := *kind
	*kind = err
	return was == nil && err != nil, was != nil && err == nil
}

// setupFault is a destination to which nothing can be delivered until someone mends the setup. One delivery, the prober,
// goes on trying; the others wait for it.
type setupFault struct {
	err     error
	prober  *delivery // nil while nobody tries
	waiting int
	changed chan struct{} // closed when those who wait should look again
}

// misconfigure notes that a delivery failed because of the setup.
func (t *trouble) misconfigure(d *delivery, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.faults) == 0 {
		t.logger.Error("deliveries are misconfigured, no more events are asked for", "destination", d.destination, "error", err)
	}
	fault := t.faults[d.destination]
	if fault == nil {
		fault = &setupFault{prober: d, changed: make(chan struct{})}
		t.faults[d.destination] = fault
	}
	fault.err = err
}

// turn tells whether a delivery may try. While another one tries for its destination it waits, at most for the longest
// back-off, and the answer is no: then there is reason to look again.
func (t *trouble) turn(ctx context.Context, d *delivery) bool {
	t.mu.Lock()
	fault := t.faults[d.destination]
	if fault == nil || fault.prober == nil || fault.prober == d {
		if fault != nil {
			fault.prober = d
		}
		t.mu.Unlock()
		return true
	}
	fault.waiting++
	changed := fault.changed
	t.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(longestBackoff):
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fault.waiting--
	return false
}

// mended notes that the setup is not what keeps a destination from its deliveries.
func (t *trouble) mended(destination string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endFault(destination)
}

func (t *trouble) endFault(destination string) {
	fault := t.faults[destination]
	if fault == nil {
		return
	}
	delete(t.faults, destination)
	close(fault.changed)
	if len(t.faults) == 0 {
		t.logger.Info("deliveries are no longer known to be misconfigured")
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// leave notes that a delivery has ended. If it was the prober, another one takes over; if there is none, whoever comes
// next finds out.
func (t *trouble) leave(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fault := t.faults[d.destination]
	if fault == nil || fault.prober != d {
		return
	}
	if fault.waiting == 0 {
		t.endFault(d.destination)
		return
	}
	fault.prober = nil
	close(fault.changed)
	fault.changed = make(chan struct{})
}

// misconfiguration is one of the faults of the setup, or nil, and when to look again.
func (t *trouble) misconfiguration() (changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fault := range t.faults {
		return t.changed, fault.err
	}
	return nil, nil
}

// ready joins what keeps the worker from its work.
func (t *trouble) ready() error {
	_, misconfigured := t.misconfiguration()
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.consumer, t.unsettled, misconfigured)
}

// jitter spreads a delay by a quarter to either side, so that what failed together does not come back together.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // no secret depends on it
}
