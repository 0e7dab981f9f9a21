package interleave

import "github.com/seed-4578ace9/notifier/internal/testing/failpoint"

// policy is what happens while Redis is unavailable.
type policy uint8

const (
	waits  policy = iota // hold
	share                // local: the worker admits what its share of the limit holds
	admits               // open
	drops                // closed
)

// fault is a kind of fault.
type fault uint16

const (
	kill          fault = 1 << iota // a worker dies, and another one starts
	messageLapses                   // the ack wait of a message is over
	leaseLapses                     // a lease in Redis ends
	replyLost                       // Redis has run a script, and its reply is lost
	answerLost                      // Slack's answer is lost
	postFails                       // Slack has certainly not posted
	ackLost                         // JetStream does not get an acknowledgement
	lookUpFails                     // Slack does not answer a look-up
	storeFails                      // JetStream does not confirm a message for the room, or a dead letter
	outage                          // no worker reaches Redis for a while
	failover                        // Redis loses its newest writes
	ages                            // an event becomes too old
	anyFault      fault = 1<<iota - 1
)

// The type bug is a deliberate bug of the machine.
type bug uint8

const (
	noBug            bug = iota
	refundsInDoubt       // the slots of an event are returned although it may have been posted
	forgetsDoubt         // a lease that has lapsed leaves no doubt
	acksBeforeMove       // a message is acknowledged before its copy is in the room
	losesNak             // a worker keeps a message that it cannot move, and nobody gets it
	countsAgain          // an event that is folded is not recorded
	losesUpdate          // an update is acknowledged before Slack has it
	acksOwed             // a message is acknowledged before Redis has the end of its event
	beginsUnrecorded     // a worker that has waited posts, and Redis does not know that it has begun
	postsUnkept          // a worker posts a resolved event although the room does not have the update of the firing event
	postsEnded           // a worker posts an event without asking whether another worker has ended it
)

// config is a small deployment.
type config struct {
	name                      string
	workers, events, messages int
	resolves                  int      // the number of the event that resolves event 0; 0: none
	limit                     [2]uint8 // by revision: slots for all events
	revised                   bool     // an operator may set the second revision
	policy                    policy
	lookUp                    bool // Slack lets workers look for posts
	delay                     bool // denied events may wait
	busy                      bool // channels may be busy
	paced                     bool // events may wait in a worker before they are posted
	rejects                   bool // Slack may reject events
	body                      bool // event 0 comes in a body of several alerts
	digests                   bool // a digest reports dropped events
	folds                     bool // all events have one key, whose message counts repeats
	updates                   bool // workers update that message, or the message of event 0; else a message shows what is stored for it
	budget                    uint8
	faults                    fault
	bug                       bug

	orders []order
}

// step is what happens between two states.
type step struct {
	text   string
	worker uint8
	event  uint8
	fault  bool
	point  failpoint.Point // at which a worker is killed
	breaks string          // the promise that the step breaks; "": none
}

// emitter takes the next states of a state.
type emitter struct {
	c    *config
	from *state
	emit func(step, *state)
}

// start returns the first state: every event is stored, and nobody has it.
func (c *config) start() state {
	var s state
	for i := range s.redis.records {
		s.redis.records[i].holder = nobody
	}
	for i := range c.events {
		s.events[i].messages[0] = message{status: ready}
	}
	s.faults, s.digest.holder, s.update.holder = c.budget, nobody, nobody
	return s
}

// next emits the states that follow.
func (c *config) next(from *state, emit func(step, *state)) {
	e := emitter{c, from, emit}
	e.environment()
	for w := range uint8(c.workers) {
		e.ofWorker(w)
		for i := range uint8(c.events) {
			e.work(w, i)
		}
	}
}

// may reports whether a fault may happen.
func (e *emitter) may(f fault) bool { return e.from.faults > 0 && e.c.faults&f != 0 }

// do emits the state after a change.
func (e *emitter) do(text string, w, i uint8, change func(s *state)) {
	e.step(step{text: text, worker: w, event: i}, change)
}

func (e *emitter) step(by step, change func(s *state)) {
	s := *e.from
	change(&s)
	if by.breaks == "" {
		by.breaks = s.broken(e.c, e.from)
	}
	e.emit(by, &s)
}

// fail emits the state after a fault.
func (e *emitter) fail(f fault, text string, w, i uint8, change func(s *state)) {
	if e.may(f) {
		e.step(step{text: text, worker: w, event: i, fault: true}, func(s *state) {
			s.faults--
			change(s)
		})
	}
}

