package health

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errScripted = errors.New("scripted")

// TestStopLogsNoRecovery has a worker that stops see fewer unacknowledged messages.
func TestStopLogsNoRecovery(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	health := New[int](log.Logger())
	health.Unacknowledged(20_000, 20_000)
	health.Stop()
	health.Unacknowledged(0, 20_000)
	log.WantCount(t, 0, "JetStream delivers messages again")
}

// TestChannelRefuses has a channel refuse messages, and another one the whole setup. Only the fault of the setup keeps the worker from pulling, and
// from being ready.
func TestChannelRefuses(t *testing.T) {
	t.Parallel()
	log := testkit.NewLog(t)
	health := New[int](log.Logger())
	archived := func(channel string) *sink.Error {
		return &sink.Error{Class: sink.Misconfigured, OfChannel: true, Code: "is_archived", Channel: channel, Err: errScripted}
	}
	revoked := &sink.Error{Class: sink.Misconfigured, Code: "token_revoked", Err: errScripted}
	requireState := func(step string, works bool, failing string) {
		t.Helper()
		_, fault := health.Misconfiguration()
		testkit.Equal(t, fault == nil, works, "%s: it may pull", step)
		testkit.Equal(t, health.Ready() == nil, works, "%s: it is ready", step)
		testkit.Equal(t, fmt.Sprint(health.Failing()), failing, "%s: what fails", step)
	}
	const refused = "post to C1: misconfigured: scripted"
	health.Misconfigure("C1", 1, archived("C1"))
	requireState("a channel refuses", true, refused)
	health.Misconfigure("C2", 2, revoked)
	requireState("the setup is refused", false, refused)
	changed, _ := health.Misconfiguration()
	health.Misconfigure("C2", 2, archived("C2"))
	<-changed
	requireState("two channels refuse", true, refused+"; further channels that refuse messages: 1")
	log.WantCount(t, 1, "sink accepts deliveries again")
	health.Misconfigure("C3", 3, archived("C3"))
	for range 10 { // in every order of a map
		requireState("three channels refuse", true, refused+"; further channels that refuse messages: 2")
	}
	for _, channel := range []string{"C1", "C2", "C3"} {
		accepts := `msg="a channel accepts messages again" destination=` + channel
		log.WantCount(t, 0, accepts)
		health.Mended(channel)
		log.WantCount(t, 1, accepts)
	}
	requireState("all accept", true, "<nil>")
	log.WantCount(t, 1, "sink accepts deliveries again")
}

// TestUnclear ends the only delivery to a channel that refuses and to a sink that does, as when it expires, and has another one time out. Nothing
// was accepted.
func TestUnclear(t *testing.T) {
	t.Parallel()
	for refuses, ofChannel := range map[string]bool{"a channel still refuses": true, "the sink still refuses": false} {
		log := testkit.NewLog(t)
		health := New[int](log.Logger())
		refused := &sink.Error{Class: sink.Misconfigured, OfChannel: ofChannel, Err: errScripted}
		health.Misconfigure("C1", 1, refused)
		health.Leave("C1", 1)
		testkit.NoError(t, errors.Join(health.Ready(), health.Failing()))
		log.WantCount(t, 1, "it is unclear whether "+refuses)
		health.Misconfigure("C1", 2, refused)
		health.Unclear("C1")
		testkit.NoError(t, errors.Join(health.Ready(), health.Failing()))
		log.WantCount(t, 2, "it is unclear whether "+refuses)
		log.WantCount(t, 0, "again")
	}
}

// refused is the health of a worker whose setup is refused, the delivery that probes it, and another one to the same destination.
func refused() (h *Health[int], prober, other int) {
	h = New[int](slog.New(slog.DiscardHandler))
	prober, other = 1, 2
	h.Misconfigure("C1", prober, &sink.Error{Class: sink.Misconfigured, Err: errScripted})
	return h, prober, other
}

// TestProberLeaves ends a prober without an answer. A waiting delivery takes over. If none waits, the fault ends.
func TestProberLeaves(t *testing.T) {
	t.Parallel()
	health, prober, other := refused()
	testkit.Equal(t, health.Turn(t.Context(), "C2", 3), true, "turn of another destination")
	looked := make(chan bool)
	go func() { looked <- health.Turn(t.Context(), "C1", other) }()
	testkit.Eventually(t, "one delivery waits", func() bool {
		health.mu.Lock()
		defer health.mu.Unlock()
		return health.faults["C1"].waiting == 1
	})
	health.Leave("C1", prober)
	testkit.Equal(t, <-looked, false, "turn without a second look")
	testkit.Equal(t, health.Turn(t.Context(), "C1", other), true, "turn of the waiting delivery")
	health.Leave("C1", prober) // the former prober
	_, err := health.Misconfiguration()
	testkit.Fails(t, "fault", err, errScripted)
	changed, _ := health.Misconfiguration()
	health.Leave("C1", other)
	if _, err := health.Misconfiguration(); err != nil {
		t.Errorf("fault without a prober: got %v, want none", err)
	}
	<-changed
}

// TestLastProberLeaves has the prober's delivery end, and then the delivery that was to take over, before it has a turn. The fault ends with it, or
// the worker would pull nothing for ever.
func TestLastProberLeaves(t *testing.T) {
	t.Parallel()
	health, prober, other := refused()
	health.faults["C1"].waiting = 1
	health.Leave("C1", prober)
	health.faults["C1"].waiting = 0 // the other one is awake
	health.Leave("C1", other)
	_, err := health.Misconfiguration()
	testkit.Check(t, err == nil, "fault without a delivery: got %v, want none", err)
}
