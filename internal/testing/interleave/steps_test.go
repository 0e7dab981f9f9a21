package interleave

import (
	"math/bits"
	"slices"
)

// at is the work of a worker on an event, before a step.
type at struct {
	*emitter
	w, i   uint8
	event  *event
	work   *work
	record *record
}

// after is the same in a state that a step changes.
type after struct {
	s       *state
	w, i    uint8
	event   *event
	work    *work
	owed    *owed
	record  *record
	message *message // that the worker has
}

func on(s *state, w, i uint8) *after {
	of := &s.events[i]
	return &after{s, w, i, of, &of.works[w], &of.owed[w], &s.redis.records[i], &of.messages[of.works[w].message]}
}

func (x at) step(text string, change func(of *after)) {
	x.do(text, x.w, x.i, func(s *state) { change(on(s, x.w, x.i)) })
}

func (x at) fault(f fault, text string, change func(of *after)) {
	x.fail(f, text, x.w, x.i, func(s *state) { change(on(s, x.w, x.i)) })
}

// message returns the message that the worker has.
func (x at) message() *message { return &x.event.messages[x.work.message] }

// canMove reports whether the machine has a place for one more copy of the message.
func (x at) canMove() bool { return int(x.work.message)+1 < x.c.messages }

func (x at) receive() {
	for m := range x.c.messages {
		if x.event.messages[m].status == ready {
			x.step("%[1]s receives %[2]s", func(of *after) {
				of.event.messages[m].status, of.event.messages[m].holder = held, of.w
				*of.work = work{phase: received, message: uint8(m), valid: true}
			})
		}
	}
}

// end decides how the event ends. The message is not acknowledged yet.
func (of *after) end(with outcome) { of.work.phase, of.work.ends = ending, with }

// decide asks Redis, or the failure policy.
func (x at) decide() {
	switch m := x.message(); {
	case x.c.body && x.i == 0 && m.reason == byProducer:
		x.step("%[1]s splits the body of %[2]s", func(of *after) { of.work.phase, of.work.goal = unleased, asPart })
	case x.event.old && !m.again && m.reason == byProducer:
		x.step("%[1]s finds %[2]s too old", func(of *after) { of.end(tooOld) })
	case x.from.down:
		x.decideAlone()
	case x.from.revisions[x.w] < x.from.redis.revision || x.event.owed[x.w].admission:
		// Redis refuses older limits, and a worker first sends what the policy admitted.
	default:
		x.step("%[1]s asks Redis about %[2]s", func(of *after) { x.ask(of) })
		x.fault(replyLost, "%[1]s asks Redis about %[2]s, and the reply is lost", func(of *after) {
			x.ask(of)
			of.owed.reply, of.owed.doubt = of.work.phase == admitted, of.work.phase == admitted && of.work.doubt
			of.event.missed = of.event.missed || of.event.isGoneFor(of.w) // the worker does not know that it has to ask for the message
			holder := of.record.holder
			of.nak()
			of.record.holder = holder
		})
	}
	if x.c.delay && x.isDenied() {
		x.step("%[1]s asks Redis about %[2]s, which cannot wait for its slot", func(of *after) {
			of.record.awaited = false
			of.event.recounted = of.event.recounted || x.event.left() > 1 || x.event.workers() > 1 // it goes on in another message
			of.end(dropped)
		})
	}
}

// isDenied reports whether Redis would deny the event.
func (x at) isDenied() bool {
	if x.record.planned && x.message().again && x.message().reason == byProducer {
		return false // Redis remembers that it comes back
	}
	return !x.from.down && !x.event.old && !x.resolves() && x.record.lease == unknown && !x.fits() && x.from.revisions[x.w] >= x.from.redis.revision
}

func (x at) resolves() bool { return x.i != 0 && int(x.i) == x.c.resolves }

// fits reports whether the limit has a slot.
func (x at) fits() bool { return x.from.used(x.c) < x.c.limit[x.from.revisions[x.w]] }

// used counts the slots that Redis knows.
func (s *state) used(c *config) (n uint8) {
	for i := range c.events {
		if s.redis.records[i].slots == taken {
			n++
		}
	}
	return n
}

// decideAlone lets the failure policy decide.
func (x at) decideAlone() {
	planned := x.record.planned && x.message().again
	switch {
	case x.c.policy == waits || x.resolves() || x.event.old && x.message().reason != forChannel || planned:
		x.step("%[1]s gives %[2]s back, as Redis does not answer", (*after).nak)
	case x.event.owed[x.w].finish:
		x.step("%[1]s knows that %[2]s is delivered", func(of *after) { of.end(undecided) })
	case x.c.policy == drops, x.shareIsFull():
		x.step("%[1]s drops %[2]s by the failure policy", func(of *after) {
			of.event.exempt = true
			of.end(dropped)
		})
	default:
		x.step("%[1]s admits %[2]s by the failure policy", func(of *after) {
			*of.work = work{phase: admitted, message: of.work.message, valid: true, local: true, doubt: of.message.again || of.message.attempted, again: of.message.again, anew: of.message.again}
			of.owed.admission, of.owed.release, of.event.exempt = true, unknown, true
			if x.c.policy == share {
				of.s.alone[of.w] |= 1 << of.i
			}
		})
	}
}