// environment emits what happens without a worker.
func (e *emitter) environment() {
	s := e.from
	if !s.down {
		e.fail(outage, "Redis is unavailable", nobody, nobody, func(s *state) { s.down = true })
	} else {
		e.do("Redis answers again", nobody, nobody, func(s *state) { s.down = false })
	}
	if !s.lags {
		e.fail(failover, "the replica of Redis gets no further writes", nobody, nobody, func(s *state) { s.lags, s.replica = true, s.redis })
	} else {
		e.do("Redis fails over to the replica", nobody, nobody, (*state).failOver)
	}
	if e.c.revised && s.operator == 0 {
		e.do("an operator changes the limit", nobody, nobody, func(s *state) { s.operator = 1 })
	}
	for i := range uint8(e.c.events) {
		e.ofEvent(i)
	}
}

func (e *emitter) ofEvent(i uint8) {
	of, r := &e.from.events[i], &e.from.redis.records[i]
	switch age := func(s *state) { s.events[i].old = true }; {
	case of.old:
	case e.waits(i): // until it expires too
		e.do("%[2]s becomes too old", nobody, i, age)
	default:
		e.fail(ages, "%[2]s becomes too old", nobody, i, age)
	}
	if e.c.delay && r.slots == taken && (r.lease == done || r.lease == lapsed) {
		e.do("the window of the slots of %[2]s is over", nobody, i, func(s *state) { s.redis.records[i].slots = left })
	}
	lapse := func(s *state) {
		for w := range uint8(e.c.workers) {
			s.events[i].forgotten = s.events[i].forgotten || on(s, w, i).hasBegunUnrecorded()
		}
		s.redis.records[i].lapse()
	}
	switch {
	case r.lease != leased && r.lease != waiting:
	case e.from.unheld(i):
		e.do("the lease of %[2]s in Redis ends", nobody, i, lapse)
	case e.from.down:
		e.fail(leaseLapses, "the lease of %[2]s in Redis ends, as nobody can renew it", nobody, i, func(s *state) {
			lapse(s)
			s.events[i].forgotten = s.events[i].forgotten || r.lease == leased
		})
	}
	if e.c.rejects && e.c.messages > 1 {
		e.replay(i)
	}
}

// waits reports whether an event may wait for another event of its key that has ended, and whose record does not show that.
func (e *emitter) waits(i uint8) bool {
	if i != 0 && e.c.resolves == int(i) {
		return e.from.events[0].mayLackItsEnd()
	}
	for other := range e.c.events {
		if e.c.folds && e.from.redis.records[other].announced && e.from.events[other].mayLackItsEnd() {
			return true
		}
	}
	return false
}

// mayLackItsEnd reports whether Redis may keep a lease of the event for good, although no message of it is left.
func (of *event) mayLackItsEnd() bool {
	return of.left() == 0 && (of.outcomes[tooOld] || of.returned || of.missed || of.forgotten || of.exempt)
}

// unheld reports whether nobody renews the lease of an event.
func (s *state) unheld(i uint8) bool {
	holder := s.redis.records[i].holder
	return holder == nobody || !s.events[i].works[holder].valid
}

// replay emits the steps of an operator who replays a dead letter.
func (e *emitter) replay(i uint8) {
	last := e.c.messages - 1
	of := &e.from.events[i]
	if of.letter == stands && of.outcomes[dead] && of.messages[last].status == absent {
		e.do("an operator replays %[2]s", nobody, i, func(s *state) {
			s.events[i].messages[last] = message{status: ready, reason: asReplay}
			s.events[i].letter, s.events[i].rejects, s.events[i].fine = replayed, false, true
		})
	}
	if of.letter == replayed {
		e.do("the letter of %[2]s is removed", nobody, i, func(s *state) { s.events[i].letter = removed })
		if e.may(kill) {
			e.step(step{text: "the replay is killed", worker: nobody, event: i, fault: true, point: failpoint.AfterReplay}, func(s *state) {
				s.faults-- // a second replay is recognised by its message ID
			})
		}
	}
}

// failOver takes back what the replica did not get.
func (s *state) failOver() {
	for i := range s.redis.records {
		now, then := &s.redis.records[i], s.replica.records[i]
		if *now == then {
			continue
		}
		s.events[i].forgotten = true
		then.holder = nobody // its end is not the end that a worker knows
		*now = then
	}
	records := s.redis.records
	s.redis = s.replica
	s.redis.records = records
	s.lags, s.replica = false, redis{}
}

