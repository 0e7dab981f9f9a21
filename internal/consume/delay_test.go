package consume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// delaying are the names with which events may wait for their slots.
func delaying() Names {
	names := testNames
	names.LongestDelay = time.Hour
	return names
}

// mayDelay lets events wait for an hour.
func mayDelay(o *Options) {
	o.Names = delaying()
	o.Delay = func(string) time.Duration { return time.Hour }
}

// denyFirst makes a throttle that denies each event the first time it asks, and then admits it.
func (f *fixture) denyFirst(answer func(c Candidate, longest time.Duration) (DelayVerdict, time.Duration, error)) {
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		if c.Waited {
			return f.throttle.admit(c), nil
		}
		return Decision{Verdict: Deny, Level: "the rule", Wait: time.Second}, nil
	}
	f.throttle.delay = answer
}

func comeBackIn(in time.Duration) func(Candidate, time.Duration) (DelayVerdict, time.Duration, error) {
	return func(Candidate, time.Duration) (DelayVerdict, time.Duration, error) { return ComeBack, in, nil }
}

// scheduled lists the messages that wait for their time.
func (f *fixture) scheduled() []*jetstream.RawStreamMsg {
	f.Helper()
	return f.messagesOn("notify-delayed.>")
}

func (f *fixture) messagesOn(subject string) (found []*jetstream.RawStreamMsg) {
	f.Helper()
	stream, err := f.js.Stream(f.Context(), testNames.Stream)
	if err != nil {
		f.Fatal(err)
	}
	for next := uint64(1); ; {
		m, err := stream.GetMsg(f.Context(), next, jetstream.WithGetMsgSubject(subject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return found
		}
		if err != nil {
			f.Fatal(err)
		}
		found = append(found, m)
		next = m.Sequence + 1
	}
}

// A denied event waits in the stream, out of the consumer's sight, and comes back as it was.
func TestDelay(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := delaying().StreamConfig()
	config.Retention = jetstream.LimitsPolicy // what is settled stays to be looked at
	if _, err := f.js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	f.denyFirst(func(_ Candidate, longest time.Duration) (DelayVerdict, time.Duration, error) {
		if longest > time.Hour || longest < time.Hour-patience {
			t.Errorf("it may wait for another %v, want about an hour", longest)
		}
		return ComeBack, 2 * time.Second, nil
	})
	const body = `{"title": "an event", "key": "ü"}` + "\n"
	headers := nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"e"}, "ce-source": {"/x"}, "ce-type": {"t"}, "Content-Type": {"application/json"},
		"X-Trace": {"1", "2"}, "Nats-Msg-Id": {"producer's"},
	}
	if _, err := f.js.PublishMsg(t.Context(), &nats.Msg{Subject: "notify.payments", Header: headers, Data: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	f.start(mayDelay)
	f.requireSaid(1, "+ACK")
	f.requireOutcomes(nil)
	waiting := f.scheduled()
	if len(waiting) != 1 {
		t.Fatalf("%d messages wait, want 1", len(waiting))
	}
	schedule, at := waiting[0].Header, time.Time{}
	if text, found := strings.CutPrefix(schedule.Get(headerSchedule), "@at "); found {
		at, _ = time.Parse(time.RFC3339, text)
	}
	if in := at.Sub(start); in < 2*time.Second || in > 2*time.Second+patience || schedule.Get(headerScheduleTarget) != "notify.payments" {
		t.Errorf("it waits for %v with %v, want about 2 s", in, schedule)
	}
	if f.metrics.get("delayed") != 1 || f.consumerInfo().NumPending != 0 {
		t.Errorf("%d were counted as delayed, want 1", f.metrics.get("delayed"))
	}

	f.eventually("it comes back and is sent", func() bool { return f.metrics.ended() == 1 })
	if took := time.Since(start); took < time.Second {
		t.Errorf("it came back after %v", took)
	}
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireHistory("producer's", "send", "finish")
	asked := f.throttle.asked()
	if len(asked) != 2 || asked[0].Waited || !asked[1].Waited || asked[1].Sequence == asked[0].Sequence {
		t.Fatalf("asked for %+v, want twice, the second time as one that has waited", asked)
	}
	if first, second := fmt.Sprintf("%+v", asked[0].Event), fmt.Sprintf("%+v", asked[1].Event); first != second {
		t.Errorf("it came back as %s, want %s", second, first)
	}
	stored := f.messagesOn("notify.payments")
	if len(stored) != 2 || !bytes.Equal(stored[1].Data, []byte(body)) {
		t.Fatalf("%d messages, the last one of %q, want the body as it came", len(stored), stored[len(stored)-1].Data)
	}
	for name, want := range headers {
		if name == "Nats-Msg-Id" {
			name, want = HeaderMessageID, []string{"producer's"}
		}
		if got := stored[1].Header[name]; !slices.Equal(got, want) {
			t.Errorf("its header %s is %q, want %q", name, got, want)
		}
	}
	if got := stored[1].Header.Get(event.HeaderID); got != "producer's" {
		t.Errorf("its ID is %q", got)
	}
	if left := f.scheduled(); len(left) != 0 {
		t.Errorf("%d messages still wait", len(left))
	}
}

// An event that has no ID of its own keeps the one that it got from its first place in the stream.
func TestDelayKeepsADerivedID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.denyFirst(comeBackIn(0))
	f.start(mayDelay)
	f.publish("notify", "plain text")
	f.awaitSettled(1)
	f.requireHistory("EVENTS:1", "send", "finish")
}

