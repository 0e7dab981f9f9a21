package ingest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of the messages of one group that are being published.
const (
	maxUnderWay      = 128
	maxUnderWayBytes = 256 << 10
	// maxReceipts is the number of alerts in the answer to a group.
	maxReceipts = 100
)

// outbox publishes the messages of a group, a bounded number at once. One goroutine uses it.
type outbox struct {
	store  *store
	room   *room
	maker  maker
	client string

	underWay []underWay
	bytes    int // of the messages in underWay

	published, stored, duplicates int
	receipts                      []receipt // of the first messages
	slowest                       time.Duration

	refusals refusals
}

// refusals are the reasons why messages or alerts of a group are not stored.
type refusals struct {
	failed   *problem // JetStream may not have stored a message
	bad      int      // alerts that no worker could deliver
	firstBad *problem
}

// underWay is a message that JetStream has not acknowledged yet.
type underWay struct {
	place   int // of the alert in its body
	message *nats.Msg
	future  jetstream.PubAckFuture
	began   time.Time
}

// publish publishes a message as soon as the bounds allow it. It fails if JetStream may not store messages.
func (o *outbox) publish(place int, m *nats.Msg) *problem {
	for len(o.underWay) > 0 && (len(o.underWay) == maxUnderWay || o.bytes+len(m.Data) > maxUnderWayBytes) {
		o.await()
	}
	busy := o.room.take(len(m.Data))
	for busy != nil && len(o.underWay) > 0 {
		o.await()
		busy = o.room.take(len(m.Data))
	}
	if refusal := cmp.Or(o.refusals.failed, busy); refusal != nil {
		return refusal
	}
	began := time.Now()
	future, refusal := o.store.begin(m)
	if refusal != nil {
		o.room.give(len(m.Data))
		o.refusals.add(place, refusal)
		return o.refusals.failed
	}
	o.underWay, o.bytes, o.published = append(o.underWay, underWay{place, m, future, began}), o.bytes+len(m.Data), o.published+1
	return nil
}

// add records why an alert is not stored; the first reason is part of the answer.
func (r *refusals) add(place int, why *problem) {
	switch {
	case !why.isFinal():
		r.failed = cmp.Or(r.failed, why)
	case r.bad == 0:
		r.firstBad = why
		why.Detail = fmt.Sprintf("alerts[%d]: %s", place, why.Detail)
		fallthrough
	default:
		r.bad++
	}
}

// await waits for the acknowledgement of the oldest message.
func (o *outbox) await() {
	oldest := o.underWay[0]
	o.underWay, o.bytes = o.underWay[1:], o.bytes-len(oldest.message.Data)
	result := o.store.await(oldest.future)
	o.room.give(len(oldest.message.Data))
	o.slowest = max(o.slowest, time.Since(oldest.began))
	if result.refusal != nil {
		o.refusals.add(oldest.place, result.refusal)
		return
	}
	ack := result.ack
	o.store.metrics.Count(o.client, countedAs(ack))
	o.stored++
	if ack.Duplicate {
		o.duplicates++
	}
	if len(o.receipts) < maxReceipts {
		o.receipts = append(o.receipts, o.maker.receipt(oldest.message, ack))
	}
}

func (o *outbox) awaitAll() {
	for len(o.underWay) > 0 {
		o.await()
	}
	if o.published > 0 {
		o.store.metrics.Published(o.slowest)
	}
}

type groupReceipt struct {
	Alerts     int       `json:"alerts"`
	Duplicates int       `json:"duplicates"`
	Events     []receipt `json:"events"` // of the first alerts
}
