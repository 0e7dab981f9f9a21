package consume

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// trouble keeps what is going wrong, so that the log says it once when it starts and once when it ends.
type trouble struct {
	logger *slog.Logger

	mu            sync.Mutex
	deadLetters   error // dead letters cannot be stored
	sink          error // deliveries fail
	consumer      error // the consumer is not there
	misconfigured map[*delivery]error
	changed       chan struct{} // closed and replaced when misconfigured becomes empty
}

func newTrouble(logger *slog.Logger) *trouble {
	return &trouble{logger: logger, misconfigured: make(map[*delivery]error), changed: make(chan struct{})}
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

// change notes an error or its end and tells whether that is new.
func (t *trouble) change(kind *error, err error) (starts, ends bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := *kind
	*kind = err
	return was == nil && err != nil, was != nil && err == nil
}

// misconfigure notes a delivery that fails because of the setup.
func (t *trouble) misconfigure(d *delivery, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.misconfigured) == 0 {
		t.logger.Error("deliveries are misconfigured, no more events are asked for", "destination", d.destination, "error", err)
	}
	t.misconfigured[d] = err
}

// resolve notes that a delivery has ended or works now.
func (t *trouble) resolve(d *delivery) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.misconfigured[d]; !known {
		return
	}
	delete(t.misconfigured, d)
	if len(t.misconfigured) == 0 {
		t.logger.Info("deliveries are no longer known to be misconfigured")
		close(t.changed)
		t.changed = make(chan struct{})
	}
}

// misconfiguration is one of the faults of the setup, or nil, and when to look again.
func (t *trouble) misconfiguration() (changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, err := range t.misconfigured {
		return t.changed, err
	}
	return nil, nil
}

// ready joins what keeps the worker from its work.
func (t *trouble) ready() error {
	_, misconfigured := t.misconfiguration()
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.consumer, misconfigured)
}

// jitter spreads a delay by a quarter to either side, so that what failed together does not come back together.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // no secret depends on it
}
