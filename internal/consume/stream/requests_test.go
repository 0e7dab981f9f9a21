package stream

import (
	"errors"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	requestTime  = 100 * time.Millisecond // for which the server keeps the requests of these tests
	smallRequest = 64 << 10               // bytes of one request, where messages are large in comparison
)

// requests returns Requests over a connection, and the consumer of the producers' stream.
func (f *fixture) requests(c *Connection) (*Requests, jetstream.Consumer) {
	f.Helper()
	f.provision()
	f.eventually("it is connected", c.Conn.IsConnected)
	r := c.NewRequests(ackWait)
	f.Cleanup(r.Close)
	return r, testkit.Must(f.js.Consumer(f.Context(), testNames.Stream, testNames.Consumer))(f)
}

// receive wants the next message to have a body.
func (f *fixture) receive(r *Requests, want string) {
	f.Helper()
	m, _, err := r.Receive(requestTime)
	testkit.NoError(f, err)
	testkit.Equal(f, string(m.Data), want, "body of the next message")
}

// TestRequestsObeyNoHeaders receives messages whose producer gave them the headers of the server's answers. They end no request and change
// none.
func TestRequestsObeyNoHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	headers := [][]string{
		{"Status", "100"}, {"Status", "404"}, {"Status", "408"}, {"Status", "409", "Description", "Consumer Deleted"}, {"Status", "503"},
		{"Nats-Pin-Id", "x"},
	}
	for _, pairs := range headers {
		m := nats.NewMsg("notify.payments")
		for i := 0; i < len(pairs); i += 2 {
			m.Header.Set(pairs[i], pairs[i+1])
		}
		testkit.Must(f.js.PublishMsg(t.Context(), m))(t)
	}
	testkit.Must(f.js.Publish(t.Context(), "notify.security", []byte("the last")))(t)
	testkit.NoError(t, r.Ask(consumer, 3, requestTime))
	testkit.NoError(t, r.Ask(consumer, len(headers)+1, requestTime))
	for range headers {
		f.receive(r, "")
	}
	f.receive(r, "the last")
	for left := 3; r.Left() > 0; left-- {
		m, _, err := r.Receive(requestTime)
		testkit.Require(t, m == nil && err == nil && left != 0,
			"got the message %v (%v) with %d left, want the end of each request", m, err, r.Left())
	}
}

// takeLarge publishes messages of these sizes, requests all of them, and receives each once and in order. It requests more when no request is
// open. It returns how many messages came for each of its requests.
func (f *fixture) takeLarge(r *Requests, consumer jetstream.Consumer, sizes ...int) (came []int) {
	f.Helper()
	for _, size := range sizes {
		testkit.Must(f.js.Publish(f.Context(), "notify.payments", make([]byte, size)))(f)
	}
	var asked []time.Time
	for len(sizes) > 0 {
		if r.Left() == 0 {
			testkit.Equal(f, r.bytes, 0, "bytes that the server may still send")
			asked, came = append(asked, time.Now()), append(came, 0)
			testkit.NoError(f, r.Ask(consumer, len(sizes)+1, time.Minute))
		}
		if len(came) > 10 {
			f.Fatalf("messages of each request: got %v, want a message of %d bytes", came, sizes[0])
		}
		m, by, err := r.Receive(testkit.Patience)
		if errors.Is(err, ErrFilled) {
			continue
		}
		testkit.NoError(f, err)
		testkit.Equal(f, len(m.Data), sizes[0], "bytes of the next message")
		testkit.Equal(f, testkit.Must(m.Metadata())(f).NumDelivered, 1, "deliveries of the message")
		sizes = sizes[1:]
		came[sort.Search(len(asked), func(i int) bool { return asked[i].After(by.Asked) })-1]++
	}
	return came
}

// TestLargeMessages requests more than a request may have. The server ends each request when its bytes are used up.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	r.most = smallRequest
	const large = smallRequest * 2 / 7 // three of them go into a request
	testkit.EqualSlices(t, f.takeLarge(r, consumer, large, large, large, large, large, large, large), []int{3, 3, 1}, "messages of each request")
	testkit.EqualSlices(t, f.takeLarge(r, consumer, smallRequest+1, 1), []int{0, 1, 1}, "messages of each request after an open one")
	testkit.EqualSlices(t, f.takeLarge(r, consumer, smallRequest+1), []int{0, 1}, "messages of each request after another open one")
}

// TestHalfOfTheBytes receives more than half of the bytes of a request, and then the rest.
func TestHalfOfTheBytes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	r.most = smallRequest
	for range 3 {
		testkit.Must(f.js.Publish(t.Context(), "notify.payments", make([]byte, smallRequest*2/7)))(t)
	}
	testkit.NoError(t, r.Ask(consumer, 3, time.Minute))
	for came := range 3 {
		testkit.Equal(t, r.FewBytes(), came > 1, "few bytes left after %d messages", came)
		_, _, err := r.Receive(testkit.Patience)
		testkit.NoError(t, err)
	}
	testkit.Equal(t, r.bytes, 0, "bytes that the server may still send")
}

// TestLargeMessagesOfACluster requests more than a request may have from a cluster, which sends messages after the end of their request.
func TestLargeMessagesOfACluster(t *testing.T) {
	t.Parallel()
	f := newFixtureOn(t, &servertest.NATS{URL: servertest.StartNATSCluster(t, 3).URL})
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	r.most = smallRequest
	const large = smallRequest * 2 / 9 // four of them go into a request
	testkit.EqualSlices(t, f.takeLarge(r, consumer, large, 1, large, large, large, large, 2, large, large, large, large), []int{5, 5, 1}, "messages of each request")
}

