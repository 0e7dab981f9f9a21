//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// fate is the set of allowed outcomes of an event.
type fate string

const (
	limited  fate = "limited"  // sent or dropped, as its limits say
	certain  fate = "certain"  // sent: a guarantee has room for it, though it may wait for a slot
	resolves fate = "resolves" // sent if its firing event was sent, else dropped
	doomed   fate = "doomed"   // a dead letter
	counted  fate = "counted"  // sent, or folded into the message of its key
	ends     fate = "ends"     // ends an alert of such a key, and takes no slot
)

// entry is one event in the ledger of the publisher.
type entry struct {
	ID       string // in posts
	Identity string // in Redis
	Category string
	Key      string `json:",omitempty"` // of its alert
	Cost     int64
	Fate     fate
	Resolves string    `json:",omitempty"` // ID of the firing event
	Began    time.Time // time of the first publish
	Stored   time.Time // time of the first ack by JetStream
	Copies   int       // publishes, each of which JetStream may have stored
	Retried  bool      // a publish failed, and may have been stored
	Settled  time.Time // time of the end of its only message; zero if not watched
	Phase    phase     `json:",omitempty"` // of its publish
}

// path returns the path of an event's limits, as package oracle has them.
func (e *entry) path() string {
	if e.Category == keyedCategory {
		return e.Category + "." + e.Key
	}
	return e.Category
}

// publisher publishes events, and keeps the ledger.
type publisher struct {
	d    *deployment
	seed uint64
	r    *random // of the present publish; only the goroutine of run draws from it

	watching sync.WaitGroup // goroutines that watch messages

	mu        sync.Mutex
	entries   map[string]*entry
	count     int // messages
	next      int
	folded    int // events of foldedCategory
	ofWatcher int // events of the watcher
	later     []followUp
	at        time.Time // planned time of the present publish
}

// publishes numbers the sources of the publishes, apart from the other purposes.
const publishes = 1 << 32

// followUp is a later publish.
type followUp struct {
	at time.Time
	do func()
}

func (p *publisher) progress() (messages, ids int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, len(p.entries)
}

// kinds lists each kind of publish as often as it happens in a hundred seconds on average.
func (p *publisher) kinds() (kinds []func()) {
	in := func(category string) func() { return func() { p.plain(category, 1) } }
	waits := func() { p.publishEvent(entry{Category: "later", Fate: certain}, "") }
	for _, kind := range []struct {
		weight  int
		publish func()
	}{
		{7, func() { repeat(30+p.r.intN(70), in("flood")) }},
		{300, in("tokens")},
		{200, in("spaced")},
		{250, in("clock")},
		{250, in("counted")},
		{200, func() { p.plain("costly", 1+p.r.intN(4)) }},
		{150, in("deep.a")},
		{150, in("deep.b")},
		{100, in("deep")},
		{300, in("busy")},
		{4, func() { repeat(1+p.r.intN(12), waits) }},
		{100, in("soon")},
		{30, func() { p.publishEvent(entry{Category: "vital", Fate: certain}, "") }},
		{80, func() { p.pair("pairs") }},
		{3, func() { p.pair("later") }},
		{15, p.group},
		{15, p.bad},
		{10, func() { p.publishEvent(entry{Category: "vital.rejected", Fate: doomed}, "reject me") }},
		{60, p.keyed},
		{80, p.fold},
		{5, p.swing},
		{40, in(mutedCategory)},
		{60, p.twice},
		{40, p.text},
	} {
		kinds = append(kinds, slices.Repeat([]func(){kind.publish}, kind.weight)...)
	}
	return kinds
}

// meanPause gives about the rates of kinds.
const meanPause = 40 * time.Millisecond

// run publishes until the end, and then all follow-ups. Each publish has its own draws and its own time, so a NATS server that is away delays
// publishes, and changes none of them.
func (p *publisher) run(end <-chan struct{}) {
	kinds := p.kinds()
	p.at = time.Now()
	for n, ended := uint64(0), false; !ended; n++ {
		p.r = newRandom(p.seed, publishes+n)
		p.at = p.at.Add(p.r.between(0, 2*meanPause))
		select {
		case <-end:
			ended = true
		case <-time.After(time.Until(p.at)):
		}
		p.follow(ended)
		kinds[p.r.intN(len(kinds))]()
	}
	p.follow(true)
	p.watching.Wait()
}

// follow publishes the due follow-ups, or all.
func (p *publisher) follow(all bool) {
	slices.SortStableFunc(p.later, func(a, b followUp) int { return a.at.Compare(b.at) })
	for len(p.later) > 0 && (all || time.Now().After(p.later[0].at)) {
		due := p.later[0]
		p.later = p.later[1:]
		due.do()
	}
}

func (p *publisher) followUp(in time.Duration, do func()) {
	p.later = append(p.later, followUp{p.at.Add(in), do})
}

func repeat(n int, publish func()) {
	for range n {
		publish()
	}
}

func (p *publisher) newID(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return fmt.Sprintf("%s-%d", name, p.next)
}

// enter puts an event into the ledger.
func (p *publisher) enter(e entry) *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.Cost = max(e.Cost, 1)
	if e.Identity == "" {
		e.Identity = event.Event{Category: e.Category, ID: e.ID}.Identity()
	}
	p.entries[e.ID] = &e
	return &e
}

func (p *publisher) plain(category string, cost int) {
	p.publishEvent(entry{Category: category, Cost: int64(cost), Fate: limited}, "")
}

