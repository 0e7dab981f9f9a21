package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/pacing"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
	"github.com/seed-4578ace9/notifier/internal/throttle"
)

func TestMain(m *testing.M) {
	servertest.MoreTestsAtOnce(16)
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

var testNames = Names{
	Stream: "EVENTS", Subject: "notify", Consumer: "notifier", MaxBytes: 64 << 20, MaxAge: 7 * 24 * time.Hour,
	RoomStream:       "ROOM",
	DeadLetterStream: "DEAD", DeadLetterSubject: "notify-dlq",
	DeadLetters: DeadLetterBounds{PerSubject: 100, Bytes: 64 << 20, Age: 30 * 24 * time.Hour},
}

// journal lists what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
	names map[string]string // of events, by their identities
}

func (j *journal) add(format string, values ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, values...))
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// name tells the journal how an event is shown.
func (j *journal) name(e event.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.names == nil {
		j.names = make(map[string]string)
	}
	j.names[e.Identity()] = e.ShownID()
}

// shown is how the event of an identity is shown: a part of a group by its name too, once that was told.
func (j *journal) shown(identity string) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if name, known := j.names[identity]; known {
		return name
	}
	return idIn(identity)
}

// idIn is the ID that stands in an identity.
func idIn(identity string) string {
	_, id, found := strings.Cut(identity, " ")
	if !found {
		return identity
	}
	return id
}

// shown is the ID of the event that is asked about.
func shown(r throttle.Request) string { return idIn(r.ID) }

func (j *journal) count(line string) int {
	n := 0
	for _, l := range j.all() {
		if l == line {
			n++
		}
	}
	return n
}

// about lists what happened to one event.
func (j *journal) about(id string) []string {
	var lines []string
	for _, line := range j.all() {
		if what, found := strings.CutSuffix(line, " "+id); found {
			lines = append(lines, what)
		}
	}
	return lines
}

// fakeThrottle admits everything unless it is told otherwise.
type fakeThrottle struct {
	journal *journal
	judge   func(ctx context.Context, c throttle.Request) (throttle.Decision, error) // nil: admit
	full    func(category string) (string, bool)                                     // nil: nothing is full
	await   func(ctx context.Context) error                                          // nil: at once
	reserve func(destination string, maxWait time.Duration) post                     // nil: now, or when the destination has rested
	askRest func()                                                                   // called when it is asked whether a destination rests; nil: nothing
	enter   func(stay throttle.Stay) bool                                            // nil: all may stay
	passed  func(at position) (int64, error)                                         // nil: nothing has vanished

	enterFails error

	delay   func(c throttle.Request, longest time.Duration) (throttle.DelayVerdict, time.Duration, error)
	planned func(c throttle.Request) (time.Duration, bool, error) // nil: nothing is

	recorded func(c throttle.Request) bool // nil: that is not known

	mu         sync.Mutex
	candidates []throttle.Request
	finished   map[string]bool          // events that were delivered, by identity
	entered    map[string]throttle.Stay // stays that were entered and not left, by category and member
	mostInRoom int                      // stays at once
	unpaired   map[string]bool          // pairs that are known not to be open
	positions  []position               // that were told
	resting    map[string]time.Time
	pauses     map[string]time.Duration // what Pause was told last
}

func (f *fakeThrottle) Full(category string) (string, bool) {
	if f.full == nil {
		return "", false
	}
	return f.full(category)
}

func (f *fakeThrottle) Decide(ctx context.Context, candidates []throttle.Request) ([]throttle.Decision, error) {
	f.mu.Lock()
	f.candidates = append(f.candidates, candidates...)
	f.mu.Unlock()
	decisions := make([]throttle.Decision, len(candidates))
	for i, c := range candidates {
		if f.judge == nil {
			decisions[i] = f.admit(c)
			continue
		}
		var err error
		if decisions[i], err = f.judge(ctx, c); err != nil {
			return nil, err
		}
	}
	return decisions, nil
}

func (f *fakeThrottle) Await(ctx context.Context) error {
	if f.await == nil {
		return ctx.Err()
	}
	return f.await(ctx)
}

func (f *fakeThrottle) Pause(_ context.Context, destination string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[destination] = time.Now().Add(d)
	f.pauses[destination] = d
}