// An event that came back waits no longer than it might from the start. That it is dropped says nothing about others.
func TestDelayEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var longest []time.Duration
	f.throttle.judge = func(context.Context, Candidate) (Decision, error) {
		return Decision{Verdict: Deny, Level: "the rule", Wait: time.Second}, nil
	}
	f.throttle.delay = func(c Candidate, left time.Duration) (DelayVerdict, time.Duration, error) {
		if c.Event.ID == "another" {
			return ComeBack, time.Hour, nil
		}
		if longest = append(longest, left); len(longest) < 3 {
			return ComeBack, time.Second, nil
		}
		return DropIt, 0, nil
	}
	drops := make(chan []Drop, 1)
	f.start(func(o *Options) {
		mayDelay(o)
		o.Drops = func(d []Drop) { drops <- d }
	})
	f.event("payments", "e")
	f.awaitSettled(1)
	f.event("payments", "another")
	f.eventually("the next one waits", func() bool { return f.metrics.get("delayed") == 3 })
	f.requireOutcomes(map[string]int{"dropped payments": 1})
	if got, want := <-drops, (Drop{Category: "payments", Level: "the rule", Title: "an event", Count: 1}); len(got) != 1 || got[0] != want {
		t.Errorf("dropped: %v, want %v", got, want)
	}
	if len(longest) != 3 || longest[0] > time.Hour || longest[1] > longest[0]-time.Second/2 || longest[2] > longest[1]-time.Second/2 {
		t.Errorf("it might wait for %v, want less each time", longest)
	}
	if n := f.metrics.get("delay refused"); n != 0 {
		t.Errorf("%d were counted as refused, want none", n)
	}
}

// Delays are planned in the order of the events, however long each takes.
func TestDelaysInOrder(t *testing.T) {
	t.Parallel()
	const events = 20
	f := newFixture(t)
	var (
		mu    sync.Mutex
		asked []string
	)
	f.denyFirst(func(c Candidate, _ time.Duration) (DelayVerdict, time.Duration, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, c.Event.ID)
		return ComeBack, time.Hour, nil
	})
	stored := make(chan struct{})
	judge := f.throttle.judge
	f.throttle.judge = func(ctx context.Context, c Candidate) (Decision, error) {
		<-stored
		return judge(ctx, c)
	}
	f.start(mayDelay)
	var want []string
	for i := range events {
		want = append(want, fmt.Sprint(i))
		f.event("payments", want[i])
	}
	close(stored)
	f.eventually("all of them wait", func() bool { return f.metrics.get("delayed") == events })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, want) {
		t.Errorf("planned in the order %v, want %v", asked, want)
	}
}