// shareIsFull reports whether the policy local denies the event: the worker has admitted others alone, up to its share of the limit.
func (x at) shareIsFull() bool {
	others := x.from.alone[x.w] &^ (1 << x.i)
	return x.c.policy == share && bits.OnesCount8(others) >= max(1, int(x.c.limit[x.from.revisions[x.w]])/x.c.workers)
}

// ask decides by the record in Redis, as the scripts do.
func (x at) ask(of *after) {
	s, r := of.s, of.record
	for _, other := range of.event.owed { // another worker has admitted the event by the failure policy
		of.event.forgotten = of.event.forgotten || other.admission
	}
	s.redis.revision = max(s.redis.revision, s.revisions[of.w])
	switch {
	case r.folded:
		of.work.phase = counted
	case r.lease == done:
		of.end(undecided)
	case r.lease == leased, r.lease == waiting:
		of.nak()
	case of.event.old && (of.message.reason != forChannel || x.resolves() && r.lease == unknown):
		if r.slots == taken { // no worker holds them: they leave with their window
			r.slots = left
		}
		of.event.recounted = of.event.recounted || r.lease == lapsed // nobody looks for its post
		of.end(tooOld)
	case r.planned && of.message.again && of.message.reason == byProducer && r.lease == unknown:
		of.work.phase, of.work.goal = planned, forSlot
	case r.lease == lapsed || r.lease == released:
		inDoubt := r.lease == lapsed && x.c.bug != forgetsDoubt
		of.grant(x.c)
		of.work.doubt, of.work.inDoubt, r.mark = inDoubt, inDoubt, r.mark || inDoubt
	case x.resolves():
		x.pair(of)
	case x.c.folds && x.fold(of):
	case s.used(x.c) < x.c.limit[s.revisions[of.w]]:
		of.grant(x.c)
		r.slots = taken
		of.work.doubt = of.message.again || of.message.attempted
	case x.c.delay && x.canMove():
		r.planned, r.awaited = true, x.i == 0 && x.c.resolves > 0
		of.work.phase, of.work.goal = planned, forSlot
	case x.c.delay:
		of.nak()
	default:
		of.end(dropped)
	}
}

// grant leases the event to the worker.
func (of *after) grant(c *config) {
	isReclaimed := of.record.lease != unknown // then nobody returns the slots of an event whose message is gone
	of.event.returned, of.event.missed = false, isReclaimed && (of.event.missed || of.message.status == settled)
	of.record.lease, of.record.holder = leased, of.w
	of.record.announced, of.record.awaited = c.folds || of.i == 0 && c.resolves > 0, false
	of.work.phase, of.work.again, of.work.anew = admitted, of.message.again, of.message.again && !isReclaimed
	of.owed.reply, of.owed.doubt, of.owed.refund = false, false, false // they are about an earlier lease
	for w := range of.event.owed {
		of.event.owed[w].lost = 0
	}
}

// pair decides about a resolved event: it takes its pair, waits for its firing event, or is dropped.
func (x at) pair(of *after) {
	opener, its := &of.s.redis.records[0], &of.s.events[0]
	isDecided := true
	for m := range x.c.messages {
		switch its.messages[m].reason {
		case byProducer, asPart, asReplay:
			isDecided = isDecided && (its.messages[m].status == absent || its.messages[m].status == settled)
		}
	}
	switch {
	case opener.pair == given: // the event has taken it before
		of.grant(x.c)
	case opener.pair == open:
		opener.pair = given
		of.grant(x.c)
		of.work.doubt = of.message.again || of.message.attempted
	case opener.awaited, opener.announced && opener.lease != unknown && opener.lease != done, !isDecided && !of.work.certain:
		of.nak() // in the room
	case !of.work.certain:
		of.work.certain = true
	default:
		of.end(dropped)
	}
}

// fold counts the event in the message of its key, or lets it wait in the room while that message is being delivered.
func (x at) fold(of *after) bool {
	records := of.s.redis.records[:x.c.events]
	switch {
	case slices.ContainsFunc(records, func(r record) bool { return r.lease == done && !r.folded }):
		of.s.redis.counted++
		if x.c.bug != countsAgain {
			of.record.lease, of.record.folded = done, true
		}
		of.work.phase = counted
	case slices.ContainsFunc(records, func(r record) bool { return r.announced && r.lease != unknown && r.lease != done }):
		of.nak()
	default:
		return false
	}
	return true
}

