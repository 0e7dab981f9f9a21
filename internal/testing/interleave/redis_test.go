package interleave

// finish records a delivery in Redis, and opens or ends the pair. It returns whether the delivery is new.
func (of *after) finish() bool {
	isNew := of.record.lease != done
	if isNew {
		if of.i == 0 {
			of.record.pair = open
		} else if opener := &of.s.redis.records[0]; opener.pair == given {
			opener.pair = closed
		}
	}
	of.record.lease, of.record.holder, of.record.mark, of.record.announced = done, nobody, false, false
	return isNew
}

// refund returns the slots, if the worker holds the lease.
func (of *after) refund() {
	if of.record.holder == of.w && of.record.lease != done {
		of.event.returned = true
		*of.record = record{holder: nobody, pair: of.record.pair, planned: of.record.planned}
	}
}

// release ends the lease, if the worker holds it. The slots stay taken.
func (of *after) release() {
	ends := released
	if of.work.inDoubt || of.record.mark {
		ends = lapsed
	}
	switch {
	case of.work.local:
		of.owed.release = ends
	case of.s.down:
	case of.record.holder == of.w && of.record.lease != done:
		of.record.lease, of.record.holder = ends, nobody
	}
}

// lapse ends the lease, which nobody renews.
func (r *record) lapse() {
	if r.lease == leased || r.mark {
		r.lease = lapsed
		return
	}
	r.lease = released
}

// owes emits what a worker sends to Redis later.
func (x at) owes() {
	owed := x.event.owed[x.w]
	if x.from.down {
		return
	}
	if owed.reply {
		x.step("%[1]s learns that it had a lease of %[2]s, and releases it", func(of *after) {
			of.owed.reply, of.owed.doubt = false, false
			if of.work.phase == idle && of.record.holder == of.w && of.record.lease != done {
				of.record.lease, of.record.holder = released, nobody
				if of.record.mark || owed.doubt {
					of.record.lease = lapsed
				}
			}
		})
	}
	switch {
	case owed.finish:
		x.step("%[1]s records in Redis that %[2]s is delivered", func(of *after) {
			if owed.admission && of.record.lease == unknown {
				of.record.slots = taken
			}
			of.finish()
			*of.owed, of.work.local = owedReply(of.owed), false
		})
	case owed.refund:
		x.step("%[1]s returns in Redis the slots of %[2]s", func(of *after) {
			of.refund()
			*of.owed = owedReply(of.owed)
		})
	case owed.admission:
		x.step("%[1]s records in Redis that it has admitted %[2]s", func(of *after) { of.restore() })
	case x.event.isLostGone(x.w):
		x.step("%[1]s finds that another worker has ended %[2]s, which it had lost, and returns the slots", func(of *after) {
			of.refund()
			of.owed.lost = 0
		})
	}
}

func owedReply(of *owed) owed { return owed{reply: of.reply, doubt: of.doubt, lost: of.lost} }

// restore records an admission that the failure policy made.
func (of *after) restore() {
	ends := of.owed.release
	*of.owed, of.work.local = owedReply(of.owed), false
	if of.record.lease == done {
		return
	}
	switch of.record.lease {
	case unknown:
		of.record.slots = taken
	case lapsed:
		of.record.mark = true
	}
	of.record.announced = true
	switch {
	case ends == unknown || of.work.phase != idle:
		of.record.lease, of.record.holder = leased, of.w
	case of.record.lease != leased:
		of.record.lease, of.record.holder = ends, nobody
		if of.record.mark {
			of.record.lease = lapsed
		}
	}
}

