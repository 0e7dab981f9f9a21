package interleave

// hasBegunUnrecorded reports whether the worker may have posted the event without Redis after it has waited, and Redis does not know that yet.
func (of *after) hasBegunUnrecorded() bool {
	posts := of.work.waits && (of.work.inDoubt || of.work.phase == posting || of.work.phase == posted || of.work.phase == recorded)
	return (posts || of.owed.finish) && (of.record.lease == waiting || of.record.lease == released)
}

// abandon ends the work. Nobody renews or returns its lease.
func (of *after) abandon() {
	if of.record.holder == of.w && !of.owed.refund && of.owed.lost == 0 {
		of.record.holder = nobody
	}
	*of.work = work{}
}

// isGoneFor reports whether another worker has ended the message of an event that a worker has admitted.
func (of *event) isGoneFor(w uint8) bool {
	return of.works[w].again && of.messages[of.works[w].message].status == settled
}

// isLostGone reports whether another worker has ended a message that a worker has lost and watches.
func (of *event) isLostGone(w uint8) bool {
	return of.owed[w].lost > 0 && of.messages[of.owed[w].lost-1].status == settled
}

// asksAgain reports whether a worker that has admitted the event anew asks for its message before it gives the event up.
func (of *event) asksAgain() bool {
	for w := range of.works {
		switch of.works[w].phase {
		case admitted, posting, posted, recorded:
			if of.works[w].anew {
				return true
			}
		}
		if of.owed[w].lost > 0 {
			return true
		}
	}
	return false
}

// leaveEnded ends the grant of an event whose message another worker has ended. It returns false if none has.
func (of *after) leaveEnded(c *config) bool {
	if !of.event.isGoneFor(of.w) {
		return false
	}
	if of.work.anew {
		of.endGrant(c)
	} else { // the event may go on in the room, with its slots
		of.event.missed = true
		of.release()
	}
	of.abandon()
	return true
}

// giveBack ends the lease of the event, and returns its message to JetStream unless another worker has ended the event.
func (of *after) giveBack(c *config) {
	if !of.leaveEnded(c) {
		of.release()
		of.nak()
	}
}

// nak returns the message to JetStream.
func (of *after) nak() {
	of.event.forgotten = of.event.forgotten || of.hasBegunUnrecorded()
	if of.message.status == held && of.message.holder == of.w {
		of.message.status, of.message.holder, of.message.again = ready, 0, true
	}
	of.abandon()
}

// expire gives the message to another worker. A worker that has not begun to end the event stops.
func (of *after) expire() {
	of.event.forgotten = of.event.forgotten || of.hasBegunUnrecorded()
	of.work.valid = false
	if of.message.status == held && of.message.holder == of.w {
		of.message.status, of.message.holder, of.message.again = ready, 0, true
	}
	switch of.work.phase {
	case admitted, moving:
		switch {
		case of.record.holder != of.w || !of.work.anew:
		case of.work.inDoubt: // the slots stay taken, since the worker may have posted the event
			of.event.missed = of.event.missed || of.event.isGoneFor(of.w)
		default:
			of.owed.lost = of.work.message + 1
		}
		of.abandon()
	case received, planned:
		of.abandon()
	}
}

// isInDoubt reports whether the slots of the event stay taken, because an attempt may have delivered it.
func (w *work) isInDoubt(c *config) bool { return w.inDoubt && c.bug != refundsInDoubt }

// endGrant returns the slots of an event that is not delivered, unless an attempt may have delivered it.
func (of *after) endGrant(c *config) {
	inDoubt := of.work.isInDoubt(c)
	switch {
	case of.s.down || of.work.local:
		of.owed.finish = of.owed.finish || inDoubt
		of.owed.refund = !inDoubt && !of.work.local
		of.owed.admission = of.owed.admission && inDoubt
	case inDoubt:
		of.finish()
	default:
		of.refund()
	}
}