func (f *fakeThrottle) rest(destination string) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, time.Until(f.resting[destination]))
}

// post is when a destination takes its next message.
type post struct {
	wait    time.Duration
	tooLate bool // beyond the maxWait
}

func (f *fakeThrottle) Reserve(_ context.Context, destination string, maxWait time.Duration) pacing.Reservation {
	next := post{wait: f.rest(destination)}
	next.tooLate = next.wait > maxWait
	if f.reserve != nil {
		next = f.reserve(destination, maxWait)
	}
	return pacing.Reservation{Wait: next.wait, OK: !next.tooLate}
}

func (f *fakeThrottle) Paused(destination string) time.Duration { return f.rest(destination) }

func (f *fakeThrottle) CheckPause(_ context.Context, destination string) time.Duration {
	if f.askRest != nil {
		f.askRest()
	}
	return f.rest(destination)
}

func (f *fakeThrottle) EnterRoom(_ context.Context, stays []throttle.Stay) ([]bool, error) {
	if f.enterFails != nil {
		return nil, f.enterFails
	}
	mayStay := make([]bool, len(stays))
	for i, stay := range stays {
		if mayStay[i] = f.enter == nil || f.enter(stay); mayStay[i] {
			f.mu.Lock()
			f.entered[stay.First+" "+stay.Member] = stay
			f.mostInRoom = max(f.mostInRoom, len(f.entered))
			f.mu.Unlock()
		}
	}
	return mayStay, nil
}

func (f *fakeThrottle) LeaveRoom(_ context.Context, stays []throttle.Stay) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, stay := range stays {
		name := stay.First + " " + stay.Member
		if f.entered[name].Weight <= stay.Weight { // else some of its places are left
			delete(f.entered, name)
		}
	}
	return nil
}

func (f *fakeThrottle) Records(context.Context) throttle.Recorded {
	if f.recorded == nil {
		return nil
	}
	return f.recorded
}

// inRoom lists the stays that were entered and not left.
func (f *fakeThrottle) inRoom() []throttle.Stay {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.entered))
}

func (f *fakeThrottle) KnownUnpaired(pair string, _ time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.unpaired[pair]
}

func (f *fakeThrottle) LearnUnpaired(pair string, _ time.Time) {
	f.journal.add("learns %s", strings.ReplaceAll(pair, "\n", "/"))
}

// position is how far a consumer has come, as Passed is told it.
type position struct {
	consumer             string
	sequence, deliveries uint64
}

func (f *fakeThrottle) Passed(_ context.Context, consumer string, sequence, deliveries uint64) (int64, error) {
	at := position{consumer, sequence, deliveries}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.positions = append(f.positions, at)
	if f.passed == nil {
		return 0, nil
	}
	return f.passed(at)
}

func (f *fakeThrottle) Delay(_ context.Context, p throttle.Postponement) (throttle.DelayVerdict, time.Duration, error) {
	return f.delay(p.Request, p.Longest)
}

func (f *fakeThrottle) Planned(_ context.Context, c throttle.Request) (time.Duration, bool, error) {
	if f.planned == nil {
		return 0, false, nil
	}
	return f.planned(c)
}

func (f *fakeThrottle) asked() []throttle.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.candidates)
}

func (f *fakeThrottle) grant(c throttle.Request) *fakeGrant {
	return &fakeGrant{id: c.ID, journal: f.journal, finish: func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		newly := !f.finished[c.ID]
		f.finished[c.ID] = true
		return newly
	}}
}

func (f *fakeThrottle) admit(c throttle.Request) throttle.Decision {
	return throttle.Decision{Verdict: throttle.Admitted, Grant: f.grant(c)}
}

// fakeGrant notes what becomes of it.
type fakeGrant struct {
	id      string
	journal *journal
	finish  func() bool // tells whether it was not delivered before; nil: it was not
	extend  func() bool // nil: it is renewed
	refund  func()      // called before the refund is noted
}

// note writes the word, and that the context had ended already, since a real grant could tell nobody then.
func (g *fakeGrant) note(ctx context.Context, word string) {
	if ctx.Err() != nil {
		word += " too late"
	}
	g.journal.add("%s %s", word, g.journal.shown(g.id))
}