// show stores the update that shows a folded event.
func (x at) show() {
	keep := func(of *after) {
		if r := &of.s.redis; x.c.updates && r.counted > r.showing {
			of.s.update.waiting = max(of.s.update.waiting, r.counted)
		}
	}
	if x.from.down {
		x.step("%[1]s gives %[2]s back, as Redis does not answer", (*after).nak)
		return
	}
	x.step("%[1]s stores the update that shows %[2]s", func(of *after) {
		keep(of)
		of.end(folded)
	})
	x.fault(storeFails, "%[1]s stores the update that shows %[2]s, and the answer is lost", func(of *after) {
		keep(of)
		of.nak()
	})
	x.fault(storeFails, "%[1]s cannot store the update that shows %[2]s", (*after).nak)
}

// deliver stores the update of what the event resolves, looks for the post of an event in doubt, and begins to post it.
func (x at) deliver() {
	if !x.work.local && !x.from.down && x.record.holder != x.w {
		x.step("%[1]s notices that it has lost %[2]s", (*after).expire)
	}
	switch {
	case !x.isKept():
		x.keep()
		return
	case x.work.doubt:
		x.look()
	case x.event.old:
		x.step("%[1]s finds %[2]s too old", func(of *after) { of.work.phase = expired })
	case x.event.isGoneFor(x.w) && x.c.bug != postsEnded:
		x.step("%[1]s finds that another worker has ended %[2]s", func(of *after) { of.leaveEnded(x.c) })
	case x.work.waits:
		x.begin()
	default:
		x.step("%[1]s posts %[2]s", func(of *after) { of.work.phase = posting })
	}
	if x.c.paced && !x.work.waits && !x.work.local && !x.from.down && x.record.holder == x.w && !x.work.doubt && !x.work.inDoubt {
		x.step("%[1]s waits before it posts %[2]s", func(of *after) { of.work.waits, of.record.lease = true, waiting })
	}
	if x.c.busy && !x.work.doubt && !x.event.isGoneFor(x.w) && x.message().reason != forChannel && x.canMove() {
		x.step("the channel of %[2]s is busy", func(of *after) { of.work.phase, of.work.goal = moving, forChannel })
	}
}

// begin posts an event that has waited, once Redis knows that its post begins.
func (x at) begin() {
	if x.from.down && x.c.policy == waits {
		x.step("%[1]s gives %[2]s back, as Redis does not answer", func(of *after) { of.giveBack(x.c) })
		return
	}
	if x.from.down {
		x.step("%[1]s posts %[2]s, and Redis does not know that", func(of *after) {
			of.work.phase = posting
			of.event.forgotten = of.event.forgotten || of.record.lease != waiting // the outage has outlasted the lease
		})
		return
	}
	if x.record.holder != x.w {
		return // it notices that
	}
	x.step("%[1]s begins to post %[2]s", func(of *after) {
		of.work.waits, of.work.phase = false, posting
		if x.c.bug != beginsUnrecorded {
			of.record.lease = leased
		}
	})
	x.fault(replyLost, "%[1]s begins to post %[2]s, the reply is lost, and %[1]s gives it back", func(of *after) {
		of.record.lease = leased
		if !of.leaveEnded(x.c) {
			of.nak()
		}
	})
}

func (x at) look() {
	switch {
	case !x.c.lookUp:
		x.step("nobody can look for the post of %[2]s", func(of *after) { of.work.doubt = false })
	case x.event.posts > 0:
		x.step("%[1]s finds the post of %[2]s", func(of *after) { of.work.phase, of.work.doubt = posted, false })
	default:
		x.step("%[1]s finds no post of %[2]s", func(of *after) { of.work.doubt, of.work.inDoubt = false, false })
	}
	if !x.c.lookUp {
		return
	}
	x.fault(lookUpFails, "%[1]s cannot look for the post of %[2]s, and gives it back", func(of *after) {
		if !of.leaveEnded(x.c) {
			of.work.inDoubt = true
			of.release()
			of.nak()
		}
	})
	if x.event.old {
		x.fault(lookUpFails, "%[1]s cannot look for the post of %[2]s, which is too old", func(of *after) {
			of.work.inDoubt = true
			of.work.phase = expired
		})
	}
}

