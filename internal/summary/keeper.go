package summary

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/throttle"
)

const (
	reportEvery = time.Second // what was counted is told
	claimEvery  = time.Second // about; it is asked what is due
	reportSize  = 16          // categories in one call, in which Redis does nothing else

	// lease is how long a summary is the instance's that claimed it; within sendPatience it has to be posted.
	lease        = 2 * time.Minute
	sendPatience = lease - 10*time.Second

	maxAttempts = 5  // to post a summary, over all instances
	maxPosts    = 32 // under way at one time

	endAgain     = time.Second // between tries to record that a post is over
	complainOnce = time.Minute // in which the log says the same at most once
)

// StopPatience is how long [Keeper.Run] goes on when its context has ended, for posts that are under way and what was not
// told yet. What it then still has to record may take one call of the store more.
const StopPatience = 3 * time.Second

// The ends that a summary may have, see [Options].
const (
	Sent    = "sent"
	GivenUp = "given_up"
)

// Store is where all instances count together: [throttle.Redis].
type Store interface {
	CountDrops(ctx context.Context, interval time.Duration, report throttle.DropReport) (leftOut int64, err error)
	ClaimSummaries(ctx context.Context, interval, lease time.Duration, limit int) ([]throttle.DropSummary, error)
	EndSummary(ctx context.Context, interval time.Duration, s throttle.DropSummary, again time.Duration) error
}

// Options are what a keeper needs.
type Options struct {
	Store    Store
	Interval time.Duration // between summaries of one category; 0: there are none
	Instance string        // a name that no other start of a worker has; drawn if it is empty
	Logger   *slog.Logger

	// Send posts a summary. Its context ends in time before another instance may post it. Its error may have a method
	// RetryAfter() time.Duration, and a method Permanent() bool, which is true where trying again would not help, or might
	// post it twice.
	Send func(ctx context.Context, s Summary) error

	// Describe tells the limits of a level for a category, such as 10/30m. It may be nil.
	Describe func(category, level string) string

	// Opens tells when the next slot of a category opens, as far as this instance knows. It may be nil.
	Opens func(category string) time.Time

	// Observe is told how a summary ended: Sent or GivenUp. It may be nil.
	Observe func(result string)
}

// Keeper tells what its counter has counted, and posts summaries that are due.
type Keeper struct {
	o       Options
	counter *Counter

	// These belong to the goroutine that tells what was counted.
	untold    []throttle.DropReport // taken from the counter; the first may have been counted without an answer
	announced bool                  // the store believes that this instance goes on to drop
	number    int64                 // of the last report
	full      time.Time             // when the log said last that drops were left out

	posts   sync.WaitGroup
	posting chan struct{} // has an element for each post under way

	telling, claiming outage // each is of one goroutine
}

// outage is that the log says of something that it does not work.
type outage bool

// NewKeeper makes a keeper. Nothing happens before Run.
func NewKeeper(o Options) *Keeper {
	o.Instance = cmp.Or(o.Instance, rand.Text())
	k := &Keeper{o: o, posting: make(chan struct{}, maxPosts)}
	if o.Interval > 0 {
		k.counter = newCounter()
	}
	return k
}

// Counter is what drops are to be told to. It is nil, and may be used as well, if there are no summaries.
func (k *Keeper) Counter() *Counter { return k.counter }

// Run works until the context ends; it is to end behind the last drop. What was counted by then is told at the end. Without
// summaries Run returns at once.
func (k *Keeper) Run(ctx context.Context) {
	if k.counter == nil {
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { k.tell(ctx) })
	loops.Go(func() { k.deliver(ctx) })
	loops.Wait()
}

// tell tells what was counted: each second, and at once what comes after a rest, so that a worker that is killed early is
// known to have been dropping.
func (k *Keeper) tell(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			k.tellLast(context.WithoutCancel(ctx))
			return
		case <-k.counter.wake:
		case <-tick.C:
		}
		k.tellOnce(ctx)
	}
}

// tellOnce tells all that was counted or, when there is nothing more, that this instance has told all.
func (k *Keeper) tellOnce(ctx context.Context) (told bool) {
	if !k.tellUntold(ctx) {
		return false
	}
	drops, leftOut := k.counter.take()
	k.leftOut(leftOut)
	for i := range drops {
		if k.o.Opens != nil {
			drops[i].Opens = k.o.Opens(drops[i].Category)
		}
	}
	for part := range slices.Chunk(drops, reportSize) {
		k.untold = append(k.untold, k.newReport(part))
	}
	if len(drops) == 0 && k.announced {
		k.untold = append(k.untold, k.newReport(nil))
	}
	return k.tellUntold(ctx)
}

// newReport numbers a report. One of drops announces that there will be more.
func (k *Keeper) newReport(drops []throttle.Drops) throttle.DropReport {
	k.number = max(k.number+1, time.Now().UnixMicro())
	return throttle.DropReport{Instance: k.o.Instance, Number: k.number, Dropping: len(drops) > 0, Drops: drops}
}

// tellUntold makes the reports that wait. One without an answer is made again as it is.
func (k *Keeper) tellUntold(ctx context.Context) bool {
	for len(k.untold) > 0 {
		leftOut, err := k.o.Store.CountDrops(ctx, k.o.Interval, k.untold[0])
		k.telling.note(ctx, k.o.Logger, "counting drops", err)
		if err != nil {
			return false
		}
		k.leftOut(leftOut)
		k.announced = k.untold[0].Dropping
		k.untold = k.untold[1:]
	}
	k.untold = nil
	return true
}

