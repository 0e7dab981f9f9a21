package tests

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// Limits of the proof. The limits of categories fill up first, and the global limit during the publishing.
const (
	proofCategory = 40 // slots of each first-level category
	proofPatient  = 20 // slots of the category whose events wait
	proofOld      = 30 // events that expire before the first worker
)

// Kinds of the events of the proof.
const (
	plainEvent    = iota
	oldEvent      // expires before the first worker
	repeatedEvent // a message with the ID of an earlier one
	rejectedEvent // Slack refuses its message
	brokenEvent   // no event at all
	firingEvent
	resolvedEvent
)

// published is one message of the proof.
type published struct {
	kind     int
	id       string // as workers show it
	category string
	body     string
	sequence uint64
	stored   time.Time
}

// proof is a deployment, with its published messages, the kills, and the effects seen from outside.
type proof struct {
	*deployment
	random  *rand.Rand
	global  int // slots of the global limit
	events  []*published
	ofID    map[string]int // how many messages have an ID
	workers fleet
	kills   []time.Time
	floors  []floor // ack floors of the consumer, in the order of time

	posts   map[string]int    // accepted, by IDs
	letters map[string]string // reasons of dead letters, by IDs
	waiting map[string]bool   // IDs of what waits for a slot
}

// floor is the ack floor of the consumer at a time.
type floor struct {
	sequence uint64
	at       time.Time
}

// TestProof publishes thousands of random events, and kills some workers. Events wait, pair, repeat, are rejected, are bad, or have a muted
// category or full limits. The answers of `notifier why` have to agree with Slack, the dead letters and the room.
// NOTIFIER_TEST_SEED repeats the events.
func TestProof(t *testing.T) {
	t.Parallel()
	p := newProof(t, hostile.Times(t, 3000, 6000))
	asked := hostile.Times(t, 100, 100)
	p.expireOld()
	p.workers = p.startFleet(4, p.changes()...)
	run(t, p.settings(), "limits", "set", "muted", "0/1h", "--as", "ada").want(0)
	p.workers.awaitLog(2, "limits in force") // before and after the change
	p.publishAndKill(hostile.Times(t, 2, 1))
	early := p.askEarly()
	p.awaitSettled()
	p.look()
	p.wantAnswers(asked)
	p.wantNoOtherEnd(early)
	p.wantTotals()
}

func newProof(t *testing.T, size int) *proof {
	seed := uint64(time.Now().UnixNano())
	if given := proofSeed(t); given != 0 {
		seed = given
	}
	t.Logf("NOTIFIER_TEST_SEED=%d", seed)
	p := &proof{
		deployment: newDeployment(t), random: rand.New(rand.NewPCG(seed, 0)), global: size / 12,
		ofID: make(map[string]int), letters: make(map[string]string), waiting: make(map[string]bool),
	}
	var posts atomic.Int64
	p.slack.Respond(func(post slacktest.Post) slacktest.Answer {
		switch {
		case strings.HasPrefix(post.Origin("id"), "rejected"):
			return slacktest.Code("invalid_blocks")
		case posts.Add(1)%97 == 0:
			return slacktest.Status(503, "")
		}
		return slacktest.Delay(2*time.Millisecond, slacktest.OK())
	})
	for i := range size - proofOld {
		p.events = append(p.events, p.draw(i))
	}
	return p
}

func (p *proof) changes(more ...string) []string {
	return append(quick(
		"GLOBAL_LIMIT", fmt.Sprintf("%d/1h", p.global), "CATEGORY_LIMIT", fmt.Sprintf("%d/1h", proofCategory),
		"LIMITS", fmt.Sprintf("free=none,patient=%d/1h", proofPatient), "DELAY", "patient=6h", "EVENT_MAX_AGE", "0",
	), more...)
}

func (p *proof) draw(number int) *published {
	e := &published{id: fmt.Sprintf("evt-%d", number)}
	switch draw := p.random.IntN(100); {
	case draw < 35:
		e.category = "flood"
	case draw < 70:
		e.category = fmt.Sprintf("spread%d", p.random.IntN(4))
		if p.random.IntN(2) == 0 {
			e.category += ".below"
		}
	case draw < 80:
		e.category = "free"
	case draw < 81:
		e.category, e.kind, e.id = "free", rejectedEvent, "rejected-"+e.id
	case draw < 82:
		e.category, e.kind, e.body = "broken", brokenEvent, "{broken"
	case draw < 86:
		e.category = "muted"
	case draw < 90:
		e.category = "patient"
	case draw < 94:
		p.drawPair(e, number)
	case draw < 96:
		e.category, e.id, e.body = "spread0", "", `{"title":"an event without an ID"}`
	default:
		p.drawRepeated(e)
	}
	if e.body == "" {
		e.body = eventBody(e.id)
	}
	return e
}

// drawPair makes a firing event, or an event that resolves an earlier one.
func (p *proof) drawPair(e *published, number int) {
	e.category, e.kind = "disks", firingEvent
	key := fmt.Sprint("disk-", number)
	e.body = firing(e.id, key)
	earlier := slices.DeleteFunc(slices.Clone(p.events), func(before *published) bool { return before.kind != firingEvent })
	if len(earlier) > 0 && p.random.IntN(2) == 0 {
		opened := earlier[p.random.IntN(len(earlier))]
		e.kind = resolvedEvent
		e.body = resolved(e.id, strings.Replace(opened.id, "evt", "disk", 1))
	}
}