// Where too many events wait, or no slot opens in time, more of the category are dropped, for a second without asking.
func TestDelayRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict DelayVerdict
		counted int
	}{"too many wait": {Refuse, 3}, "too late": {DropIt, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			var asked atomic.Int32
			f.denyFirst(func(Candidate, time.Duration) (DelayVerdict, time.Duration, error) {
				asked.Add(1)
				return test.verdict, 0, nil
			})
			w := f.start(mayDelay)
			f.event("payments", "first")
			f.awaitSettled(1)
			held := w.refusals.hold("payments")
			f.event("payments", "second")
			f.awaitSettled(2)
			if still := w.refusals.hold("payments"); held && still && asked.Load() != 1 {
				t.Errorf("it was asked about %d delays, want only the first", asked.Load())
			}
			if w.refusals.hold("errors") {
				t.Error("another category is refused too")
			}
			f.eventually("the second is over", func() bool { return !w.refusals.hold("payments") })
			before := asked.Load()
			f.event("payments", "third")
			f.awaitSettled(3)
			if after := asked.Load(); after != before+1 {
				t.Errorf("after a second it was asked about %d delays, want another one", after-before)
			}
			f.requireOutcomes(map[string]int{"dropped payments": 3})
			if got := f.metrics.get("delay refused"); got != test.counted {
				t.Errorf("%d were counted as refused, want %d", got, test.counted)
			}
			if f.metrics.get("by the rule payments") != 3 {
				t.Error("the drops were not counted by their level")
			}
		})
	}
}

// What is remembered of refusals is bounded, and dropped when its time is over.
func TestRefusals(t *testing.T) {
	t.Parallel()
	var r refusals
	for i := range mostRefusals + 1 {
		r.note(strconv.Itoa(i), false)
	}
	if len(r.all) > mostRefusals || !r.hold(strconv.Itoa(mostRefusals)) {
		t.Errorf("%d categories are remembered, want the last one, and at most %d", len(r.all), mostRefusals)
	}
}

// What else may become of an event that is denied, or that was to wait.
func TestDelayVerdicts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		setUp     func(f *fixture)
		redeliver bool
		said      string
		outcome   string
	}{
		"another message with its ID waits": {setUp: func(f *fixture) {
			f.denyFirst(func(Candidate, time.Duration) (DelayVerdict, time.Duration, error) { return Waiting, 0, nil })
		}, said: "+ACK", outcome: "duplicate payments"},
		"the plan cannot be made": {setUp: func(f *fixture) {
			f.denyFirst(func(Candidate, time.Duration) (DelayVerdict, time.Duration, error) { return 0, 0, errScripted })
		}, said: "-NAK…"},
		"it cannot be looked up": {setUp: func(f *fixture) {
			f.throttle.planned = func(Candidate) (time.Duration, bool, error) { return 0, false, errScripted }
		}, redeliver: true, said: "-NAK…"},
		"it was not planned": {redeliver: true, said: "+ACK", outcome: "sent payments"},
		"no slot ever opens": {setUp: func(f *fixture) {
			f.throttle.judge = func(context.Context, Candidate) (Decision, error) {
				return Decision{Verdict: Deny, Level: "the rule"}, nil
			}
		}, said: "+ACK", outcome: "dropped payments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			found, err := delaying().provision(t.Context(), f.js, patience, true, f.log.logger())
			if err != nil {
				t.Fatal(err)
			}
			if test.setUp != nil {
				test.setUp(f)
			}
			sequence := f.event("payments", "e")
			want := []string{test.said}
			if test.redeliver {
				f.deliverOnce(found)
				want = []string{sayNak, test.said}
			}
			f.start(mayDelay)
			f.requireSaid(sequence, want...)
			if test.outcome == "" {
				f.requireOutcomes(nil)
				return
			}
			f.awaitSettled(1)
			f.requireOutcomes(map[string]int{test.outcome: 1})
		})
	}
}

