package consume

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// logOutcomes has a line for each event of a batch that has ended, where debug lines are wanted. Elsewhere no event is looked at.
func (w *Worker) logOutcomes(settled ...settlement) {
	if !w.logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for _, s := range settled {
		if s.outcome == "" {
			continue
		}
		attributes := []any{"id", w.shownID(s.message), "category", s.category, "outcome", string(s.outcome)}
		if level := levelOf(s.denial); level != "" {
			attributes = append(attributes, "limit_level", level) // "level" is the line's own
		}
		w.logger.Debug("event has ended", s.traced(attributes...)...)
	}
}

// letterLogEvery is how often the log has a line about the dead letters of one reason.
const letterLogEvery = time.Minute

// letterLog tells the log of dead letters: of the first one of a reason at once, and of those that follow once a minute, with their
// number and the newest one of them.
type letterLog struct {
	logger *slog.Logger

	mu      sync.Mutex
	untold  map[event.Reason]*untoldLetters // of the last minute
	stopped bool
}

// untoldLetters are those of one reason that the log has no line about.
type untoldLetters struct {
	number  int
	subject string // of the newest one
	detail  string // likewise
	trace   string // likewise, "" for none
	next    *time.Timer
}

func newLetterLog(logger *slog.Logger) *letterLog {
	return &letterLog{logger: logger, untold: make(map[event.Reason]*untoldLetters)}
}

// add notes a dead letter.
func (l *letterLog) add(subject string, fault *event.Fault, trace string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	untold, waits := l.untold[fault.Reason]
	if !waits {
		untold = &untoldLetters{next: time.AfterFunc(letterLogEvery, func() { l.tellMore(fault.Reason) })}
		l.untold[fault.Reason] = untold
	}
	untold.number++
	untold.subject, untold.detail, untold.trace = oneLine(subject), oneLine(fault.Detail), trace
	if !waits || l.stopped {
		l.tell(fault.Reason)
	}
}

// tellMore tells of the letters of a minute. Without any, the next one is told of at once.
func (l *letterLog) tellMore(reason event.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped || l.untold[reason].number == 0 {
		delete(l.untold, reason)
		return
	}
	l.tell(reason)
	l.untold[reason].next.Reset(letterLogEvery)
}

// tell writes the line. The caller holds the lock.
func (l *letterLog) tell(reason event.Reason) {
	untold := l.untold[reason]
	if untold.number == 0 {
		return
	}
	attributes := []any{"reason", string(reason), "count", untold.number, "subject", untold.subject, "error", untold.detail}
	if untold.trace != "" {
		attributes = append(attributes, "trace_id", untold.trace)
	}
	l.logger.Info("events ended as dead letters", attributes...)
	untold.number = 0
}

// stop tells of what is left.
func (l *letterLog) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for reason, untold := range l.untold {
		untold.next.Stop()
		l.tell(reason)
	}
}
