package consume

import "github.com/seed-4578ace9/notifier/internal/sink"

// fewCandidates is up to how many candidates are prepared during their decision. With more of them, a worker is not waiting for Redis, and
// in a flood most preparations would be wasted.
const fewCandidates = 4

// preparation is a delivery that the sink may still be preparing.
type preparation struct {
	delivery sink.Delivery
	done     chan struct{} // closed when the delivery is prepared; nil: it is not prepared in advance
}

// result waits for the preparation, and returns what to send.
func (p *preparation) result() sink.Delivery {
	if p.done != nil {
		<-p.done
	}
	return p.delivery
}

// prepare prepares a few candidates for delivery while the throttle decides, so a single event is posted sooner. It returns nil for a
// candidate that is not prepared in advance. Each preparation stands alone: a delivery keeps no other candidate in memory.
func (v *deliverer) prepare(candidates []candidate) []*preparation {
	all := make([]*preparation, len(candidates))
	if len(candidates) > fewCandidates {
		return all
	}
	for i, c := range candidates {
		all[i] = &preparation{delivery: sink.Delivery{Event: c.event}, done: make(chan struct{})}
	}
	go func() {
		for _, p := range all {
			p.delivery = v.sink.Prepare(p.delivery)
			close(p.done)
		}
	}()
	return all
}