// A message whose event was stored for later, and that could not be settled then, comes again: it is stored once.
func TestDelayWhoseSettlementWasLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	gone := f.prepared(mayDelay)
	sequence := f.event("payments", "e")
	m := f.taken(gone, patience)
	e, err := m.decode(gone.o.Decoder)
	if err != nil {
		t.Fatal(err)
	}
	const wait = 2 * time.Second
	back := time.Now().Add(wait)
	if err := gone.storeSchedule(t.Context(), candidate{message: m, event: e}, back, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	gone.giveBack(m, 0)

	f.denyFirst(nil) // a second plan would panic
	f.throttle.planned = func(c Candidate) (time.Duration, bool, error) {
		return max(0, time.Until(back)), c.Sequence == sequence, nil
	}
	f.start(mayDelay)
	f.requireSaid(sequence, sayNak, "+ACK")
	f.requireOutcomes(nil)
	if waiting := f.scheduled(); len(waiting) != 1 {
		t.Errorf("%d messages wait, want 1", len(waiting))
	}
	f.awaitSettled(1)
	f.requireOutcomes(map[string]int{"sent payments": 1})
	f.requireHistory("e", "send", "finish")
	if asked := f.throttle.asked(); len(asked) != 1 || !asked[0].Waited {
		t.Errorf("asked for %+v, want once, when it had waited", asked)
	}
}

// Events that wait come back though the server was restarted meanwhile.
func TestDelayAcrossARestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.denyFirst(comeBackIn(2 * time.Second))
	f.start(mayDelay)
	const events = 20
	f.numbered("payments", events)
	f.eventually("all wait", func() bool { return f.metrics.get("delayed") == events })
	f.server.Restart()
	f.awaitSettled(events)
	f.requireOutcomes(map[string]int{"sent payments": events})
	if posted := len(f.journal.posted()); posted != events {
		t.Errorf("%d posts of %d events", posted, events)
	}
}

// What somebody else delivers for long is put off in the stream, not in hand, and is as before when it comes back.
func TestPostponeLong(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.judge = func(context.Context, Candidate) (Decision, error) {
		return Decision{Verdict: Wait, Wait: time.Hour}, nil
	}
	f.start(mayDelay)
	sequence := f.event("payments", "e")
	f.requireSaid(sequence, "+ACK")
	f.requireOutcomes(nil)
	waiting := f.scheduled()
	if len(waiting) != 1 || waiting[0].Header.Get(headerDeadline) != "" || waiting[0].Header.Get(event.HeaderID) != "e" {
		t.Errorf("%d messages wait, want 1, with the event's ID and no deadline", len(waiting))
	}
	if f.metrics.get("delayed") != 0 {
		t.Error("it was counted as one that waits for a slot")
	}
}

// While events cannot be stored for later they are given back, and the log says it once.
func TestDelayCannotBeStored(t *testing.T) {
	t.Parallel()
	f := limited(t, "notify-delayed.>")
	f.denyFirst(comeBackIn(time.Hour))
	f.start(func(o *Options) {
		mayDelay(o)
		o.Connection = f.connectLimited()
	})
	sequences := []uint64{f.event("payments", "0"), f.event("payments", "1")}
	for _, sequence := range sequences {
		f.requireSaid(sequence, "-NAK…")
		if delay := f.said.delays(t, sequence)[0]; delay < misconfiguredBackoff*3/4 || delay > misconfiguredBackoff*5/4 {
			t.Errorf("put off by %v, want %v give or take a quarter", delay, misconfiguredBackoff)
		}
	}
	f.requireOutcomes(nil)
	if lines := f.log.lines("events that wait for a slot cannot be stored"); len(lines) != 1 {
		t.Errorf("logged: %q, want one line", lines)
	}
	if n := f.metrics.get("delayed"); n != 0 {
		t.Errorf("%d were counted as delayed", n)
	}
}

