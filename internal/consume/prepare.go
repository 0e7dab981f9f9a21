package consume

import "github.com/seed-4578ace9/notifier/internal/sink"

// fewCandidates is how many are prepared while they are decided about. A worker with more of them is not waiting for Redis,
// and most of a flood is prepared for nothing.
const fewCandidates = 4

// prepare prepares a few candidates for their delivery while they are decided about: an event that comes alone is posted sooner. The
// returned function gives what to send of each.
func (w *Worker) prepare(candidates []candidate) func(i int) sink.Delivery {
	unprepared := func(i int) sink.Delivery { return sink.Delivery{Event: candidates[i].event} }
	if len(candidates) > fewCandidates {
		return unprepared
	}
	prepared, done := make([]sink.Delivery, len(candidates)), make(chan struct{})
	go func() {
		defer close(done)
		for i := range candidates {
			prepared[i] = w.sink.Prepare(unprepared(i))
		}
	}()
	return func(i int) sink.Delivery {
		<-done
		return prepared[i]
	}
}
