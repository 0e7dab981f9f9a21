package consume

import "github.com/seed-4578ace9/notifier/internal/sink"

// fewCandidates is how many are prepared while they are decided about. A worker with more of them is not waiting for Redis,
// and most of a flood is prepared for nothing.
const fewCandidates = 4

// prepare prepares a few candidates for their delivery while they are decided about: an event that comes alone is posted sooner. For each
// candidate it returns a function that waits until the candidate is prepared, and returns what to send.
func (w *Worker) prepare(candidates []candidate) func(i int) func() sink.Delivery {
	unprepared := func(i int) sink.Delivery { return sink.Delivery{Event: candidates[i].event} }
	if len(candidates) > fewCandidates {
		return func(i int) func() sink.Delivery {
			own := unprepared(i) // else a delivery would keep the whole batch in memory
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