// An event that with what it needs to come back is larger than the stream takes is dropped, also if it was planned before.
func TestDelayOfWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	for name, redeliver := range map[string]bool{"at first": false, "planned before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			config := delaying().StreamConfig()
			config.MaxMsgSize = 500
			if _, err := f.js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			found, err := delaying().provision(t.Context(), f.js, patience, true, f.log.logger())
			if err != nil {
				t.Fatal(err)
			}
			f.denyFirst(comeBackIn(time.Hour))
			f.throttle.planned = func(Candidate) (time.Duration, bool, error) { return time.Hour, true, nil }
			f.publish("notify.payments", strings.Repeat("x", 450))
			if redeliver {
				f.deliverOnce(found)
			}
			f.start(mayDelay)
			f.awaitSettled(1)
			f.requireOutcomes(map[string]int{"dropped payments": 1})
			if f.metrics.get("by the rule payments") != 1 || f.metrics.get("delayed") != 0 {
				t.Errorf("counted: %v", f.metrics.counts)
			}
		})
	}
}

// Where events may wait no longer, those that come back and are denied are dropped.
func TestDelayIsTurnedOff(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.throttle.judge = func(context.Context, Candidate) (Decision, error) {
		return Decision{Verdict: Deny, Level: "the rule", Wait: time.Second}, nil
	}
	f.start(nil)
	deadline := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	f.publish("notify.payments", "an event", headerDeadline, deadline, event.HeaderID, "e")
	f.awaitSettled(1)
	f.requireOutcomes(map[string]int{"dropped payments": 1})
}

// A new stream lets events wait. One that is there is taken as it is, and if it cannot the error says what is missing.
func TestCanSchedule(t *testing.T) {
	t.Parallel()
	stream := func(change func(*jetstream.StreamConfig)) jetstream.StreamConfig {
		config := delaying().StreamConfig()
		change(&config)
		return config
	}
	for name, test := range map[string]struct {
		stream   *jetstream.StreamConfig
		consumer jetstream.ConsumerConfig
		lacks    string // "": nothing
	}{
		"new":                   {},
		"without schedules":     {stream: new(stream(func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = false })), lacks: "nats-server 2.12 or later"},
		"without their subject": {stream: new(stream(func(c *jetstream.StreamConfig) { c.Subjects = delaying().subjects() })), lacks: "lacks the subject notify-delayed.>"},
		"of a wider subject": {stream: new(stream(func(c *jetstream.StreamConfig) { c.Subjects = []string{">"}; c.NoAck = true })),
			consumer: jetstream.ConsumerConfig{FilterSubjects: delaying().subjects()}},
		"of interest":                         {stream: new(stream(func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })), lacks: "retention"},
		"its consumer filters by one subject": {stream: new(stream(func(*jetstream.StreamConfig) {})), consumer: jetstream.ConsumerConfig{FilterSubject: "notify.>"}},
		"its consumer does not filter":        {stream: new(stream(func(*jetstream.StreamConfig) {})), consumer: jetstream.ConsumerConfig{MaxDeliver: -1}, lacks: "expected the filter notify, notify.>"},
		"its consumer filters too widely": {stream: new(stream(func(*jetstream.StreamConfig) {})),
			consumer: jetstream.ConsumerConfig{FilterSubjects: []string{"notify", "*.>"}}, lacks: "takes the subject notify-delayed.> too"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if test.stream != nil {
				if _, err := f.js.CreateStream(t.Context(), *test.stream); err != nil {
					t.Fatal(err)
				}
			}
			if test.consumer.FilterSubject != "" || test.consumer.FilterSubjects != nil || test.consumer.MaxDeliver != 0 {
				test.consumer.Durable, test.consumer.AckPolicy = testNames.Consumer, jetstream.AckExplicitPolicy
				if err := f.createConsumer(test.consumer); err != nil {
					t.Fatal(err)
				}
			}
			w := f.newWorker(mayDelay)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, _, err := w.Prepare(ctx)
			if test.lacks == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrNoSchedules) || !strings.Contains(err.Error(), test.lacks) {
				t.Errorf("the error is %v, want %v that says %q", err, ErrNoSchedules, test.lacks)
			}
		})
	}
}