// answer is what comes of a post.
func (x at) answer() {
	retry := func(of *after) {
		of.work.phase, of.work.doubt, of.work.inDoubt, of.event.open = admitted, true, true, true
	}
	if !x.event.rejects {
		x.step("Slack posts %[2]s", func(of *after) {
			of.event.post()
			of.work.phase = posted
		})
		x.fault(answerLost, "Slack posts %[2]s, and the answer is lost", func(of *after) {
			of.event.post()
			retry(of)
		})
	}
	if x.c.rejects && !x.event.fine {
		x.step("Slack rejects %[2]s", func(of *after) { of.work.phase, of.event.rejects = rejected, true })
	}
	x.fault(answerLost, "the request for %[2]s is lost without an answer", retry)
	x.fault(postFails, "Slack refuses %[2]s temporarily", func(of *after) { of.work.phase = admitted })
	x.fault(postFails, "Slack refuses %[2]s temporarily, and %[1]s gives it back", func(of *after) { of.giveBack(x.c) })
}

// record records a delivery.
func (x at) recordDelivery() {
	count := func(of *after) { of.work.phase, of.event.outcomes[sent] = recorded, true }
	if x.from.down || x.work.local {
		x.step("%[1]s cannot record %[2]s now", func(of *after) {
			of.owed.finish, of.event.recounted, of.event.open = true, true, true
			count(of)
		})
		return
	}
	x.step("%[1]s records %[2]s", func(of *after) {
		if of.finish() {
			of.event.outcomes[sent] = true
		}
		of.work.phase = recorded
	})
	x.fault(replyLost, "%[1]s records %[2]s, and the reply is lost", func(of *after) {
		of.finish()
		of.owed.finish, of.event.recounted = true, true
		count(of)
	})
}

// settle acknowledges the message, once Redis has the end of an event that it knows.
func (x at) settle() {
	owed := x.event.owed[x.w]
	mayKnow := !x.work.local || x.message().again
	if (owed.finish || owed.refund) && mayKnow && x.c.bug != acksOwed {
		return
	}
	x.step("%[1]s acknowledges %[2]s", func(of *after) {
		isFirst := of.message.status != settled
		if !of.work.valid { // another worker may be delivering the event by now
			of.event.recounted = of.event.recounted || of.work.ends != undecided
			of.event.missed = of.event.missed || of.record.lease != unknown && !of.event.asksAgain()
		}
		of.message.status, of.message.holder = settled, 0
		if of.work.ends != undecided && isFirst {
			of.event.outcomes[of.work.ends] = true
			if x.c.digests && of.work.ends == dropped && of.s.digest.progress == nothing {
				of.s.digest.progress = due
			}
		}
		of.abandon()
	})
	x.fault(ackLost, "the acknowledgement of %[2]s is lost", (*after).nak)
}

// store stores the event in the room.
func (x at) store() {
	publish := func(of *after) {
		next := &of.event.messages[of.work.message+1]
		if next.status != absent { // JetStream keeps the copy, whose worker may be ending the event
			of.event.missed = of.event.missed || of.record.lease != unknown
			return
		}
		attempted := of.message.attempted || of.work.goal == forChannel && of.work.inDoubt
		*next = message{status: ready, reason: of.work.goal, attempted: attempted}
	}
	if x.canMove() {
		x.step("%[1]s stores %[2]s in the room", func(of *after) {
			publish(of)
			of.work.phase = stored
		})
		x.fault(storeFails, "%[1]s stores %[2]s in the room, and the answer is lost", func(of *after) {
			publish(of)
			of.nak()
		})
	}
	x.fault(storeFails, "%[1]s cannot store %[2]s in the room", func(of *after) {
		if x.c.bug == losesNak {
			of.abandon()
			return
		}
		of.nak()
	})
}

// bury stores a dead letter.
func (x at) bury() {
	x.step("%[1]s stores a dead letter of %[2]s", func(of *after) {
		of.work.phase = lettered
		of.event.letter = max(of.event.letter, stands)
	})
	x.fault(storeFails, "%[1]s cannot store a dead letter of %[2]s", func(of *after) { of.giveBack(x.c) })
}

// giveUp returns the slots of an event that is not delivered, unless an attempt may have delivered it.
func (x at) giveUp() {
	with := tooOld
	if x.work.phase == lettered {
		with = dead
	}
	inDoubt := x.work.isInDoubt(x.c)
	finish := func(of *after) {
		of.endGrant(x.c)
		of.work.phase, of.work.ends = unslotted, with
	}
	text := "%[1]s returns the slots of %[2]s"
	if inDoubt {
		text = "%[1]s keeps the slots of %[2]s, which may have been posted"
	}
	x.step(text, finish)
	if !x.from.down && !x.work.local {
		x.fault(replyLost, text+", and the reply is lost", func(of *after) {
			finish(of)
			of.owed.finish, of.owed.refund = inDoubt, !inDoubt
		})
	}
}

// release ends the lease of an event that goes to the room.
func (x at) release() {
	x.step("%[1]s releases %[2]s", func(of *after) {
		of.release()
		of.work.phase = unleased
		if x.c.bug == acksBeforeMove {
			of.message.status = settled
		}
	})
}