// tellLast tells what is left when the worker stops.
func (k *Keeper) tellLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, StopPatience)
	defer cancel()
	told := k.tellOnce(ctx)
	if told {
		told = k.tellOnce(ctx) // that this was all
	}
	if told {
		return
	}
	var lost int64
	drops, _ := k.counter.take()
	for _, report := range k.untold {
		drops = append(drops, report.Drops...)
	}
	for _, d := range drops {
		lost += d.Total
	}
	if lost > 0 {
		k.o.Logger.Warn("summaries will lack drops of this instance", "drops", lost)
	}
}

// leftOut says once in a while that there are too many categories.
func (k *Keeper) leftOut(drops int64) {
	if drops == 0 || time.Since(k.full) < complainOnce {
		return
	}
	k.full = time.Now()
	k.o.Logger.Warn("drops of too many categories, summaries leave some out", "drops", drops, "most", throttle.MaxDropCategories)
}

// note says once that something does not work, and once that it does again.
func (o *outage) note(ctx context.Context, logger *slog.Logger, what string, err error) {
	switch logger = logger.With("tried", what); {
	case ctx.Err() != nil:
		return
	case err != nil && !bool(*o):
		logger.Warn("summaries wait, what is dropped is kept meanwhile", "error", err)
	case err == nil && bool(*o):
		logger.Info("summaries go on")
	}
	*o = err != nil
}

// deliver claims what is due, and posts it. At the end it gives the posts under way a moment.
func (k *Keeper) deliver(ctx context.Context) {
	posting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for rest(ctx, claimEvery*3/4+mathrand.N(claimEvery/2)) { //nolint:gosec // no secret depends on it
		k.claim(ctx, posting)
	}
	end := time.AfterFunc(StopPatience, cancel)
	defer end.Stop()
	k.posts.Wait()
}

// rest waits, and tells whether the context goes on.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// claim claims as much as can be posted now.
func (k *Keeper) claim(ctx, posting context.Context) {
	free := cap(k.posting) - len(k.posting)
	if free == 0 {
		return
	}
	// What is claimed has to be known here, else it waits until the lease has lapsed.
	claimed, err := k.o.Store.ClaimSummaries(context.WithoutCancel(ctx), k.o.Interval, lease, free)
	k.claiming.note(ctx, k.o.Logger, "claiming summaries", err)
	deadline := time.Now().Add(sendPatience)
	for _, s := range claimed {
		k.posting <- struct{}{}
		k.posts.Go(func() {
			defer func() { <-k.posting }()
			k.post(posting, s, deadline)
		})
	}
}

// post makes one attempt at a claimed summary.
func (k *Keeper) post(ctx context.Context, s throttle.DropSummary, deadline time.Time) {
	if s.Attempt > maxAttempts { // whoever made the last one was killed
		k.giveUp(ctx, s, deadline, errors.New("no attempt came to an end"))
		return
	}
	sending, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := k.o.Send(sending, newSummary(s, k.o.Describe))
	switch {
	case err == nil:
		k.observe(Sent)
		k.end(ctx, s, 0, deadline)
	case s.Attempt == maxAttempts || isPermanent(err):
		k.giveUp(ctx, s, deadline, err)
	default:
		again := retryAfter(err, s.Attempt)
		k.o.Logger.Warn("summary is not posted yet", "category", s.Category, "attempt", s.Attempt, "again_in", again, "error", err)
		k.end(ctx, s, again, deadline)
	}
}

func (k *Keeper) giveUp(ctx context.Context, s throttle.DropSummary, deadline time.Time, err error) {
	k.o.Logger.Error("summary is given up", "category", s.Category, "dropped", s.Total,
		"attempts", min(s.Attempt, maxAttempts), "error", err)
	k.observe(GivenUp)
	k.end(ctx, s, 0, deadline)
}

func (k *Keeper) observe(result string) {
	if k.o.Observe != nil {
		k.o.Observe(result)
	}
}

// end records that an attempt is over. It insists, since otherwise the summary is posted again when the lease has lapsed.
func (k *Keeper) end(ctx context.Context, s throttle.DropSummary, again time.Duration, deadline time.Time) {
	for {
		err := k.o.Store.EndSummary(context.WithoutCancel(ctx), k.o.Interval, s, again)
		if err == nil {
			return
		}
		if time.Now().After(deadline) || !rest(ctx, endAgain) {
			k.o.Logger.Warn("end of a summary is not recorded", "category", s.Category, "error", err)
			return
		}
	}
}

func isPermanent(err error) bool {
	class, says := errors.AsType[interface {
		error
		Permanent() bool
	}](err)
	return says && class.Permanent()
}

// retryAfter is when a summary is tried again: when the error says so, else after 2, 8, 32 and 128 seconds.
func retryAfter(err error, attempt int) time.Duration {
	class, says := errors.AsType[interface {
		error
		RetryAfter() time.Duration
	}](err)
	if says && class.RetryAfter() > 0 {
		return class.RetryAfter()
	}
	return time.Second << (2*max(attempt, 1) - 1)
}