// A stream that cannot be asked about now is asked about again.
func TestCanScheduleIsNotKnown(t *testing.T) {
	t.Parallel()
	f := limited(t, "$JS.API.STREAM.INFO.>")
	if _, err := delaying().provision(t.Context(), f.js, patience, true, f.log.logger()); err != nil {
		t.Fatal(err)
	}
	w := f.newWorker(func(o *Options) {
		mayDelay(o)
		o.Connection, o.Provision = f.connectLimited(), false
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Second, errScripted)
	defer cancel()
	if _, _, err := w.Prepare(ctx); !errors.Is(err, errScripted) {
		t.Errorf("the error is %v, want that it is tried until the end", err)
	}
	if lines := f.log.lines("cannot be asked about"); len(lines) != 1 {
		t.Errorf("logged: %q, want once what is missing", lines)
	}
}

// Each drop that is confirmed is told of once, with its title.
func TestDropsAreTold(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.provision(patience)
	f.throttle.full = func(category string) (string, bool) { return "full", category == "full" }
	f.throttle.judge = func(_ context.Context, c Candidate) (Decision, error) {
		switch c.Event.Category {
		case "denied":
			return Decision{Verdict: Deny, Level: "the rule"}, nil
		case "shadow":
			return Decision{Verdict: Deny, Level: "the rule", Grant: f.throttle.grant(c)}, nil
		}
		return f.throttle.admit(c), nil
	}
	const each = 20
	for _, category := range []string{"full", "denied", "shadow", "sent"} {
		f.numbered(category, each)
	}
	f.publish("notify.denied", "plain text\nof two lines")
	got := make(map[Drop]int)
	w := f.start(func(o *Options) {
		o.Drops = func(drops []Drop) {
			for _, drop := range drops {
				n := drop.Count
				drop.Count = 0
				got[drop] += n
			}
		}
	})
	f.awaitSettled(4*each + 1)
	w.stop()
	want := map[Drop]int{
		{Category: "full", Level: "full", Title: "an event"}:         each,
		{Category: "denied", Level: "the rule", Title: "an event"}:   each,
		{Category: "denied", Level: "the rule", Title: "plain text"}: 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

// A wait for what waits for a slot is spent in the stream. One for a delivery under way, which may last as long as a lease,
// is not: the delivery may be over at any moment.
func TestLongWait(t *testing.T) {
	t.Parallel()
	w := &Worker{o: Options{Delay: func(string) time.Duration { return time.Hour }}, ackWait: 10 * time.Minute}
	for wait, long := range map[time.Duration]bool{horizon: false, 2 * horizon: false, w.ackWait: false, w.ackWait + 1: true} {
		if got := w.later(candidate{}, Decision{Verdict: Wait, Wait: wait}) != nil; got != long {
			t.Errorf("a wait of %v is spent in the stream: %t, want %t", wait, got, long)
		}
	}
	w.ackWait = time.Second
	if w.later(candidate{}, Decision{Verdict: Wait, Wait: horizon}) != nil {
		t.Errorf("a wait of %v is spent in the stream", horizon)
	}
}