// TestLateMessagesOfACluster stalls the network for longer than a request waits for its answer. The end of the request arrives late, and after it
// the messages of the request, which are received.
func TestLateMessagesOfACluster(t *testing.T) {
	t.Parallel()
	cluster := servertest.StartNATSCluster(t, 3)
	f := newFixtureOn(t, &servertest.NATS{URL: cluster.URL})
	address, _, _ := strings.Cut(strings.TrimPrefix(cluster.URL, "nats://"), ",")
	proxy := servertest.StartProxy(t, address)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: "nats://" + proxy.Addr}))
	r.most = smallRequest
	for range 5 { // of which four go into a request
		testkit.Must(f.js.Publish(t.Context(), "notify.payments", make([]byte, smallRequest*2/9)))(t)
	}
	proxy.Delay(answerPatience + 3*requestTime)
	testkit.NoError(t, r.Ask(consumer, 5, time.Minute))
	_, _, err := r.Receive(requestTime)
	testkit.Require(t, err != nil && r.Left() == 0, "got no error with %d left, want a request without an answer", r.Left())
	proxy.Delay(0)
	for came := 0; came < 4; {
		m, _, err := r.Receive(10 * time.Second)
		if !errors.Is(err, ErrFilled) {
			testkit.NoError(t, err)
			testkit.Equal(t, testkit.Must(m.Metadata())(t).NumDelivered, 1, "deliveries of a message")
			came++
		}
	}
	testkit.Equal(t, r.Left(), 0, "messages that the server may still send")
}

// TestRequestIsUsedUp requests messages of exactly as many bytes as a request may have. The server reports no end of the request.
func TestRequestIsUsedUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	r.most = smallRequest
	f.event("payments", "first")
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	m, _, err := r.Receive(testkit.Patience)
	testkit.NoError(t, err)
	testkit.EqualSlices(t, f.takeLarge(r, consumer, smallRequest-m.Size()+len(m.Data)), []int{1}, "messages of each request")
	testkit.Equal(t, r.Left(), 0, "messages that the server may still send")
}

// TestLateMessages stalls the network for longer than a request waits for its answer. The message arrives late, and is received. Its lease
// began with its own request.
func TestLateMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := servertest.StartProxy(t, strings.TrimPrefix(f.server.URL, "nats://"))
	r, consumer := f.requests(f.connect(ConnectOptions{URL: "nats://" + proxy.Addr}))
	testkit.NoError(t, r.Ask(consumer, 2, requestTime))
	if m, _, err := r.Receive(requestTime); m != nil || err != nil || r.Left() != 0 {
		t.Fatalf("got the message %v (%v) with %d left, want the end of the request", m, err, r.Left())
	}
	proxy.Delay(answerPatience + 3*requestTime)
	asked := time.Now()
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	f.event("payments", "late")
	if _, _, err := r.Receive(requestTime); err == nil || r.Left() != 0 {
		t.Fatalf("got no error with %d left, want a request without an answer", r.Left())
	}
	proxy.Delay(0)
	again := time.Now()
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	f.event("payments", "in time")
	for range 2 {
		m, by, err := r.Receive(testkit.Patience)
		testkit.NoError(t, err)
		first := strings.Contains(string(m.Data), "late")
		testkit.Check(t, !by.Asked.Before(asked) && by.Asked.Before(again) == first, "request of %s: got one of %v, want its own", m.Data, by.Asked)
	}
}

// TestRequestsAfterReconnect loses the connection. The requests before are given up at once, and the next message comes: the server, which was
// not restarted, may still answer the first request.
func TestRequestsAfterReconnect(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.connect(ConnectOptions{URL: f.server.URL})
	r, consumer := f.requests(c)
	testkit.NoError(t, r.Ask(consumer, 5, time.Minute))
	testkit.NoError(t, c.Conn.ForceReconnect())
	_, _, err := r.Receive(time.Minute)
	testkit.Equal(t, errors.Is(err, ErrReconnected), true, "%v is that error", err)
	testkit.Equal(t, r.Left(), 0, "messages that the server may still send")
	testkit.Must(f.js.Publish(t.Context(), "notify.payments", []byte("the next")))(t)
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	f.receive(r, "the next")
}

// TestRequestsOfAnAbsentConsumer wants the reason why a request ended.
func TestRequestsOfAnAbsentConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, consumer := f.requests(f.connect(ConnectOptions{URL: f.server.URL}))
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	f.eventually("the server has the request", func() bool { return testkit.Must(consumer.Info(t.Context()))(t).NumWaiting == 1 })
	testkit.NoError(t, f.js.DeleteConsumer(t.Context(), testNames.Stream, testNames.Consumer))
	_, _, err := r.Receive(time.Minute)
	testkit.Equal(t, errors.Is(err, jetstream.ErrConsumerDeleted), true, "%v is that error", err)
	testkit.NoError(t, r.Ask(consumer, 1, time.Minute))
	_, _, err = r.Receive(time.Minute)
	testkit.Equal(t, errors.Is(err, nats.ErrNoResponders), true, "%v is that error", err)
}
