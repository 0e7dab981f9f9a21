package simulate

import (
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle/store"
)

// reports are the pending and posted reports that flapping keys are steady.
type reports struct {
	window time.Duration
	due    map[string]dueReport // by pair
	next   time.Time            // no report is due earlier
	made   []time.Time          // times of the posted reports, until Reports returns them
}

// dueReport is a report that is posted if the key has not changed since by its time.
type dueReport struct {
	request store.Request
	since   store.Change
}

func (r *reports) flaps(request store.Request) {
	if _, known := r.due[request.Pair]; !known {
		report := dueReport{request, request.Change()}
		if at := r.at(report); len(r.due) == 0 || at.Before(r.next) {
			r.next = at
		}
		r.due[request.Pair] = report
	}
}

func (r *reports) at(report dueReport) time.Time { return report.since.At().Add(r.window) }

func (l *Limiter) noteFlaps(decisions []store.Decision, requests []store.Request) {
	for i, d := range decisions {
		if d.Flaps || d.Fold != nil && d.Fold.Flaps {
			l.reports.flaps(requests[i])
		}
	}
}

// report posts the reports that are due up to a time.
func (l *Limiter) report(upto time.Time) {
	for len(l.reports.due) > 0 && !l.reports.next.After(upto) { // most calls end here
		pair, at := "", time.Time{}
		for candidate, report := range l.reports.due {
			if due := l.reports.at(report); pair == "" || due.Before(at) || due.Equal(at) && candidate < pair {
				pair, at = candidate, due
			}
		}
		if l.reports.next = at; at.After(upto) {
			return
		}
		next := l.reports.due[pair]
		delete(l.reports.due, pair)
		l.now = at
		switch d := l.memory.Resolve([]store.Request{next.request.Report(next.since)})[0]; d.Verdict {
		case store.Leased:
			l.reports.due[pair] = dueReport{next.request, d.Changed}
		case store.Admitted:
			l.reports.made = append(l.reports.made, at)
			l.memory.Finish([]store.Lease{d.Lease})
		default:
		}
	}
}

// Reports returns the times of the reports that keys are steady up to a time, since the last call. They take no slots, and are no events.
func (l *Limiter) Reports(upto time.Time) (made []time.Time) {
	l.report(upto)
	made, l.reports.made = l.reports.made, nil
	return made
}
