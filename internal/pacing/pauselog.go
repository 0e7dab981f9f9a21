package pacing

import (
	"log/slog"
	"sync"
	"time"
)

// pauseLineEvery is the least time between two lines about the pauses of one destination.
const pauseLineEvery = time.Minute

// pauseLog logs the start and the end of the pauses that this instance learns of. It writes at most one line of each kind for a destination
// in a minute.
type pauseLog struct {
	logger *slog.Logger

	mu     sync.Mutex
	paused map[string]*loggedPause // by destination
}

// loggedPause is the state of a destination in the log.
type loggedPause struct {
	until  time.Time
	pauses int         // that no line counts yet
	told   bool        // the last line says that it is paused
	last   time.Time   // when the last such line was written
	next   *time.Timer // when there may be something to tell
}

func newPauseLog(logger *slog.Logger) *pauseLog {
	return &pauseLog{logger: logger, paused: make(map[string]*loggedPause)}
}

// pause notes that a destination is paused for d.
func (l *pauseLog) pause(destination string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.paused[destination]
	if r == nil {
		if len(l.paused) >= maxPauses {
			return
		}
		r = &loggedPause{next: time.AfterFunc(d, func() { l.look(destination) })}
		l.paused[destination] = r
	}
	r.until = later(r.until, time.Now().Add(d))
	r.pauses++
	l.tell(destination, r)
}

// look runs when a pause may be over or when the next line is allowed.
func (l *pauseLog) look(destination string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.paused[destination]; r != nil {
		l.tell(destination, r)
	}
}

// tell writes the line that is due. The caller holds the lock.
func (l *pauseLog) tell(destination string, r *loggedPause) {
	now := time.Now()
	paused, mayTell := now.Before(r.until), now.Sub(r.last) >= pauseLineEvery
	switch {
	case paused && !r.told && mayTell:
		l.logger.Info("channel is paused", "destination", destination, "paused_for", r.until.Sub(now).Round(time.Millisecond).String(), "pauses", r.pauses)
		r.told, r.last, r.pauses = true, now, 0
	case !paused && r.told:
		l.logger.Info("channel goes on", "destination", destination, "further_pauses", r.pauses)
		r.told, r.pauses = false, 0
	case !paused && mayTell:
		if r.pauses == 0 { // else the next line counts them
			delete(l.paused, destination)
		}
		return
	}
	if paused && r.told {
		r.next.Reset(r.until.Sub(now))
	} else {
		r.next.Reset(max(0, pauseLineEvery-now.Sub(r.last)))
	}
}