// ofWorker emits what happens to a whole worker.
func (e *emitter) ofWorker(w uint8) {
	s := e.from
	if s.revisions[w] < s.operator {
		e.do("%[1]s adopts the new limit", w, nobody, func(s *state) { s.revisions[w] = s.operator })
	}
	if e.c.digests {
		e.digest(w)
	}
	if e.c.updates {
		e.update(w)
	}
	if !e.may(kill) || !s.busy(w) {
		return
	}
	e.step(step{text: "%[1]s is killed", worker: w, event: nobody, fault: true, point: s.pointOf(w)}, func(s *state) { s.kill(w) })
	for i := range uint8(e.c.events) {
		if s.events[i].works[w].phase == posting && !s.events[i].rejects {
			e.step(step{text: "%[1]s is killed, and Slack posts %[2]s", worker: w, event: i, fault: true}, func(s *state) {
				s.events[i].post()
				s.kill(w)
			})
		}
	}
}

// busy reports whether a worker has anything that it could lose.
func (s *state) busy(w uint8) bool {
	for i := range s.events {
		if s.events[i].works[w].phase != idle || s.events[i].owed[w] != (owed{}) {
			return true
		}
	}
	return s.update.holder == w
}

// points are the fail points between the steps of a worker.
var points = map[phase]failpoint.Point{
	posting: failpoint.BeforePost, posted: failpoint.AfterPost, recorded: failpoint.AfterRecord, planned: failpoint.AfterPlan,
	unleased: failpoint.AfterRelease, stored: failpoint.AfterMove, lettered: failpoint.AfterLetter, unslotted: failpoint.AfterReturn,
	counted: failpoint.AfterFold,
}

// pointOf returns the fail point at which a worker is.
func (s *state) pointOf(w uint8) failpoint.Point {
	for i := range s.events {
		switch of := &s.events[i].works[w]; {
		case of.phase == stored && of.goal == asPart:
			return failpoint.AfterSplit
		case of.phase == ending && of.ends == folded:
			return failpoint.AfterKeep
		case points[of.phase] != "":
			return points[of.phase]
		}
	}
	if s.update.holder == w {
		return updatePoints[s.update.stage]
	}
	return ""
}

// kill ends a worker. JetStream delivers its messages again. Another worker starts in its place.
func (s *state) kill(w uint8) {
	s.faults--
	s.revisions[w], s.alone[w] = s.operator, 0
	if s.digest.holder == w {
		s.digest.holder = nobody
	}
	if s.update.holder == w {
		s.update.goBack()
	}
	for i := range s.events {
		of := &s.events[i]
		admission := of.owed[w].admission
		of.returned = of.returned || of.owed[w].refund // the slots leave with their window
		of.missed = of.missed || of.isGoneFor(w) || of.isLostGone(w)
		of.open = of.open || of.works[w].phase == posting || of.works[w].phase == posted

		of.forgotten = of.forgotten || on(s, w, uint8(i)).hasBegunUnrecorded()
		of.works[w], of.owed[w] = work{}, owed{}
		for _, other := range of.owed { // else Redis learns of the event from the message alone
			of.forgotten = of.forgotten || admission && (other.admission || s.redis.records[i].lease != unknown)
		}
		for m := range of.messages {
			if of.messages[m].status == held && of.messages[m].holder == w {
				of.messages[m].status, of.messages[m].holder, of.messages[m].again = ready, 0, true
			}
		}
		if s.redis.records[i].holder == w {
			s.redis.records[i].holder = nobody
		}
		if s.lags && s.replica.records[i].holder == w {
			s.replica.records[i].holder = nobody
		}
	}
}

// left counts the messages of the event that are not settled.
func (of *event) left() (n int) {
	for _, m := range of.messages {
		if m.status == ready || m.status == held {
			n++
		}
	}
	return n
}

// workers counts the workers that work on the event.
func (of *event) workers() (n int) {
	for _, w := range of.works {
		if w.phase != idle {
			n++
		}
	}
	return n
}

func (of *event) post() { of.posts, of.fine = min(of.posts+1, 3), true }

// work emits the next steps of a worker's work on an event.
func (e *emitter) work(w, i uint8) {
	x := at{e, w, i, &e.from.events[i], &e.from.events[i].works[w], &e.from.redis.records[i]}
	x.owes()
	switch x.work.phase {
	case idle:
		x.receive()
	case received:
		x.decide()
	case admitted:
		x.deliver()
	case posting:
		x.answer()
	case posted:
		x.recordDelivery()
	case recorded, ending, stored:
		x.settle()
	case counted:
		x.show()
	case planned, unleased:
		x.store()
	case moving:
		x.release()
	case rejected:
		x.bury()
	case lettered, expired:
		x.giveUp()
	case unslotted:
		x.step("%[1]s goes on with the end of %[2]s", func(of *after) { of.work.phase = ending })
	}
	if x.work.valid && x.work.phase != posting && x.work.phase != posted {
		e.fail(messageLapses, "the ack wait of %[2]s is over for %[1]s", w, i, func(s *state) { on(s, w, i).expire() })
	}
}
