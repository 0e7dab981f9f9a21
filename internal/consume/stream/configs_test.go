package stream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestOutdatedConsumerInfo looks at an answer that came late: a newer answer has shown that somebody edited the consumer. The late answer does not
// count.
func TestOutdatedConsumerInfo(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	w := newConfigWatch(Options{Names: testNames, AckWait: ackWait, Logger: log.Logger()})
	agrees := &jetstream.ConsumerInfo{Name: testNames.Consumer, Config: testNames.ConsumerConfig(ackWait, nil)}
	edited := &jetstream.ConsumerInfo{Name: testNames.Consumer, Config: testNames.ConsumerConfig(ackWait, nil)}
	edited.Config.HeadersOnly = true
	early := time.Now()
	late := early.Add(time.Millisecond)
	w.look(edited, late, ackWait)
	w.look(agrees, early, ackWait)
	testkit.Fails(t, "unfit", w.unfit(), ErrUnfit, "without their bodies")
	w.look(agrees, late.Add(time.Millisecond), ackWait)
	testkit.Equal(t, w.unfit(), nil, "unfit")
	log.WantCount(t, 1, "consumer agrees with the settings again")
}
