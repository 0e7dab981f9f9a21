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

	"github.com/seed-4578ace9/notifier/internal/failpoint"
	"github.com/seed-4578ace9/notifier/internal/script"
)

const (
	reportEvery = time.Second // what was counted is told
	lookEvery   = time.Second // about; it is asked what is due
	reportSize  = 40          // paths in one call, in which Redis does nothing else

	// lease is how long the instance that has claimed a digest may take for one attempt, which ends within sendPatience.
	lease        = 2 * time.Minute
	sendPatience = lease - 10*time.Second

	maxFailures = 5  // posts of one digest that fail, over all instances
	maxPosts    = 32 // under way at one time

	// A channel that takes no message now is looked at again after a while.
	shortestPause = time.Second
	longestPause  = time.Minute

	endAgain = time.Second // between tries to record what became of a digest
)

// StopPatience is how long [Reporter.Run] goes on when its context has ended, for posts that are under way and what was not
// told yet. What it then still has to record may take one call of the store more.
const StopPatience = 3 * time.Second

// The ends that a digest may have, see [Options].
const (
	Sent    = "sent"
	GivenUp = "given_up"
)

// Store is where all instances count together: [Redis].
type Store interface {
	CountDrops(ctx context.Context, report Report) error
	DueDigests(ctx context.Context) (channels []string, err error)
	ClaimDigest(ctx context.Context, channel, claim string, known LimitChanges) (digest *Digest, inDoubt int64, err error)
	EndDigest(ctx context.Context, channel, claim string, end DigestEnd) error
}

// SendError is a post of which it is known what became of it: sink.Error. Any other error leaves in doubt whether the channel has
// the digest.
type SendError interface {
	error
	NotPosted() bool     // the channel certainly does not have the digest
	Hopeless() bool      // another try would fail as well
	Rest() time.Duration // for which the channel takes no messages; 0: that is not why
}

// Options are what a reporter needs. All functions have to be there, unless there are no digests.
type Options struct {
	Store    Store
	Instance string        // a name that no other start of a worker has, without white space
	Interval time.Duration // between digests of one channel; 0: there are none
	Logger   *slog.Logger

	// ChannelOf names the channel that is told of a category. It is called for each drop.
	ChannelOf func(category string) string

	// Busy tells whether events wait for a channel. A digest waits for them.
	Busy func(channel string) bool

	// Wait waits until a channel takes a message, which then is the caller's to post. If that lies further away than maxWait, Wait
	// returns how far; else 0, and the context's error if that ends first.
	Wait func(ctx context.Context, channel string, maxWait time.Duration) (time.Duration, error)

	// Pause lets a channel rest, on all instances.
	Pause func(ctx context.Context, channel string, d time.Duration)

	// Send posts a digest; an error may be a SendError. Its context ends before anybody takes the post for one in doubt.
	Send func(ctx context.Context, d Digest) error

	// LimitOf is what a level allows a category, as configured; "" if it has no limit there.
	LimitOf func(category, level string) string

	// Opens tells when the next slot of a category opens, as far as this instance knows.
	Opens func(category string) time.Time

	// Changes returns the changes of live limits up to now. It is called before each digest.
	Changes func(ctx context.Context) LimitChanges

	// Observe is told how a digest ended: Sent or GivenUp.
	Observe func(result string, d Digest)
}

// Reporter tells what its counter has counted, and posts digests that are due.
type Reporter struct {
	o       Options
	counter *Counter

	// These belong to the goroutine that tells what was counted.
	untold    []Report // taken from the counter; the first may have been counted without an answer
	announced bool     // the store believes that this instance goes on to drop
	number    int64    // of the last report

	posts      sync.WaitGroup
	unfinished unfinished

	mu       sync.Mutex
	channels map[string]*channel // that are due

	telling, looking outage // each is of one goroutine
}

// channel is a channel to which a digest is due.
type channel struct {
	underWay bool      // a goroutine is at it
	again    time.Time // when it is looked at again
	claim    string    // a name under which its digest may have been claimed, without an answer
}

// outage is that the log says of something that it does not work.
type outage bool

// NewReporter makes a reporter. Nothing happens before Run.
func NewReporter(o Options) *Reporter {
	r := &Reporter{o: o, channels: make(map[string]*channel)}
	if o.Interval > 0 {
		r.counter = newCounter(o.ChannelOf)
	}
	return r
}

// Counter is what drops are to be told to. It is nil, and may be used as well, if there are no digests.
func (r *Reporter) Counter() *Counter { return r.counter }

