package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// answerPatience is how long a request may stay without an answer beyond the time for which the server keeps it.
	answerPatience = time.Second

	// mostArrivals bounds the messages that have arrived and are not received. nats.go discards more, and JetStream redelivers them.
	mostArrivals = 1024

	// requestBytes bounds the messages of one request. A server closes the connection of a client for which more than 64 MiB are waiting.
	requestBytes = 4 << 20
)

// heartbeat is the status of a message that answers nothing.
const heartbeat = "100"

// Why the server has ended a request for messages of bounded size.
const (
	requestIsFilled   = "Message Size Exceeds MaxBytes" // the next message has more bytes than the request has left
	requestIsComplete = "Batch Completed"               // it has sent all messages
)

var (
	// ErrReconnected means that the connection was lost and is there again: a restarted server does not know the request.
	ErrReconnected = errors.New("nats is connected again since the request for messages")

	// ErrFilled means that the next message is too large for the rest of the request.
	ErrFilled = errors.New("the next message does not fit into the request for messages")

	errSilent = errors.New("nats does not answer the request for messages")
)

// Request is one request for messages.
type Request struct {
	Asked      time.Time // the ack wait of its messages began after that time
	Reconnects uint64    // of the connection at that time

	left  int  // messages that the server may still send
	bytes int  // of these messages at most; 0 or less means no bound
	ended bool // the server has reported the end or does not report it
	late  bool // it was given up, so nobody knows which of its messages are still to come
}

// Requests asks a consumer for messages and receives them. It speaks the protocol itself, for two reasons. It also receives messages that arrive
// long after their request, such as after a stall of the network; nats.go discards them, and JetStream would deliver them again only after the ack
// wait. And it does not obey headers of messages, which a producer may have written: nats.go takes an empty message with the header Status
// for an answer of the server, and repeats the header Nats-Pin-Id in its requests. One goroutine uses Requests.
type Requests struct {
	connection *Connection
	arrivals   chan *nats.Msg
	kept       time.Duration
	most       int                             // bytes of one request
	open       map[*nats.Subscription]*Request // also those without an answer, while their messages can be of use
	idle       []*nats.Subscription            // of requests that have ended
	left       int                             // messages of all requests that the server knows
	bytes      int                             // of these messages at most, as far as they have a bound
	oversized  bool                            // the next message has more bytes than a request may
	same       sameConsumer
	present    context.Context // ends when the server may have forgotten the requests
}

// NewRequests returns Requests without a request. Messages that arrive later than kept after their request are discarded.
func (c *Connection) NewRequests(kept time.Duration) *Requests {
	return &Requests{
		connection: c, arrivals: make(chan *nats.Msg, mostArrivals), kept: kept, most: requestBytes, open: make(map[*nats.Subscription]*Request), present: c.UntilReconnect(),
	}
}

// Close ends the subscriptions. Messages that are still to come are delivered again after the ack wait.
func (r *Requests) Close() {
	for _, sub := range slices.AppendSeq(r.idle, maps.Keys(r.open)) {
		_ = sub.Unsubscribe() // it fails only if the connection is closed
	}
}

// MayBeRecreated reports whether a message may come from another consumer than the message before. The server reports to an open request that its
// consumer was deleted, and a worker without one does not learn it. Then the number that the consumer gave the delivery shows it, since a
// recreated consumer counts anew. After a long time without a request, that consumer may have delivered more than the earlier one.
func (r *Requests) MayBeRecreated(delivery uint64) bool {
	maybe := r.same.unwatched || delivery <= r.same.deliveries
	r.same.unwatched, r.same.deliveries = false, delivery
	return maybe
}

// sameConsumer knows whether all messages certainly came from one consumer.
type sameConsumer struct {
	deliveries uint64    // number of the newest delivery, of any worker
	watched    time.Time // the server may end the newest request a while earlier; zero: none yet
	unwatched  bool      // no request was open for a while, and no message has come since
}

// asks records a request that the server keeps for the given time.
func (s *sameConsumer) asks(now time.Time, wait time.Duration) {
	s.unwatched = s.unwatched || !s.watched.IsZero() && now.After(s.watched)
	s.watched = now.Add(2 * wait)
}

// Left returns how many messages the server may still send for the requests that it knows.
func (r *Requests) Left() int { return r.left }

// FewBytes reports whether the bytes of the requests will soon be used up: another request keeps the server from waiting for one.
func (r *Requests) FewBytes() bool { return r.bytes <= r.most/2 }

