package interleave

import "github.com/seed-4578ace9/notifier/internal/testing/failpoint"

// stage is how far a worker is with an update.
type stage uint8

const (
	begun    stage = iota // the count is not read
	counting              // Redis has recorded the count as shown, Slack does not have it
	shown                 // Slack has it, which is not recorded
	settling              // it is recorded, its entry is not acknowledged
)

// update is the update of a message. Of a message that counts events, its order is the number of events that were folded when it was stored. Of a
// message whose event is resolved, its order and its count are 1.
type update struct {
	waiting uint8 // order of the newest entry in the room that no worker has; 0: none
	order   uint8 // of the entry that a worker has
	holder  uint8 // nobody: no worker has one
	stage   stage
	count   uint8 // that the worker shows
	shown   uint8 // by the message in Slack
}

// isKept reports whether the room has the update of the event that this event resolves.
func (x at) isKept() bool { return !x.resolves() || x.work.updated }

// keep stores that update.
func (x at) keep() {
	stored := func(of *after) {
		of.work.updated = true
		if x.c.updates {
			of.s.update.waiting = 1
		} else {
			of.s.update.shown = 1
		}
	}
	x.step("%[1]s stores the update of event A in the room", stored)
	x.fault(storeFails, "%[1]s stores the update of event A in the room, and the answer is lost", func(of *after) {
		stored(of)
		of.giveBack(x.c)
	})
	x.fault(storeFails, "%[1]s cannot store the update of event A in the room", func(of *after) {
		of.work.updated = x.c.bug == postsUnkept
		if !of.work.updated {
			of.giveBack(x.c)
		}
	})
}

// updatePoints are the fail points between the steps of an update.
var updatePoints = map[stage]failpoint.Point{
	counting: failpoint.BeforeUpdate, shown: failpoint.AfterShow, settling: failpoint.AfterUpdate,
}

// end ends the work on an entry.
func (u *update) end() { u.order, u.holder, u.stage, u.count = 0, nobody, begun, 0 }

// goBack returns the entry to the room, where a newer one takes its place.
func (u *update) goBack() {
	u.waiting = max(u.waiting, u.order)
	u.end()
}

// update emits the steps of a worker with an update. No second worker begins one meanwhile.
func (e *emitter) update(w uint8) {
	u := e.from.update
	do := func(text string, change func(s *state)) { e.do(text, w, nobody, change) }
	fail := func(f fault, text string, change func(s *state)) { e.fail(f, text, w, nobody, change) }
	switch {
	case u.holder == nobody && u.waiting > 0 && !e.from.down:
		do("%[1]s begins an update", func(s *state) {
			if s.update.waiting <= s.redis.updated { // a newer one is shown
				s.update.waiting = 0
				return
			}
			s.update.order, s.update.waiting, s.update.holder = s.update.waiting, 0, w
			if e.c.resolves > 0 { // no count has to be read
				s.update.count, s.update.stage = 1, counting
			}
		})
	case u.holder != w:
	case u.stage == begun && e.from.down:
		do("%[1]s gives an update back, as Redis does not answer", func(s *state) { s.update.goBack() })
	case u.stage == begun:
		show := func(s *state) {
			s.redis.showing, s.update.count, s.update.stage = s.redis.counted, s.redis.counted, counting
		}
		do("%[1]s reads the count", func(s *state) {
			show(s)
			if e.c.bug == losesUpdate {
				s.update.order = 0
			}
		})
		fail(replyLost, "%[1]s reads the count, and the reply is lost", func(s *state) {
			show(s)
			s.update.goBack()
		})
	case u.stage == counting:
		do("Slack shows the count", func(s *state) { s.update.shown, s.update.stage = u.count, shown })
		fail(answerLost, "Slack shows the count, and the answer is lost", func(s *state) {
			s.update.shown = u.count
			s.update.goBack()
		})
		fail(postFails, "Slack refuses the update temporarily", func(s *state) { s.update.goBack() })
	case u.stage == shown:
		do("%[1]s records the update", func(s *state) {
			if !s.down {
				s.redis.updated = max(s.redis.updated, u.order)
			}
			s.update.stage = settling
		})
	default:
		do("%[1]s acknowledges the update", func(s *state) { s.update.end() })
		fail(ackLost, "the acknowledgement of the update is lost", func(s *state) { s.update.goBack() })
	}
}

// update writes the update, and what Redis knows of it.
func (p *packer) update(s *state, workers *order) {
	u := &s.update
	for _, value := range []uint8{
		u.waiting, u.order, workers.to(u.holder), uint8(u.stage), u.count, u.shown, s.redis.showing, s.redis.updated, s.replica.showing, s.replica.updated,
	} {
		p.put(value, 2)
	}
}
