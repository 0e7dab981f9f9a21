package consume

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

// A server that is killed in the middle costs no event its outcome, and none is counted twice. The server syncs each
// write, so that it forgets no acknowledgement that it has confirmed.
func TestCountedOnceAcrossAKill(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, servertest.StartNATSProcess(t, "jetstream { sync_interval: always }"))
	f.provision(patience)
	const events = 600
	for i := range events {
		f.event([]string{"sent", "dropped"}[i%2], fmt.Sprint(i))
	}
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		if c.Event.Category == "sent" {
			return f.throttle.admit(c), nil
		}
		return Decision{Verdict: Deny, Level: "the rule"}, nil
	}
	w := f.start(nil)
	f.eventually("some events end", func() bool { return f.metrics.ended() > events/10 })
	f.server.Kill()
	f.eventually("it is not ready", func() bool { return w.Ready() != nil })
	f.server.Restart()
	f.eventually("all events end", func() bool { return f.metrics.ended() >= events })
	w.stop()
	// The consumer may remember deliveries from before the kill for another acknowledgement wait.
	if left := f.streamInfo(testNames.Stream).State.Msgs; left != 0 {
		t.Errorf("the stream holds %d messages, want none", left)
	}
	f.requireOutcomes(map[string]int{"sent sent": events / 2, "dropped dropped": events / 2})
	if n := f.metrics.get("by the rule dropped"); n != events/2 {
		t.Errorf("%d drops by the rule were counted, want %d", n, events/2)
	}
}

// deafDialer makes connections on which the first acknowledgements disappear: the next write that contains some is
// swallowed, and the connection breaks.
type deafDialer struct {
	mu    sync.Mutex
	armed bool
}

func (d *deafDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return &deafConn{Conn: conn, dialer: d}, nil
}

type deafConn struct {
	net.Conn
	dialer *deafDialer
}

func (c *deafConn) Write(data []byte) (int, error) {
	c.dialer.mu.Lock()
	deaf := c.dialer.armed && bytes.Contains(data, sayAck)
	if deaf {
		c.dialer.armed = false
	}
	c.dialer.mu.Unlock()
	if deaf {
		_ = c.Close()
		return len(data), nil
	}
	return c.Conn.Write(data)
}

// Acknowledgements that were lost with a connection are said again on the next one, though the last one of their batch
// was confirmed there.
func TestAcknowledgementsLostWithTheConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	found := f.provision(patience)
	const events = 4000 // their acknowledgements are many writes
	for i := range events {
		if _, err := f.js.PublishAsync("notify.payments", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	<-f.js.PublishAsyncComplete()
	messages, err := found.consumer.Fetch(events, jetstream.FetchMaxWait(patience))
	if err != nil {
		t.Fatal(err)
	}
	var batch []settlement
	for msg := range messages.Messages() {
		m, err := newMessage(msg, source{}, time.Now(), 0, patience)
		if err != nil {
			t.Fatal(err)
		}
		batch = append(batch, settlement{message: m, outcome: Dropped})
	}

	dialer := &deafDialer{}
	conn, err := nats.Connect(f.server.URL, nats.SetCustomDialer(dialer), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	dialer.mu.Lock()
	dialer.armed = true
	dialer.mu.Unlock()
	s := newSettler(conn, f.metrics, nil, func([]*message) {}, patience, nil)
	s.settle(batch...)
	s.close(t.Context())
	if conn.Stats().Reconnects == 0 {
		t.Fatal("the connection was not lost")
	}
	f.requireEmpty()
	f.requireOutcomes(map[string]int{"dropped ": events})
}

// What cannot be acknowledged any more is not counted, and does not keep the settler from ending.
func TestSettlerEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.event("payments", "e")
	m := f.taken(w, patience)
	w.conn.Close()
	cut := make(chan struct{})
	s := newSettler(w.conn, f.metrics, nil, func([]*message) {}, patience, cut)
	close(cut)
	for range 2 * settleQueue {
		s.settle(settlement{message: m, outcome: Sent})
	}
	s.close(t.Context())
	f.requireOutcomes(nil)
}

// Outcomes are counted by category and rule.
func TestCount(t *testing.T) {
	t.Parallel()
	metrics := newFakeMetrics()
	s := &settler{ended: func([]*message) {}, conn: &nats.Conn{}, metrics: metrics}
	a := &message{category: "a", deadline: time.Now().Add(patience)}
	b := &message{category: "b", deadline: time.Now().Add(patience)}
	s.count([]settlement{
		{message: a, outcome: Sent}, {message: b, outcome: Dropped, level: "global"}, {message: a, outcome: Sent},
		{message: b, outcome: Dropped, level: "b"}, {message: b, outcome: Sent, level: "b"}, {message: a, outcome: Expired},
	})
	for name, want := range map[string]int{
		"sent a": 2, "sent b": 1, "dropped b": 2, "expired a": 1, "by global b": 1, "by b b": 2, "by  a": 0,
	} {
		if got := metrics.get(name); got != want {
			t.Errorf("%q was counted %d times, want %d", name, got, want)
		}
	}
}

// A message that was settled late, and was delivered and settled again before that was known, counts once.
func TestCountedOnceThoughLate(t *testing.T) {
	t.Parallel()
	start := time.Now()
	on := func(connection uint64, deadline time.Time) *message {
		return &message{sequence: 7, stored: start, connection: connection, deadline: deadline}
	}
	inTime, over := start.Add(patience), start.Add(-time.Second)
	for name, test := range map[string]struct {
		first, second *message
		want          int
	}{
		"after a lost connection":      {on(1, inTime), on(0, inTime), 1}, // the connection was never lost, so 0 is the present one
		"after its lease":              {on(0, over), on(0, inTime), 1},
		"twice after its lease":        {on(0, over), on(0, over), 1},
		"another message":              {on(0, over), &message{sequence: 8, stored: start, deadline: inTime}, 2},
		"its namesake in a new stream": {on(0, over), &message{sequence: 7, stored: start.Add(time.Hour), deadline: inTime}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metrics := newFakeMetrics()
			s := &settler{ended: func([]*message) {}, conn: &nats.Conn{}, metrics: metrics, patient: patience, late: make(map[stored]time.Time)}
			s.count([]settlement{{message: test.first, outcome: Sent}})
			s.count([]settlement{{message: test.second, outcome: Sent}})
			if got := metrics.ended(); got != test.want {
				t.Errorf("%d outcomes were counted, want %d", got, test.want)
			}
		})
	}

	// What is remembered does not grow for ever.
	s := &settler{ended: func([]*message) {}, conn: &nats.Conn{}, metrics: newFakeMetrics(), patient: -time.Second, late: make(map[stored]time.Time)}
	for i := range 10 {
		s.count([]settlement{{message: &message{sequence: uint64(i)}, outcome: Sent}})
	}
	if len(s.late) > 1 {
		t.Errorf("%d late settlements are remembered whose time is over", len(s.late)-1)
	}
}