// drawRepeated makes a message with the ID of an earlier one.
func (p *proof) drawRepeated(e *published) {
	for range 100 {
		if len(p.events) == 0 {
			break
		}
		before := p.events[p.random.IntN(len(p.events))]
		if before.kind == plainEvent && before.id != "" && before.category != "patient" {
			*e = published{kind: repeatedEvent, id: before.id, category: before.category}
			return
		}
	}
	e.category = "free"
}

// expireOld publishes events, and starts a worker after they have expired.
func (p *proof) expireOld() {
	p.createStream()
	var old []*published
	for i := range proofOld {
		e := &published{kind: oldEvent, id: fmt.Sprintf("old-%d", i), category: "flood"}
		e.body = eventBody(e.id)
		old = append(old, e)
	}
	p.store(old)
	time.Sleep(1100 * time.Millisecond) // they have to become too old
	w := p.startReady("worker before the others", p.changes("EVENT_MAX_AGE", "1s")...)
	w.alone().awaitOutcomes(map[string]int{"expired": proofOld})
	w.stop()
	p.events = append(old, p.events...)
}

// store publishes events, and notes their sequences.
func (p *proof) store(events []*published) {
	p.t.Helper()
	futures := make([]jetstream.PubAckFuture, len(events))
	for i, e := range events {
		var header nats.Header
		if e.kind == brokenEvent {
			header = nats.Header{"Nats-Msg-Id": {e.id}, "Content-Type": {"application/json"}}
		}
		m := &nats.Msg{Subject: subjectPrefix + "." + e.category, Header: header, Data: []byte(e.body)}
		futures[i] = testkit.Must(p.js.PublishMsgAsync(m))(p.t)
	}
	p.awaitStored()
	for i, e := range events {
		select {
		case stored := <-futures[i].Ok():
			e.sequence, e.stored = stored.Sequence, time.Now()
		case err := <-futures[i].Err():
			p.t.Fatalf("publish to %s: %v", e.category, err)
		}
		if e.id == "" {
			e.id = fmt.Sprintf("%s:%d", streamName, e.sequence)
		}
		p.ofID[e.id]++
	}
}

// publishAndKill publishes the events in bursts, and kills and replaces workers meanwhile.
func (p *proof) publishAndKill(kills int) {
	p.t.Helper()
	burst := max(1, (len(p.events)-proofOld)/20)
	bursts := slices.Collect(slices.Chunk(p.events[proofOld:], burst))
	for i, events := range bursts {
		p.store(events)
		if i > len(bursts)/2 {
			time.Sleep(time.Duration(p.random.IntN(400)) * time.Millisecond) // the journal notes so many events of a second singly
		}
		p.noteFloor()
		if kill := len(p.kills); kill < kills && i >= (kill+1)*len(bursts)/(kills+3) {
			victim := p.random.IntN(len(p.workers))
			p.workers[victim].kill()
			p.kills = append(p.kills, time.Now())
			p.workers[victim] = p.startWorker(fmt.Sprintf("worker %d", len(p.workers)+kill+1), p.changes()...)
		}
	}
	p.workers.awaitReady()
}

func (p *proof) noteFloor() {
	p.t.Helper()
	p.awaitConsumer("how far the workers have come", func(info *jetstream.ConsumerInfo) bool {
		p.floors = append(p.floors, floor{info.AckFloor.Stream, time.Now()})
		return true
	})
}

// awaitSettled waits until every event has an outcome or waits for a slot.
func (p *proof) awaitSettled() {
	p.t.Helper()
	testkit.Await(p.t, "outcomes of all events", func() error {
		left, err := p.left(streamName)
		if err != nil || left > 0 {
			return fmt.Errorf("%d events are left: %w", left, err)
		}
		inRoom, err := p.left(roomStreamName)
		if err != nil {
			return err
		}
		patient, err := p.onSubjects(roomStreamName, "notify-room.slot.patient.>")
		if err == nil && inRoom > patient {
			err = fmt.Errorf("%d events are in the room, of which %d wait for a slot", inRoom, patient)
		}
		return err
	})
	p.noteFloor()
}

// look notes the events in Slack, in the dead letters and in the room.
func (p *proof) look() {
	p.t.Helper()
	p.posts = count(p.slack.Accepted(), "id")
	for _, letter := range p.deadLetters() {
		p.letters[letter.Header.Get("Notifier-Id")] = letter.Header.Get("Notifier-Reason")
	}
	stream := testkit.Must(p.js.Stream(p.t.Context(), roomStreamName))(p.t)
	for sequence := uint64(1); ; {
		m, err := stream.GetMsg(p.t.Context(), sequence, jetstream.WithGetMsgSubject("notify-room.slot.patient.>"))
		if err != nil {
			break // there are no more
		}
		p.waiting[m.Header.Get("Notifier-Id")] = true
		sequence = m.Sequence + 1
	}
	outcomes := make(map[string]int)
	for _, e := range p.events {
		outcomes[p.outcome(e)]++
	}
	p.t.Logf("outcomes as seen from outside: %v", outcomes)
	for _, want := range []string{"sent", "dropped", "dead", "expired", "waiting"} {
		testkit.Check(p.t, outcomes[want] != 0, "no event is %s: the test shows less than it should", want)
	}
}