// Run works until the context ends; it is to end behind the last drop. What was counted by then is told at the end. Without
// digests Run returns at once.
func (r *Reporter) Run(ctx context.Context) {
	if r.counter == nil {
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { r.tell(ctx) })
	loops.Go(func() { r.deliver(ctx) })
	loops.Wait()
}

// tell tells what was counted: each second, and at once what comes after a rest, so that a worker that is killed early is
// known to have been dropping.
func (r *Reporter) tell(ctx context.Context) {
	ticks := time.Tick(reportEvery)
	for {
		select {
		case <-ctx.Done():
			r.tellLast(context.WithoutCancel(ctx))
			return
		case <-r.counter.wake:
		case <-ticks:
		}
		r.tellOnce(ctx)
	}
}

// tellOnce tells all that was counted or, when there is nothing more, that this instance has told all.
func (r *Reporter) tellOnce(ctx context.Context) (told bool) {
	if !r.tellUntold(ctx) {
		return false
	}
	drops, round := r.counter.take()
	for i := range drops {
		r.addOpens(&drops[i])
		for _, part := range inParts(drops[i], reportSize) {
			r.untold = append(r.untold, r.newReport(part, round))
		}
	}
	if len(drops) == 0 && r.announced {
		r.untold = append(r.untold, r.newReport(Counts{}, 0))
	}
	return r.tellUntold(ctx)
}

func (r *Reporter) addOpens(drops *Counts) {
	for _, group := range drops.Groups {
		for i := range group.Paths {
			group.Paths[i].Opens = r.o.Opens(group.Paths[i].Path)
		}
	}
}

// newReport numbers a report. One of drops announces that there will be more.
func (r *Reporter) newReport(drops Counts, round int64) Report {
	r.number = max(r.number+1, time.Now().UnixMicro())
	return Report{Instance: r.o.Instance, Number: r.number, Round: round, Dropping: drops.Channel != "", Counts: drops}
}

// tellUntold makes the reports that wait. One without an answer is made again as it is.
func (r *Reporter) tellUntold(ctx context.Context) bool {
	for len(r.untold) > 0 {
		err := r.o.Store.CountDrops(ctx, r.untold[0])
		r.telling.note(ctx, r.o.Logger, "counting drops", err)
		if err != nil {
			return false
		}
		r.announced = r.untold[0].Dropping
		r.untold = r.untold[1:]
	}
	r.untold = nil
	return true
}

// tellLast tells what is left when the worker stops.
func (r *Reporter) tellLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, StopPatience)
	defer cancel()
	told := r.tellOnce(ctx)
	if told {
		told = r.tellOnce(ctx) // that this was all
	}
	if told {
		return
	}
	var lost int64
	left, _ := r.counter.take()
	for _, drops := range left {
		lost += drops.Total()
	}
	for _, report := range r.untold {
		lost += report.Total()
	}
	if lost > 0 {
		r.o.Logger.Warn("digests will lack drops of this instance", "drops", lost)
	}
}

// note says once that something does not work, and once that it does again.
func (o *outage) note(ctx context.Context, logger *slog.Logger, what string, err error) {
	switch logger = logger.With("tried", what); {
	case ctx.Err() != nil:
		return
	case err != nil && !bool(*o):
		logger.Warn("digests wait, what is dropped is kept meanwhile", "error", err)
	case err == nil && bool(*o):
		logger.Info("digests go on")
	}
	*o = err != nil
}

// deliver posts what is due. At the end it gives the posts under way a moment.
func (r *Reporter) deliver(ctx context.Context) {
	posting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for rest(ctx, lookEvery*3/4+mathrand.N(lookEvery/2)) { //nolint:gosec // no secret depends on it
		r.look(ctx, posting)
	}
	r.unfinished.stop()
	end := time.AfterFunc(StopPatience, cancel)
	defer end.Stop()
	r.posts.Wait()
	r.unfinished.tell(r.o.Logger)
}

// rest waits, and tells whether the context goes on.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// look goes to the channels that are due, and have no event that waits.
func (r *Reporter) look(ctx, posting context.Context) {
	due, err := r.o.Store.DueDigests(ctx)
	r.looking.note(ctx, r.o.Logger, "looking for digests", err)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	underWay := 0
	for name, c := range r.channels {
		switch {
		case c.underWay:
			underWay++
		case slices.Contains(due, name):
		case c.claim == "":
			delete(r.channels, name)
		default:
			due = append(due, name) // this instance may have claimed its digest
		}
	}
	for _, name := range due {
		c := cmp.Or(r.channels[name], &channel{})
		r.channels[name] = c
		if c.underWay || time.Now().Before(c.again) || underWay >= maxPosts || r.o.Busy(name) {
			continue
		}
		c.underWay = true
		underWay++
		r.posts.Go(func() {
			again := r.attempt(ctx, posting, name, c)
			r.mu.Lock()
			defer r.mu.Unlock()
			c.underWay, c.again = false, time.Now().Add(again)
		})
	}
}