// publishEvent publishes an event with an ID in its body.
func (p *publisher) publishEvent(e entry, title string) *entry {
	if e.ID == "" {
		e.ID = p.newID(strings.ReplaceAll(e.Category, ".", "_"))
	}
	if title == "" {
		title = fmt.Sprintf("something of kind %d", p.r.intN(5))
	}
	entered := p.enter(e)
	p.publish(entered, nil, fmt.Sprintf(`{"id":%q,"title":%q,"cost":%d}`, entered.ID, title, entered.Cost))
	return entered
}

// text publishes plain text with a Nats-Msg-Id.
func (p *publisher) text() {
	e := p.enter(entry{ID: p.newID("text"), Category: "clock", Fate: limited})
	p.publish(e, nats.Header{nats.MsgIdHdr: {e.ID}}, "plain text about something")
}

// twice publishes an ID twice in the body, where JetStream does not see it.
func (p *publisher) twice() {
	e := p.publishEvent(entry{ID: p.newID("twice"), Category: "deep.a", Fate: limited}, "")
	p.followUp(p.r.between(0, 15*time.Second), func() { p.publish(e, nil, fmt.Sprintf(`{"id":%q,"title":"once more"}`, e.ID)) })
}

// bad publishes a body that becomes a dead letter.
func (p *publisher) bad() {
	bodies := []string{`{"title":`, `{}`, "\xff\xfe", `{"title":"costs too much","cost":1000}`, `{"title":"x","time":"yesterday"}`}
	e := p.enter(entry{ID: p.newID("bad"), Category: "vital.broken", Fate: doomed})
	p.publish(e, nats.Header{nats.MsgIdHdr: {e.ID}}, bodies[p.r.intN(len(bodies))])
}

// pair publishes a firing event, and later the resolved one.
func (p *publisher) pair(category string) {
	key := p.newID("key")
	fateOfFiring := limited
	if category == "later" {
		fateOfFiring = certain
	}
	f := p.enter(entry{ID: "firing-" + key, Category: category, Fate: fateOfFiring})
	p.publish(f, nil, fmt.Sprintf(`{"id":%q,"title":"it began","status":"firing","key":%q,"severity":"error"}`, f.ID, key))
	p.followUp(p.r.between(0, 20*time.Second), func() {
		r := p.enter(entry{ID: "resolved-" + key, Category: category, Fate: resolves, Resolves: f.ID})
		p.publish(r, nil, fmt.Sprintf(`{"id":%q,"title":"it is over","status":"resolved","key":%q}`, r.ID, key))
	})
}

// group publishes a body of several alerts, and later the same alerts resolved.
func (p *publisher) group() {
	alerts := 2 + p.r.intN(4)
	key := p.newID("group")
	publish := func(status string, of func(event.Event) entry) {
		id := key + "-" + status
		var bodies []string
		var parts []*entry
		for i := range alerts {
			fingerprint := fmt.Sprintf("%s-%d", key, i)
			bodies = append(bodies, fmt.Sprintf(
				`{"status":%q,"labels":{"alertname":"alert %d","severity":"critical"},"fingerprint":%q}`, status, i, fingerprint))
			parts = append(parts, p.enter(of(event.Event{Category: "groups", ID: id, Part: fingerprint})))
		}
		// The group is no event. It ends when its alerts are stored.
		whole := &entry{Category: "groups"}
		p.publish(whole, nats.Header{nats.MsgIdHdr: {id}}, fmt.Sprintf(`{"status":%q,"alerts":[%s]}`, status, strings.Join(bodies, ",")))
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, part := range parts {
			part.Began, part.Stored = whole.Began, whole.Stored
			part.Copies, part.Retried = 2*whole.Copies, whole.Retried // a worker may store each of them twice
		}
	}
	publish("firing", func(e event.Event) entry {
		return entry{ID: e.ShownID(), Identity: e.Identity(), Category: e.Category, Fate: limited}
	})
	p.followUp(p.r.between(0, 20*time.Second), func() {
		publish("resolved", func(e event.Event) entry {
			return entry{ID: e.ShownID(), Identity: e.Identity(), Category: e.Category, Fate: resolves, Resolves: key + "-firing/" + e.Part}
		})
	})
}

// publish publishes a message until JetStream acks it. It draws before the first try, and nothing for a later message of an event, so neither a
// failed publish nor the time of a follow-up changes later draws.
func (p *publisher) publish(e *entry, header nats.Header, body string) {
	isWatched := e.Fate == limited && e.Copies == 0 && p.r.chance(watched)
	message := &nats.Msg{Subject: "notify." + e.Category, Header: header, Data: []byte(body)}
	for {
		p.mu.Lock()
		p.count++
		e.Copies++
		if e.Began.IsZero() {
			e.Began = time.Now()
		}
		p.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		ack, err := p.d.js.PublishMsg(ctx, message, jetstream.WithRetryAttempts(0))
		cancel()
		if err == nil {
			p.stored(e)
			if isWatched && e.Copies == 1 { // the end of one of several messages says nothing about the event
				p.watching.Go(func() { p.watch(e, ack.Sequence) })
			}
			return
		}
		p.mu.Lock()
		e.Retried = true
		p.mu.Unlock()
		time.Sleep(100 * time.Millisecond) // the pace of a producer's retries
	}
}

// watched is the percentage of messages that are watched until their end.
const watched = 10

func (p *publisher) stored(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.Stored.IsZero() {
		e.Stored = time.Now()
	}
}

// watch notes the end of a message, if it comes soon.
func (p *publisher) watch(e *entry, sequence uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	stream, err := p.d.js.Stream(ctx, streamName)
	for err == nil {
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
		_, err = stream.GetMsg(ctx, sequence)
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.Settled = time.Now()
	}
}