func (g *fakeGrant) Finish(ctx context.Context, receipt string) bool {
	if receipt != "" {
		g.journal.add("keep %s %s", receipt, g.journal.shown(g.id))
	}
	g.note(ctx, "finish")
	return g.finish == nil || g.finish()
}

func (g *fakeGrant) Release(ctx context.Context, inDoubt bool) {
	if inDoubt {
		g.note(ctx, "release in doubt")
		return
	}
	g.note(ctx, "release")
}

func (g *fakeGrant) Refund(ctx context.Context) {
	if g.refund != nil {
		g.refund()
	}
	g.note(ctx, "refund")
}

func (g *fakeGrant) Extend(ctx context.Context) bool {
	g.note(ctx, "extend")
	return g.extend == nil || g.extend()
}

// fakeSink takes everything unless it is told otherwise. Events of one category have one destination.
type fakeSink struct {
	journal     *journal
	send        func(ctx context.Context, e event.Event, attempt int) error // attempts count from 1
	receipt     string                                                      // of each post
	prepare     func(e event.Event) string                                  // what stands at the top of its message; nil: nothing
	destination func(e event.Event) string                                  // nil: the category
	named       []string                                                    // destinations that the settings name

	mu       sync.Mutex
	prepared map[string]string // what Send was handed, by ID
	attempts map[string]int
	events   []event.Event // that Send was handed
	running  int
	most     int // posts at once
}

func (f *fakeSink) Send(ctx context.Context, n sink.Delivery) (receipt string, err error) {
	e := n.Event
	f.mu.Lock()
	f.attempts[e.ShownID()]++
	f.events = append(f.events, e)
	f.prepared[e.ShownID()] = n.Mention
	attempt := f.attempts[e.ShownID()]
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.running--
	}()
	what := "send"
	if n.Opened != "" {
		what = "resolve " + n.Opened
	}
	f.journal.add("%s %s", what, e.ShownID())
	if f.send == nil {
		return f.receipt, nil
	}
	return f.receipt, f.send(ctx, e, attempt)
}

func (f *fakeSink) Destination(n sink.Delivery) string {
	f.journal.name(n.Event)
	if f.destination != nil {
		return f.destination(n.Event)
	}
	return n.Event.Category
}

func (f *fakeSink) Destinations() []string { return f.named }

func (f *fakeSink) Prepare(d sink.Delivery) sink.Delivery {
	if f.prepare != nil {
		d.Mention = f.prepare(d.Event)
	}
	return d
}

// handed lists the events that it was to send.
func (f *fakeSink) handed() []event.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

func (f *fakeSink) mostAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// fakeMetrics counts.
type fakeMetrics struct {
	testkit.Counts
	mu   sync.Mutex
	most int // in hand at once
}

func (f *fakeMetrics) Event(category, outcome string, n int) { f.Add(outcome+" "+category, n) }
func (f *fakeMetrics) Dropped(category, level string, n int) { f.Add("by "+level+" "+category, n) }
func (f *fakeMetrics) DeadLetter(reason string)              { f.Add("letter "+reason, 1) }
func (f *fakeMetrics) DeadLettersDiscarded(n int)            { f.Add("letters discarded", n) }
func (f *fakeMetrics) EventAge(time.Duration)                { f.Add("age", 1) }
func (f *fakeMetrics) Held(delta int)                        { f.Add("held", delta) }
func (f *fakeMetrics) Resolved(result string)                { f.Add("resolved "+result, 1) }
func (f *fakeMetrics) Split()                                { f.Add("split", 1) }
func (f *fakeMetrics) Delayed()                              { f.Add("delayed", 1) }
func (f *fakeMetrics) Redelivered(n int)                     { f.Add("redelivered", n) }

func (f *fakeMetrics) AckPending(n int)                 { f.Set("ack pending", n) }
func (f *fakeMetrics) RoomPending(reason string, n int) { f.Set("in the room: "+reason, n) }
func (f *fakeMetrics) RoomRefused(reason string, n int) { f.Add("refused by the room: "+reason, n) }
func (f *fakeMetrics) Vanished(n int)                   { f.Add("vanished", n) }

