package interleave

import "github.com/seed-4578ace9/notifier/internal/testing/failpoint"

// progress is how far the digest about the dropped events is.
type progress uint8

const (
	nothing progress = iota // nobody has dropped an event
	due
	claimed      // by a worker
	digestPosted // which is not recorded
	over
)

// digest is the digest of the channel.
type digest struct {
	progress progress
	holder   uint8 // nobody: its claim has lapsed
	posts    uint8
}

// digest emits the steps of a worker with the digest.
func (e *emitter) digest(w uint8) {
	d := e.from.digest
	set := func(to progress, posts uint8) func(s *state) {
		return func(s *state) { s.digest = digest{to, w, d.posts + posts} }
	}
	switch {
	case d.progress == due:
		e.do("%[1]s claims the digest", w, nobody, set(claimed, 0))
	case d.progress == claimed && d.holder == w:
		e.do("%[1]s posts the digest", w, nobody, set(digestPosted, 1))
		e.fail(answerLost, "%[1]s posts the digest, and the answer is lost", w, nobody, func(s *state) {
			s.digest = digest{claimed, nobody, d.posts + 1}
		})
		e.fail(answerLost, "the request for the digest is lost without an answer", w, nobody, func(s *state) { s.digest.holder = nobody })
	case d.progress == digestPosted && d.holder == w:
		e.do("%[1]s records the digest", w, nobody, set(over, 0))
	case d.progress == claimed || d.progress == digestPosted:
		e.look(w)
	}
	if d.progress != claimed && d.progress != digestPosted || d.holder != w || !e.may(kill) {
		return
	}
	point := failpoint.AfterClaim
	if d.progress == digestPosted {
		point = failpoint.AfterSummary
	}
	e.step(step{text: "%[1]s is killed", worker: w, event: nobody, fault: true, point: point}, func(s *state) { s.kill(w) })
}

// look settles a digest in doubt: if nobody may look for it, its counts go into the next one.
func (e *emitter) look(w uint8) {
	d := e.from.digest
	switch {
	case d.holder != nobody:
	case !e.c.lookUp:
		e.do("%[1]s does not post the digest again", w, nobody, func(s *state) { s.digest.progress = over })
	case d.posts > 0:
		e.do("%[1]s finds the digest", w, nobody, func(s *state) { s.digest.progress = over })
	default:
		e.do("%[1]s finds no digest", w, nobody, func(s *state) { s.digest.holder = w })
	}
}
