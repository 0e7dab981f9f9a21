package consume

import "github.com/seed-4578ace9/notifier/internal/sink"

// fewCandidates is how many are prepared while they are decided about. A worker with more of them is not waiting for Redis,
// and most of a flood is prepared for nothing.
const fewCandidates = 4

// prepare prepares candidates for their delivery while they are decided about, if they are few: so an event that comes alone is on
// its way sooner. The function that it returns waits for that, and returns one that gives what is to be sent of each.
func (w *Worker) prepare(candidates []candidate) func() func(int) sink.Delivery {
	unprepared := func(i int) sink.Delivery { return sink.Delivery{Event: candidates[i].event} }
	if len(candidates) > fewCandidates {
		return func() func(int) sink.Delivery { return unprepared }
	}
	prepared, done := make([]sink.Delivery, len(candidates)), make(chan struct{})
	go func() {
		defer close(done)
		for i := range candidates {
			prepared[i] = w.sink.Prepare(unprepared(i))
		}
	}()
	return func() func(int) sink.Delivery {
		<-done
		return func(i int) sink.Delivery { return prepared[i] }
	}
}