// attempt posts a channel's digest if the channel takes a message at once; else it returns when that is worth another look.
// What goes out is claimed no sooner, so that it has all that was counted, and a channel that is not free has failed nothing.
func (r *Reporter) attempt(ctx, posting context.Context, name string, c *channel) (again time.Duration) {
	if wait, err := r.o.Wait(ctx, name, 0); wait > 0 || err != nil {
		return min(max(wait, shortestPause), longestPause)
	}
	if ctx.Err() != nil {
		return 0
	}
	deadline := time.Now().Add(sendPatience)
	known := r.o.Changes(ctx)
	digest, err := r.claim(ctx, name, c, known)
	if err != nil {
		if !r.unfinished.add(name, 0, err) {
			r.o.Logger.Warn("digest is not claimed", "channel", name, "error", err)
		}
		return longestPause / 10
	}
	if digest != nil {
		r.post(posting, r.complete(*digest, known), deadline)
	}
	return 0
}

// claim claims a digest. A claim without an answer may have been made: it is repeated under its name, by the next attempt.
func (r *Reporter) claim(ctx context.Context, name string, c *channel, known LimitChanges) (*Digest, error) {
	c.claim = cmp.Or(c.claim, rand.Text())
	digest, inDoubt, err := r.o.Store.ClaimDigest(context.WithoutCancel(ctx), name, c.claim, known)
	if err == nil || errors.Is(err, script.ErrRefused) {
		c.claim = ""
	}
	if inDoubt > 0 {
		r.o.Logger.Warn(maybePosted, "channel", name, "dropped", inDoubt, "error", errClaimantGone)
	}
	return digest, err
}

// maybePosted is in the log where a digest is in doubt.
const maybePosted = "digest may not have been posted, its counts go into the next one"

var errClaimantGone = errors.New("the instance that was posting it did not say what became of it")

// post makes one attempt at a claimed digest, and records what became of it.
func (r *Reporter) post(ctx context.Context, d Digest, deadline time.Time) {
	sending, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	failpoint.Reach(failpoint.AfterClaim)
	err := r.o.Send(sending, d)
	if err == nil {
		failpoint.Reach(failpoint.AfterSummary)
		r.o.Observe(Sent, d)
		r.end(ctx, d, DigestEnd{State: DigestDone}, deadline)
		return
	}
	logger := r.o.Logger.With("channel", d.Channel, "dropped", d.Dropped, "error", err)
	failure, known := errors.AsType[SendError](err)
	failures := d.Failures + 1
	end := DigestEnd{State: DigestFailed}
	switch {
	case !known || !failure.NotPosted():
		if !r.unfinished.add(d.Channel, d.Dropped, err) {
			logger.Warn(maybePosted)
		}
		end.State = DigestDoubt
	case failure.Rest() > 0:
		r.o.Pause(sending, d.Channel, failure.Rest())
		end.Again = max(failure.Rest(), shortestPause)
	case ctx.Err() != nil && !failure.Hopeless(): // this instance stops
		end.Again = shortestPause
	case failure.Hopeless() || failures >= maxFailures:
		logger.Error("digest is given up", "attempts", failures)
		r.o.Observe(GivenUp, d)
		end.State = DigestDone
	default:
		end.Again, end.Failure = time.Second<<(2*failures-1), true // after 2, 8, 32 and 128 seconds
		if !r.unfinished.add(d.Channel, d.Dropped, err) {
			logger.Warn("digest is not posted yet", "attempt", failures, "again_in", end.Again)
		}
	}
	r.end(ctx, d, end, deadline)
}

// end records what became of a digest. It insists, since otherwise its counts are told again.
func (r *Reporter) end(ctx context.Context, d Digest, end DigestEnd, deadline time.Time) {
	for {
		err := r.o.Store.EndDigest(context.WithoutCancel(ctx), d.Channel, d.Claim, end)
		if err == nil {
			return
		}
		if time.Now().After(deadline) || !rest(ctx, endAgain) {
			if !r.unfinished.add(d.Channel, d.Dropped, err) {
				r.o.Logger.Warn("end of a digest is not recorded", "channel", d.Channel, "error", err)
			}
			return
		}
	}
}
