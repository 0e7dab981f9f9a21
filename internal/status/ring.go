package status

import "time"

// ring holds a value for each of the latest time spans. Spans are aligned to multiples of the width since the epoch.
type ring[T any] struct {
	width time.Duration
	slots []slot[T]
}

type slot[T any] struct {
	number int64 // of the span
	value  T
}

func newRing[T any](width time.Duration, count int) ring[T] {
	return ring[T]{width: width, slots: make([]slot[T], count)}
}

// now returns the value of the present span. A span starts with the zero value.
func (r *ring[T]) now(now time.Time) *T {
	number := now.UnixNano() / int64(r.width)
	s := &r.slots[number%int64(len(r.slots))]
	if s.number != number {
		*s = slot[T]{number: number}
	}
	return &s.value
}

// each visits the spans, the oldest first. It skips spans without a call of now.
func (r *ring[T]) each(now time.Time, visit func(begin time.Time, value T)) {
	newest, count := now.UnixNano()/int64(r.width), int64(len(r.slots))
	for number := max(newest-count+1, 0); number <= newest; number++ {
		if s := r.slots[number%count]; s.number == number {
			visit(time.Unix(0, number*int64(r.width)).UTC(), s.value)
		}
	}
}
