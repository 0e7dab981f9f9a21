package pacing

import (
	"log/slog"
	"sync"
	"time"
)

// restLineEvery is the least time between two lines which say that one destination rests.
const restLineEvery = time.Minute

// restLog tells the log when a destination rests, as this instance was told, and when it goes on. A destination that rests again and
// again has one line of each kind in a minute.
type restLog struct {
	logger *slog.Logger

	mu    sync.Mutex
	rests map[string]*rest // by destination
}

// rest is what the log was told of a destination.
type rest struct {
	until  time.Time
	pauses int         // that no line counts yet
	told   bool        // the last line says that it rests
	last   time.Time   // when the last such line was written
	next   *time.Timer // when there may be something to tell
}

func newRestLog(logger *slog.Logger) *restLog {
	return &restLog{logger: logger, rests: make(map[string]*rest)}
}

// pause notes that a destination rests for d.
func (l *restLog) pause(destination string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rests[destination]
	if r == nil {
		if len(l.rests) >= maxPauses {
			return
		}
		r = &rest{next: time.AfterFunc(d, func() { l.look(destination) })}
		l.rests[destination] = r
	}
	r.until = later(r.until, time.Now().Add(d))
	r.pauses++
	l.tell(destination, r)
}

// look comes when a rest may be over, or a line may be written.
func (l *restLog) look(destination string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rests[destination]; r != nil {
		l.tell(destination, r)
	}
}

// tell writes the line that is due. The caller holds the lock.
func (l *restLog) tell(destination string, r *rest) {
	now := time.Now()
	resting, mayTell := now.Before(r.until), now.Sub(r.last) >= restLineEvery
	switch {
	case resting && !r.told && mayTell:
		l.logger.Info("channel rests", "destination", destination, "rest", r.until.Sub(now).Round(time.Millisecond).String(), "pauses", r.pauses)
		r.told, r.last, r.pauses = true, now, 0
	case !resting && r.told:
		l.logger.Info("channel goes on", "destination", destination, "further_pauses", r.pauses)
		r.told, r.pauses = false, 0
	case !resting && mayTell:
		if r.pauses == 0 { // else the next line counts them
			delete(l.rests, destination)
		}
		return
	}
	if resting && r.told {
		r.next.Reset(r.until.Sub(now))
	} else {
		r.next.Reset(max(0, restLineEvery-now.Sub(r.last)))
	}
}