// Ask requests messages of at most requestBytes together or a single larger message. The server keeps the request for the given time.
func (r *Requests) Ask(consumer jetstream.Consumer, messages int, wait time.Duration) error {
	if r.present.Err() != nil {
		r.giveUp()
		r.present = r.connection.UntilReconnect()
	}
	sub, err := r.subscription()
	if err != nil {
		return fmt.Errorf("subscribing to messages: %w", err)
	}
	request := &Request{Asked: time.Now(), Reconnects: r.connection.Conn.Stats().Reconnects, left: messages, bytes: r.most}
	r.same.asks(request.Asked, wait)
	if r.oversized {
		request.left, request.bytes, r.oversized = 1, 0, false
	}
	info := consumer.CachedInfo()
	err = r.connection.Conn.PublishRequest(jetstream.DefaultAPIPrefix+"CONSUMER.MSG.NEXT."+info.Stream+"."+info.Name, sub.Subject,
		fmt.Appendf(nil, `{"batch":%d,"max_bytes":%d,"expires":%d}`, request.left, request.bytes, wait.Nanoseconds()))
	if err != nil {
		r.idle = append(r.idle, sub)
		return fmt.Errorf("requesting messages: %w", err)
	}
	r.open[sub] = request
	r.left += request.left
	r.bytes += request.bytes
	return nil
}

// subscription returns a subscription for the answers to a request. It ends those of requests whose messages are of no use any more.
func (r *Requests) subscription() (*nats.Subscription, error) {
	for sub, request := range r.open {
		if request.left == 0 && time.Since(request.Asked) > r.kept {
			delete(r.open, sub)
			_ = sub.Unsubscribe()
		}
	}
	if n := len(r.idle); n > 0 {
		sub := r.idle[n-1]
		r.idle = r.idle[:n-1]
		return sub, nil
	}
	return r.connection.Conn.ChanSubscribe(r.connection.Conn.NewInbox(), r.arrivals)
}

// giveUp expects no more of the open requests. What arrives all the same is received.
func (r *Requests) giveUp() {
	for _, request := range r.open {
		request.left, request.late = 0, true
	}
	r.left, r.bytes = 0, 0
}

// came records a message of a request. A request that was given up may yet be answered, and expects nothing. The server reports the end of a
// request, unless its bytes are used up exactly or have no bound.
func (r *Requests) came(m *nats.Msg, request *Request) {
	if request.left == 0 {
		return
	}
	r.bytes -= min(m.Size(), max(0, request.bytes))
	request.bytes -= m.Size()
	if request.bytes == 0 {
		r.expect(0, request)
	} else {
		r.expect(request.left-1, request)
	}
	request.ended = request.ended || request.bytes <= 0
	r.reuse(m.Sub, request)
}

// ended records that the server has ended a request. A server of a cluster reports it before the last messages of the request.
func (r *Requests) ended(answer *nats.Msg, request *Request) {
	request.ended = true
	unsent := request.left
	if reason := answer.Header.Get("Description"); reason == requestIsFilled || reason == requestIsComplete {
		unsent, _ = strconv.Atoi(answer.Header.Get("Nats-Pending-Messages"))
		r.oversized = answer.Header.Get("Nats-Pending-Bytes") == strconv.Itoa(r.most)
	}
	r.expect(max(0, request.left-unsent), request)
	r.reuse(answer.Sub, request)
}

// expect changes how many messages the server may still send for a request.
func (r *Requests) expect(messages int, request *Request) {
	if messages == 0 && request.left > 0 {
		r.bytes -= max(0, request.bytes)
	}
	r.left += messages - request.left
	request.left = messages
}

// reuse keeps the subscription of a request for another one, if the server sends nothing more for the request.
func (r *Requests) reuse(sub *nats.Subscription, request *Request) {
	if request.ended && request.left == 0 && !request.late {
		delete(r.open, sub)
		r.idle = append(r.idle, sub)
	}
}

// Receive waits for the next message. It returns none when a request has ended before all its messages came. Then err is nil if the server has
// no more messages now. Otherwise err is ErrFilled or the server's reason, or no answer came in the time for which the server keeps a request.
func (r *Requests) Receive(wait time.Duration) (m *nats.Msg, by *Request, err error) {
	for {
		select {
		case m = <-r.arrivals:
		default:
			if m, err = r.await(wait + answerPatience); err != nil {
				r.giveUp()
				return nil, nil, err
			}
		}
		if by = r.open[m.Sub]; by == nil {
			continue // it is of no use any more
		}
		switch isMessage := m.Reply != ""; {
		case isMessage:
			r.came(m, by)
			return m, by, nil
		case m.Header.Get("Status") != heartbeat:
			if r.ended(m, by); m.Header.Get("Description") != requestIsComplete {
				return nil, nil, failureOf(m.Header)
			}
		}
	}
}

func (r *Requests) await(patience time.Duration) (*nats.Msg, error) {
	silence := time.NewTimer(patience)
	defer silence.Stop()
	select {
	case m := <-r.arrivals:
		return m, nil
	case <-r.present.Done():
		return nil, ErrReconnected
	case <-r.connection.Closed():
		return nil, r.connection.ClosedError()
	case <-silence.C:
		return nil, errSilent
	}
}

// failureOf returns why the server ended a request; nil if it has no more messages.
func failureOf(answer nats.Header) error {
	code, description := answer.Get("Status"), answer.Get("Description")
	switch {
	case code == "404", code == "408": // no messages; the request's time is over
		return nil
	case description == requestIsFilled:
		return ErrFilled
	case code == "503":
		return nats.ErrNoResponders
	case strings.EqualFold(description, "Consumer Deleted"):
		return jetstream.ErrConsumerDeleted
	}
	return fmt.Errorf("nats: %s %s", code, description)
}