// broken returns the promise that a state breaks; "" for none.
func (s *state) broken(c *config, from *state) string {
	for i := range c.events {
		of, r := &s.events[i], &s.redis.records[i]
		resolves := i != 0 && i == c.resolves
		switch {
		case of.isPostedAfterItsEnd(&from.events[i]):
			return "no worker posts an event that another worker has ended"
		case of.endsTwice() && !of.forgotten && !of.recounted && !of.exempt:
			return "an event has one outcome"
		case of.posts > 1 && c.lookUp && !of.forgotten && (!of.exempt || of.messages[1].status == absent):
			return "no event is posted twice if workers may look for posts"
		case of.posts > 1 && !c.lookUp && !of.forgotten && !of.open:
			return "an event is posted twice only if something came between its post and its record"
		case of.posts > 0 && r.slots == none && !of.forgotten && !of.exempt && !resolves:
			return "a posted event keeps its slots"
		case resolves && of.outcomes[dropped] && s.events[0].outcomes[sent] && !s.events[0].forgotten && !s.events[0].exempt && !of.forgotten:
			return "a resolved event follows its firing event"
		}
	}
	if s.redis.counted != s.folded(c) {
		return "each folded event counts once"
	}
	if s.digest.posts > 1 {
		return "no digest is posted twice"
	}
	if used := s.firm(c); used > from.firm(c) && used > c.limit[s.redis.revision] {
		return "admissions stay within the limit"
	}
	if s.ended(c) {
		return s.brokenAtEnd(c)
	}
	return ""
}

// isPostedAfterItsEnd reports whether a worker has just begun to post the event, whose message is gone.
func (of *event) isPostedAfterItsEnd(before *event) bool {
	for w := range of.works {
		if of.works[w].phase == posting && before.works[w].phase != posting && of.isGoneFor(uint8(w)) {
			return true
		}
	}
	return false
}

// endsTwice reports whether an event has two outcomes. Redis records deliveries only. So if an event has two messages, because the answer
// to a move was lost, both may end without a delivery.
func (of *event) endsTwice() bool {
	outcomes := 0
	for o, reached := range of.outcomes {
		if reached && (outcome(o) != dead || of.letter < replayed) {
			outcomes++
		}
	}
	return outcomes > 1 && (of.outcomes[sent] || of.messages[1].status == absent)
}

// firm counts the slots that Redis knows, without those of events that the failure policy admitted. They never exceed the limit, so all
// admissions exceed it by at most the slots that a failover lost, and by those of the failure policy.
func (s *state) firm(c *config) (n uint8) {
	for i := range c.events {
		if s.redis.records[i].slots == taken && !s.events[i].exempt {
			n++
		}
	}
	return n
}

// folded returns how many events are recorded as folded.
func (s *state) folded(c *config) (n uint8) {
	for i := range c.events {
		if s.redis.records[i].folded {
			n++
		}
	}
	return n
}

// ended reports whether no message is left, and no worker has anything to do.
func (s *state) ended(c *config) bool {
	if s.digest.progress != nothing && s.digest.progress != over {
		return false
	}
	if s.update.waiting > 0 || s.update.holder != nobody {
		return false
	}
	for i := range c.events {
		for m := range c.messages {
			if at := s.events[i].messages[m].status; at != absent && at != settled {
				return false
			}
		}
		for w := range c.workers {
			if s.events[i].works[w].phase != idle || s.events[i].owed[w] != (owed{}) {
				return false
			}
		}
	}
	return true
}

// brokenAtEnd checks the promises about what is left of an event.
func (s *state) brokenAtEnd(c *config) string {
	isExact := true
	for i := range c.events {
		isExact = isExact && !s.events[i].forgotten && !s.events[i].exempt
		of, r := &s.events[i], &s.redis.records[i]
		if of.outcomes == ([tooOld + 1]bool{}) && r.lease != done && !of.forgotten {
			return "every event has an outcome"
		}
		if of.outcomes[folded] && (!r.folded || of.posts > 0) && !of.forgotten && !of.exempt {
			return "each folded event counts once"
		}
		if r.lease != unknown && r.lease != done && !of.mayLackItsEnd() && !s.lags {
			return "Redis has the end of each event that it has admitted"
		}
		clean := r.lease == unknown || r.lease == released
		if r.slots == taken && clean && of.posts == 0 && !of.returned && !of.missed && !of.forgotten && !of.exempt && !s.lags {
			return "the slots of an event that was not posted are returned"
		}
	}
	if c.resolves > 0 && s.events[c.resolves].posts > 0 && s.update.shown == 0 {
		return "the message of an event that is resolved shows that"
	}
	if c.folds && c.updates && isExact && s.update.shown != s.redis.counted {
		return "a message shows all events that are folded into it"
	}
	return ""
}
