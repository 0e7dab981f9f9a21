// Package livelimits puts the limits of the bucket in force in a worker, and reports their changes to digests.
//
// [New] returns a [Live] that knows nothing yet. [Live.Run] then follows the bucket until its context ends. A snapshot whose limits conflict
// is logged and not applied. While the bucket has not been read, or if a live limit is unreadable, the worker must take no event, since it would
// apply the limits of its environment instead: [Live.Ready] returns the reason, and [Live.AwaitReadable] waits. Without a bucket, the limits of
// the environment are in force. All methods may run at once.
package livelimits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/overrides"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/summary"
)

// firstTimeout is how long a worker waits for live limits before it reports that they are missing, and between two looks whether there is a
// bucket.
const firstTimeout = 2 * time.Second

// Options are what a [Live] works with.
type Options struct {
	Settings  config.Config
	JetStream jetstream.JetStream
	InForce   func(context.Context) (limits.Position, time.Time, error) // what Redis has in force
	Adopt     func(limits.Ruleset)
	Forged    func(n int) // counts messages in the bucket that no worker or operator wrote
	Logger    *slog.Logger
}

// Live follows the live limits of a deployment.
type Live struct {
	watcher *overrides.Watcher
	live    *limits.Live
	adopt   func(limits.Ruleset)
	logger  *slog.Logger

	applied  atomic.Pointer[overrides.Snapshot] // nil: not read yet
	refused  atomic.Pointer[error]              // why the newest snapshot is not in force; nil: it is
	read     atomic.Bool                        // the bucket was read, or there was certainly none
	readable chan struct{}                      // closed when every live limit was readable
	once     sync.Once
	lost     []overrides.Name // the lost mutes that were logged; only apply uses it

	mu      sync.Mutex
	changes summary.LimitChanges // up to the applied snapshot
}

// New returns a Live that has read nothing yet.
func New(o Options) *Live {
	options := setup.Overrides(o.Settings, o.Logger)
	options.Forged = o.Forged
	options.Outdated = func(ctx context.Context, s overrides.Snapshot) bool {
		inForce, _, err := o.InForce(ctx)
		return err == nil && setup.Position(s).Before(inForce) // if Redis does not answer, no newer limits are known
	}
	l := &Live{live: setup.Live(o.JetStream, o.Settings, options), adopt: o.Adopt, logger: o.Logger, readable: make(chan struct{})}
	l.watcher = overrides.NewWatcher(o.JetStream, options, l.apply)
	return l
}

// Run follows the bucket until the context ends.
func (l *Live) Run(ctx context.Context) { l.watcher.Run(ctx) }

// errConflict means that each live limit is readable, and that not all of them can be in force together.
var errConflict = errors.New("live limits conflict")

// Refresh applies the newest limits of the bucket. It fails if one of them is unreadable or they conflict, because none of them is then in force
// here.
func (l *Live) Refresh(ctx context.Context) error {
	err := l.watcher.Refresh(ctx)
	if refused := l.refused.Load(); err == nil && refused != nil {
		err = *refused
	}
	return err
}

// Applied returns the overrides in force, or nil if none have been read yet.
func (l *Live) Applied() *overrides.Snapshot { return l.applied.Load() }

// apply puts a snapshot in force. Its error is [limits.ErrEarlier].
func (l *Live) apply(s overrides.Snapshot) error {
	rules, err := l.live.Ruleset(s.Generation, s.Revision, setup.LiveEntries(s))
	if errors.Is(err, limits.ErrEarlier) {
		return err
	}
	l.putInForce(s, rules, err)
	return nil
}

// putInForce puts the limits of a snapshot in force, unless one is unreadable or they conflict.
func (l *Live) putInForce(s overrides.Snapshot, rules limits.Ruleset, conflict error) {
	rules.Mutes = setup.Mutes(s)
	if unreadable := l.live.Unreadable(); unreadable != nil {
		l.refused.Store(&unreadable)
		return
	}
	if conflict != nil {
		l.logger.Error("live limits conflict; keeping the previous ones", "revision", s.Revision, "error", conflict)
		l.read.Store(true)
		conflict = fmt.Errorf("%w: %w", errConflict, conflict)
		l.refused.Store(&conflict)
		return
	}
	l.logLost(s)
	l.adopt(rules)
	l.read.Store(true)
	if isFirst := l.applied.Swap(&s) == nil; isFirst || !s.Forged {
		logLimits(l.logger, rules, len(s.Entries))
	}
	l.refused.Store(nil)
	l.once.Do(func() { close(l.readable) })
}

// logLost logs each mute once that forged messages have replaced before this worker started. The worker posts what it would mute: nobody
// knows the mute, and a stop would suppress much more.
func (l *Live) logLost(s overrides.Snapshot) {
	for _, mute := range s.Mutes {
		if mute.Lost && !slices.Contains(l.lost, mute.Name) {
			l.lost = append(l.lost, mute.Name)
			l.logger.Error("a mute was overwritten by forged messages: set it again or remove it", "level", mute.Name.String())
		}
	}
}