func (f *fakeMetrics) InFlight(delta int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.most = max(f.most, f.Add("in hand", delta))
}

func (f *fakeMetrics) mostInHand() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// outcomes is how many events ended, by outcome and category.
func (f *fakeMetrics) outcomes() map[string]int {
	outcomes := f.All()
	maps.DeleteFunc(outcomes, func(name string, _ int) bool {
		outcome, _, _ := strings.Cut(name, " ")
		return !slices.Contains([]Outcome{Sent, Dropped, Duplicate, Dead, Expired}, Outcome(outcome))
	})
	return outcomes
}

func (f *fakeMetrics) ended() int {
	sum := 0
	for _, n := range f.outcomes() {
		sum += n
	}
	return sum
}

// spy hears what workers tell the server about messages.
type spy struct {
	mu    sync.Mutex
	words map[uint64][]string // by sequence of the producers' stream
}

func newSpy(t testing.TB, conn *nats.Conn) *spy {
	t.Helper()
	s := &spy{words: make(map[uint64][]string)}
	testkit.Must(conn.Subscribe("$JS.ACK.>", s.hear))(t)
	testkit.NoError(t, conn.FlushTimeout(patience))
	return s
}

// hear reads $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.… and leaves out what is about no message of the
// producers.
func (s *spy) hear(m *nats.Msg) {
	tokens := strings.Split(m.Subject, ".")
	if len(tokens) < 6 || tokens[2] != testNames.Stream {
		return
	}
	sequence, err := strconv.ParseUint(tokens[5], 10, 64)
	if err != nil {
		panic(fmt.Sprintf("an acknowledgement on %s: %v", m.Subject, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.words[sequence] = append(s.words[sequence], string(m.Data))
}

// about lists what was said about a message, extensions of its lease left out.
func (s *spy) about(sequence uint64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.words[sequence]), func(word string) bool { return word == string(sayInProgress) })
}

// delays is how long the message was put off each time it was given back.
func (s *spy) delays(t testing.TB, sequence uint64) []time.Duration {
	t.Helper()
	var delays []time.Duration
	for _, word := range s.about(sequence) {
		if delay, given := delayOf(t, word); given {
			delays = append(delays, delay)
		}
	}
	return delays
}

func delayOf(t testing.TB, word string) (delay time.Duration, givenBack bool) {
	t.Helper()
	rest, givenBack := strings.CutPrefix(word, sayNak)
	if rest == "" {
		return 0, givenBack
	}
	number, _ := strings.CutPrefix(rest, ` {"delay": `)
	nanoseconds, err := strconv.ParseInt(strings.TrimSuffix(number, "}"), 10, 64)
	if givenBack && err != nil {
		t.Fatalf("given back with %q: %v", word, err)
	}
	return time.Duration(nanoseconds), givenBack
}

// fixture is a NATS server, and what a worker on it meets.
type fixture struct {
	testing.TB
	server   *servertest.NATS
	js       jetstream.JetStream
	journal  *journal
	throttle *fakeThrottle
	sink     *fakeSink
	metrics  *fakeMetrics
	log      *testkit.Log
	said     *spy
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureOn(t, servertest.StartNATS(t))
}

func newFixtureOn(t *testing.T, server *servertest.NATS, options ...nats.Option) *fixture {
	t.Helper()
	conn := servertest.Connect(t, server.URL, append(options, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	js := testkit.Must(jetstream.New(conn))(t)
	events := &journal{}
	return &fixture{
		TB: t, server: server, js: js, journal: events,
		throttle: &fakeThrottle{
			journal: events, resting: make(map[string]time.Time), pauses: make(map[string]time.Duration),
			entered: make(map[string]throttle.Stay), unpaired: make(map[string]bool), finished: make(map[string]bool),
		},
		sink:    &fakeSink{journal: events, attempts: make(map[string]int), prepared: make(map[string]string)},
		metrics: &fakeMetrics{}, log: testkit.NewLog(t), said: newSpy(t, conn),
	}
}

// provision makes what a worker would make.
func (f *fixture) provision(ackWait time.Duration) place {
	f.Helper()
	return testkit.Must(testNames.provision(f.Context(), f.js, ackWait, true, slog.New(slog.DiscardHandler)))(f)
}

// publish stores a message and returns its sequence. Headers are pairs of names and values.
func (f *fixture) publish(subject, body string, headers ...string) uint64 {
	f.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Add(headers[i], headers[i+1])
	}
	stored, err := f.js.PublishMsg(f.Context(), m)
	if err != nil {
		f.Fatalf("publish on %s: %v", subject, err)
	}
	return stored.Sequence
}

// event publishes an event of that ID.
func (f *fixture) event(category, id string) uint64 {
	f.Helper()
	return f.publish("notify."+category, fmt.Sprintf(`{"id": %q, "title": "an event"}`, id))
}

// deliverOnce takes a message as an instance does that then crashes: it comes again at once.
func (f *fixture) deliverOnce(found place) {
	f.Helper()
	m := testkit.Must(found.consumer.Next(jetstream.FetchMaxWait(patience)))(f)
	testkit.NoError(f, m.Nak())
}

// running is a worker at work.
type running struct {
	*Worker
	f      *fixture
	cancel context.CancelFunc
	result chan error
}

func (f *fixture) options(connection *Connection) Options {
	return Options{
		Connection: connection, Names: testNames, Provision: true, AckWait: patience,
		Decoder: event.Decoder{Prefix: testNames.Subject, MaxBytes: 1 << 20}, Concurrency: 4,
		SendTimeout: time.Second, Shutdown: patience, Logger: f.log.Logger(), Metrics: f.metrics,
	}
}

func (f *fixture) connect(url string) *Connection {
	f.Helper()
	return f.connectAs(ConnectOptions{URL: url})
}

func (f *fixture) connectAs(o ConnectOptions) *Connection {
	f.Helper()
	o.Logger = f.log.Logger()
	connection := testkit.Must(Connect(o))(f)
	f.Cleanup(func() {
		connection.Conn.Close()
		<-connection.Closed()
	})
	return connection
}

// newWorker makes a worker that is not started yet.
func (f *fixture) newWorker(change func(*Options)) *Worker {
	f.Helper()
	o := f.options(nil)
	if change != nil {
		change(&o)
	}
	if o.Connection == nil {
		o.Connection = f.connect(f.server.URL)
	}
	return testkit.Must(New(o))(f)
}

// start prepares and runs a worker, and stops it with the test.
func (f *fixture) start(change func(*Options)) *running {
	f.Helper()
	w := f.newWorker(change)
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	if _, _, err := w.Prepare(ctx); err != nil {
		f.Fatal(err)
	}
	return f.run(w)
}

func (f *fixture) run(w *Worker) *running {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{Worker: w, f: f, cancel: cancel, result: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.result <- w.Run(ctx, f.throttle, f.throttle, f.sink)
	}()
	f.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// stop ends the worker in good order.
func (r *running) stop() {
	r.f.Helper()
	r.cancel()
	r.wait()
}

// wait returns when the worker has ended.
func (r *running) wait() {
	r.f.Helper()
	select {
	case err := <-r.result:
		if err != nil {
			r.f.Errorf("the worker ended with %v, want no error", err)
		}
	case <-time.After(patience):
		r.f.Fatal("the worker does not end")
	}
}

// eventually waits until a condition holds.
func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	testkit.Await(f, what, func() error {
		if !holds() {
			return fmt.Errorf("happened: %q\noutcomes: %v", f.journal.all(), f.metrics.outcomes())
		}
		return nil
	})
}

func (f *fixture) stream(name string) jetstream.Stream {
	f.Helper()
	return testkit.Must(f.js.Stream(f.Context(), name))(f)
}

func (f *fixture) streamInfo(name string) *jetstream.StreamInfo {
	f.Helper()
	return f.stream(name).CachedInfo()
}

func (f *fixture) consumerInfo() *jetstream.ConsumerInfo {
	f.Helper()
	consumer := testkit.Must(f.js.Consumer(f.Context(), testNames.Stream, testNames.Consumer))(f)
	return consumer.CachedInfo()
}

// awaitSettled waits until as many events as were published have ended, and JetStream has none left.
func (f *fixture) awaitSettled(n int) {
	f.Helper()
	f.eventually(fmt.Sprintf("%d events end", n), func() bool { return f.metrics.ended() >= n })
	// An event is counted when its delivery is recorded, before its message is acknowledged.
	testkit.Soon(func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
	f.requireEmpty()
}

// requireEmpty waits until all messages are acknowledged: what is sent counts before that.
func (f *fixture) requireEmpty() {
	f.Helper()
	f.eventually("the stream is empty", func() bool {
		return f.streamInfo(testNames.Stream).State.Msgs == 0 && f.consumerInfo().NumAckPending == 0
	})
}

// inRoom lists the messages of the room on a subject.
func (f *fixture) inRoom(subject string) (found []*jetstream.RawStreamMsg) {
	f.Helper()
	stream := testkit.Must(f.js.Stream(f.Context(), testNames.RoomStream))(f)
	for next := uint64(1); ; {
		m, err := stream.GetMsg(f.Context(), next, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			return found
		}
		found = append(found, m)
		next = m.Sequence + 1
	}
}

// waiting lists the messages of the room that wait for a reason.
func (f *fixture) waiting(reason room.Reason) []*jetstream.RawStreamMsg {
	f.Helper()
	return f.inRoom(testNames.room().Waiting(reason))
}

// requireRoomEmpty waits until nothing is left in the room, and no event counts as one that waits there.
func (f *fixture) requireRoomEmpty() {
	f.Helper()
	f.eventually("the room is empty", func() bool { return f.streamInfo(testNames.RoomStream).State.Msgs == 0 })
	if !testkit.Soon(func() bool { return len(f.throttle.inRoom()) == 0 }) {
		f.Errorf("these stays were not left: %v", f.throttle.inRoom())
	}
}

func (f *fixture) requireOutcomes(want map[string]int) {
	f.Helper()
	got := f.metrics.outcomes()
	for name, n := range want {
		if got[name] != n {
			f.Errorf("outcome %q was counted %d times, want %d", name, got[name], n)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		f.Errorf("further outcomes were counted: %v", got)
	}
}

// requireCount compares a count that goes with an outcome and may follow it by a moment.
func (f *fixture) requireCount(name string, want int) {
	f.Helper()
	testkit.Soon(func() bool { return f.metrics.Get(name) >= want })
	if got := f.metrics.Get(name); got != want {
		f.Errorf("%q was counted %d times, want %d", name, got, want)
	}
}

func (f *fixture) requireHistory(id string, want ...string) {
	f.Helper()
	testkit.EqualSlices(f, f.journal.about(id), want, "event %s", id)
}

// requireSaid compares the words about a message; one that ends in "…" is a prefix.
func (f *fixture) requireSaid(sequence uint64, want ...string) {
	f.Helper()
	matches := func(got, want string) bool {
		prefix, cut := strings.CutSuffix(want, "…")
		return got == want || cut && strings.HasPrefix(got, prefix)
	}
	// The spy has its own connection and may hear a word after its effect is there.
	testkit.Soon(func() bool { return len(f.said.about(sequence)) >= len(want) })
	if got := f.said.about(sequence); !slices.EqualFunc(got, want, matches) {
		f.Errorf("about message %d was said %q, want %q", sequence, got, want)
	}
}

// deadLetters reads the dead-letter stream from its start, without taking anything out.
func (f *fixture) deadLetters() []*jetstream.RawStreamMsg {
	f.Helper()
	stream := testkit.Must(f.js.Stream(f.Context(), testNames.DeadLetterStream))(f)
	var letters []*jetstream.RawStreamMsg
	state := stream.CachedInfo().State
	for sequence := max(state.FirstSeq, 1); sequence <= state.LastSeq; sequence++ {
		letter, err := stream.GetMsg(f.Context(), sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // it was pushed out
		}
		if err != nil {
			f.Fatal(err)
		}
		letters = append(letters, letter)
	}
	return letters
}

// gate is a point at which something waits until the test opens it.
type gate struct {
	once   sync.Once
	opened chan struct{}
}

func newGate(t testing.TB) *gate {
	g := &gate{opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass waits for the gate, or for the context.
func (g *gate) pass(ctx context.Context) error {
	select {
	case <-g.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errScripted = errors.New("scripted")
