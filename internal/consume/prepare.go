package consume

import "github.com/seed-4578ace9/notifier/internal/sink"

// fewCandidates is up to how many candidates are prepared during their decision. With more of them, a worker is not waiting for Redis, and
// in a flood most preparations would be wasted.
const fewCandidates = 4

// prepare prepares a few candidates for delivery while the throttle decides, so a single event is posted sooner. For each candidate it
// returns a function that waits for the preparation and returns what to send.
func (w *Worker) prepare(candidates []candidate) func(i int) func() sink.Delivery {
	unprepared := func(i int) sink.Delivery { return sink.Delivery{Event: candidates[i].event} }
	if len(candidates) > fewCandidates {
		return func(i int) func() sink.Delivery {
			own := unprepared(i) // otherwise a delivery would keep the whole batch in memory
			return func() sink.Delivery { return own }
		}
	}
	prepared, done := make([]sink.Delivery, len(candidates)), make(chan struct{})
	go func() {
		defer close(done)
		for i := range candidates {
			prepared[i] = w.sink.Prepare(unprepared(i))
		}
	}()
	return func(i int) func() sink.Delivery {
		return func() sink.Delivery {
			<-done
			return prepared[i]
		}
	}
}