// Ready returns why the worker must take no events, or nil.
func (l *Live) Ready() error {
	if refused := l.refused.Load(); refused != nil && !errors.Is(*refused, errConflict) {
		return *refused
	}
	if l.read.Load() {
		return nil
	}
	err := l.watcher.Unavailable()
	if err == nil || errors.Is(err, overrides.ErrNoBucket) { // without a bucket, no live limit is missing
		l.read.Store(true)
		return nil
	}
	return fmt.Errorf("the live limits have not been read: %w", err)
}

// Failing returns why the limits in force may not be the limits of the bucket; nil: they are, or there has been no bucket.
func (l *Live) Failing() error {
	if refused := l.refused.Load(); refused != nil {
		return *refused
	}
	if l.applied.Load() == nil {
		return nil
	}
	if err := l.watcher.Unavailable(); err != nil {
		return fmt.Errorf("keeping the last known live limits: %w", err)
	}
	return nil
}

// AwaitReadable waits until the bucket is read and every live limit is readable.
func (l *Live) AwaitReadable(ctx context.Context) error {
	reason := l.Ready()
	if reason == nil {
		return nil
	}
	l.logger.Error("live limits are unreadable: pulling no events", "error", reason)
	for readable := false; !readable && l.Ready() != nil; {
		select {
		case <-l.readable:
			readable = true
		case <-time.After(firstTimeout):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l.logger.Info("live limits are readable again")
	return nil
}

// AwaitFirst waits for the first limits of the bucket. If there is no bucket, it logs that the limits of the settings are in force.
func (l *Live) AwaitFirst(ctx context.Context, fromSettings limits.Ruleset) {
	waiting, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	if l.Refresh(waiting) != nil && l.Ready() == nil && ctx.Err() == nil {
		logLimits(l.logger, fromSettings, 0)
	}
}

// Changes returns the changes of live limits, for digests. It asks NATS again only after a change. Shadow limits drop nothing, so their
// changes are left out.
func (l *Live) Changes(ctx context.Context) summary.LimitChanges {
	l.mu.Lock()
	defer l.mu.Unlock()
	applied := l.applied.Load()
	if applied == nil {
		return summary.LimitChanges{}
	}
	if l.changes.Generation == applied.Generation && l.changes.Revision == applied.Revision {
		return l.changes
	}
	history, err := l.watcher.Changes(ctx, time.Time{})
	if err != nil {
		return summary.LimitChanges{} // the next digest reports them
	}
	l.changes = summary.LimitChanges{Generation: applied.Generation, Revision: applied.Revision}
	for _, change := range history {
		if !change.Name.Shadow && change.Name.Kind != overrides.Recurring && change.Revision <= applied.Revision {
			l.changes.Changes = append(l.changes.Changes, digestChange(change))
		}
	}
	return l.changes
}

// digestChange is a change as digests show it. The end of a limit has no author.
func digestChange(c overrides.Change) summary.Change {
	shown := summary.Change{Revision: c.Revision, At: c.Changed, Limit: c.Name.Pattern, Value: c.Value, By: c.By}
	switch {
	case c.Name.Kind == overrides.Mute:
		shown.Mute = (&limits.Mute{Path: c.Name.MutedPath(), Rule: c.Name.Rule}).Name()
		if c.Ended != 0 {
			shown.By = ""
		}
	case !c.Until.IsZero():
		shown.Value += " for " + setup.Length(c)
	case c.Ended != 0:
		shown.By = ""
		if c.Value != "" {
			shown.Value += " again"
		}
	}
	return shown
}

// mostLogged bounds the rules in one line of the log.
const mostLogged = 100

// LogPointless logs the limits of the settings that can never deny an event.
func LogPointless(logger *slog.Logger, tree *limits.Tree) {
	var texts []string
	for _, pointless := range tree.Pointless() {
		texts = append(texts, pointless.String())
	}
	if len(texts) > 0 {
		logger.Warn("limits without effect", "limits", texts[:min(len(texts), mostLogged)], "count", len(texts))
	}
}

func logLimits(logger *slog.Logger, rules limits.Ruleset, overrides int) {
	attributes := []any{"revision", rules.Position.Revision, "overrides", overrides, "limits", limitTexts(rules.Tree)}
	if len(rules.Mutes) > 0 {
		attributes = append(attributes, "muted", firstTexts(rules.Mutes, func(m *limits.Mute) string { return m.Path }))
	}
	if rules.Shadow != nil {
		attributes = append(attributes, "shadow_limits", limitTexts(rules.Shadow))
	}
	logger.Info("limits in force", attributes...)
}

// firstTexts returns texts of the first things, and the number of the others.
func firstTexts[T any](things []T, text func(T) string) []string {
	var texts []string
	for _, thing := range things[:min(len(things), mostLogged)] {
		texts = append(texts, text(thing))
	}
	if more := len(things) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return texts
}

// limitTexts returns the rules of a tree as they are configured.
func limitTexts(tree *limits.Tree) []string {
	texts := firstTexts(tree.AllLevels(), func(level limits.Node) string { return level.Level + "=" + level.Limits.String() })
	for _, guarantee := range tree.Guarantees() {
		texts = append(texts, fmt.Sprintf("%s=%d guaranteed", guarantee.Path, guarantee.Slots))
	}
	return texts
}
