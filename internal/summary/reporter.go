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

	"github.com/seed-4578ace9/notifier/internal/await"
	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/oplog"
	"github.com/seed-4578ace9/notifier/internal/script"
	"github.com/seed-4578ace9/notifier/internal/testing/failpoint"
)

const (
	reportEvery = time.Second // interval of reports
	lookEvery   = time.Second // average interval of looking for due digests
	reportSize  = 40          // paths in one call, which blocks Redis

	// lease is how long an instance may hold a claimed digest. One attempt to post it ends within sendPatience.
	lease        = 2 * time.Minute
	sendPatience = lease - 10*time.Second

	maxFailures = 5  // failed posts of one digest, over all instances
	maxPosts    = 32 // concurrent posts

	// Pauses before the next attempt at a channel that takes no message now.
	shortestPause = time.Second
	longestPause  = time.Minute

	endAgain  = time.Second      // between attempts to record the end of a digest
	lookLease = 10 * time.Second // between look-ups of a digest in doubt
)

// StopPatience is how long [Reporter.Run] finishes posts and reports after its context has ended. One more call of the store may follow.
const StopPatience = 3 * time.Second

// The results of a digest for [Options].Observe.
const (
	Sent    = "sent"
	GivenUp = "given_up"
)

// Store holds the counts of all instances. [Redis] implements it.
type Store interface {
	CountDrops(ctx context.Context, report Report) error
	DueDigests(ctx context.Context) (channels []string, err error)
	ClaimDigest(ctx context.Context, channel, claim string, known LimitChanges) (Claimed, error)
	EndDigest(ctx context.Context, channel, claim string, end DigestEnd) error
}

// SendError is a failed post with a known result: a sink.Error. After any other error, the channel may have the digest.
type SendError interface {
	error
	NotPosted() bool     // the channel certainly does not have the digest
	Hopeless() bool      // a retry would fail as well
	Rest() time.Duration // how long the channel takes no messages; 0: it is not paused
}

// Options configures a reporter. If Interval is set, all functions must be set.
type Options struct {
	Store    Store
	Instance string        // unique name of this start of the worker, without white space
	Interval time.Duration // between digests of one channel; 0: no digests
	Logger   *slog.Logger

	// ChannelOf returns the channel for digests of a category. It is called for each drop.
	ChannelOf func(category string) string

	// Busy reports whether events wait for a channel. A digest waits for these events.
	Busy func(channel string) bool

	// Wait waits until a channel takes a message, and returns 0: the caller may post one message. If the channel takes none soon, Wait returns
	// the time until the caller asks again, to keep the place of its digest in line. If the context ends first, Wait returns its error.
	Wait func(ctx context.Context, channel string) (time.Duration, error)

	// Pause pauses a channel on all instances.
	Pause func(ctx context.Context, channel string, d time.Duration)

	// Send posts a digest. Its error may be a SendError. Its context ends before another instance considers the post in doubt.
	Send func(ctx context.Context, d Digest) error

	// Find reports whether a channel has the digest of a claim that was made at a time, and whether that can be known.
	Find func(ctx context.Context, channel, claim string, claimed time.Time) (posted, known bool, err error)

	// LimitOf returns the configured limit of a category at a level; "": there is none.
	LimitOf func(category, level string) string

	// Opens returns when the next slot of a category opens; zero: unknown to this instance.
	Opens func(category string) time.Time

	// Changes returns the changes of live limits up to now. It is called before each digest.
	Changes func(ctx context.Context) LimitChanges

	// Ended reports whether a mute is no longer in force.
	Ended func(mute *limits.Mute) bool

	// Now returns the time by the clock of NATS, which dates mutes. The clock of this host may be wrong.
	Now func() time.Time

	// Observe counts a digest with its result, Sent or GivenUp.
	Observe func(result string, d Digest)
}

// Reporter reports the counts of its counter to the Store, and posts due digests.
type Reporter struct {
	o       Options
	counter *Counter

	// These fields belong to the goroutine that reports counts.
	pending   []Report // taken from the counter, not yet confirmed by the Store, which may have the first report already
	announced bool     // the Store expects more drops of this instance
	number    int64    // of the last report

	posts      sync.WaitGroup
	unfinished unfinished

	mu       sync.Mutex
	channels map[string]*channel // with due digests

	counting, looking, finding *oplog.Condition
}

// channel is a channel with a due digest.
type channel struct {
	underWay bool      // a goroutine is posting
	again    time.Time // no attempt before
	claim    string    // name of a claim without an answer, which may have succeeded
}

// NewReporter returns a reporter. It does no work before Run.
func NewReporter(o Options) *Reporter {
	preparing := func() *oplog.Condition {
		return oplog.NewCondition(o.Logger, "cannot prepare digests: keeping the counts of drops", "preparing digests again")
	}
	r := &Reporter{
		o: o, channels: make(map[string]*channel), counting: preparing(), looking: preparing(),
		finding: oplog.NewCondition(o.Logger, "cannot look for a digest that may have been posted", "looked for a digest that may have been posted"),
	}
	if o.Interval > 0 {
		r.counter = newCounter(o.ChannelOf)
	}
	return r
}

// Counter counts drops for the reporter. Without digests, it returns a nil Counter, which may be used.
func (r *Reporter) Counter() *Counter { return r.counter }

// Run reports and posts until the context ends, after the last drop, and then reports the remaining counts. Without digests, it returns at once.
func (r *Reporter) Run(ctx context.Context) {
	if r.counter == nil {
		return
	}
	var loops sync.WaitGroup
	loops.Go(func() { r.reportCounts(ctx) })
	loops.Go(func() { r.deliver(ctx) })
	loops.Wait()
}

// reportCounts reports the counts each second, and a first drop at once: then the Store expects more even if the worker is killed soon after.
func (r *Reporter) reportCounts(ctx context.Context) {
	ticks := time.Tick(reportEvery)
	for {
		select {
		case <-ctx.Done():
			r.reportLast(context.WithoutCancel(ctx))
			return
		case <-r.counter.wake:
		case <-ticks:
		}
		r.reportOnce(ctx)
	}
}

// reportOnce reports all counts. If there are none, it makes the final report that the Store expects.
func (r *Reporter) reportOnce(ctx context.Context) (sent bool) {
	if !r.sendPending(ctx) {
		return false
	}
	drops, round := r.counter.take()
	for i := range drops {
		for _, group := range drops[i].Groups {
			for j := range group.Paths {
				group.Paths[j].Opens = r.o.Opens(group.Paths[j].Path)
			}
		}
		for _, part := range inParts(drops[i], reportSize) {
			r.pending = append(r.pending, r.newReport(part, round))
		}
	}
	if len(drops) == 0 && r.announced {
		r.pending = append(r.pending, r.newReport(Counts{}, 0))
	}
	return r.sendPending(ctx)
}

// newReport numbers a report. A report with drops announces more.
func (r *Reporter) newReport(drops Counts, round int64) Report {
	r.number = max(r.number+1, time.Now().UnixMicro())
	return Report{Instance: r.o.Instance, Number: r.number, Round: round, Dropping: drops.Channel != "", Counts: drops}
}

// sendPending sends the pending reports. It repeats a report without an answer unchanged.
func (r *Reporter) sendPending(ctx context.Context) bool {
	for len(r.pending) > 0 {
		err := r.o.Store.CountDrops(ctx, r.pending[0])
		if ctx.Err() == nil {
			r.counting.Note(err)
		}
		if err != nil {
			return false
		}
		r.announced = r.pending[0].Dropping
		r.pending = r.pending[1:]
	}
	r.pending = nil
	return true
}

func (r *Reporter) reportLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, StopPatience)
	defer cancel()
	sent := r.reportOnce(ctx)
	if sent {
		sent = r.reportOnce(ctx) // the final report
	}
	if sent {
		return
	}
	var lost int64
	left, _ := r.counter.take()
	for _, drops := range left {
		lost += drops.Total()
	}
	for _, report := range r.pending {
		lost += report.Total()
	}
	if lost > 0 {
		r.o.Logger.Warn("lost drops of this instance: digests will lack them", "drops", lost)
	}
}

// deliver posts due digests. At the end, it gives the running posts StopPatience.
func (r *Reporter) deliver(ctx context.Context) {
	posting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for await.For(ctx, lookEvery*3/4+mathrand.N(lookEvery/2)) { //nolint:gosec // no secret depends on it
		r.look(ctx, posting)
	}
	r.unfinished.stop()
	end := time.AfterFunc(StopPatience, cancel)
	defer end.Stop()
	r.posts.Wait()
	r.unfinished.log(r.o.Logger)
}

// look starts an attempt for each due channel without waiting events.
func (r *Reporter) look(ctx, posting context.Context) {
	due, err := r.o.Store.DueDigests(ctx)
	if ctx.Err() == nil {
		r.looking.Note(err)
	}
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
			due = append(due, name) // this instance may hold its claim
		}
	}
	for _, name := range due {
		post, mute := splitName(name)
		if mute != nil && !r.o.Ended(mute) {
			continue
		}
		c := r.channels[name]
		if c == nil {
			c = &channel{}
			if mute != nil { // all instances report what they counted until the end
				c.again = time.Now().Add(believed)
			}
			r.channels[name] = c
		}
		if c.underWay || time.Now().Before(c.again) || underWay >= maxPosts || r.o.Busy(post) {
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

// attempt posts a channel's digest if the channel takes a message now. It returns the time until the next attempt. The claim comes
// right before the post, so that the digest has all counts and a busy channel causes no failure.
func (r *Reporter) attempt(ctx, posting context.Context, name string, c *channel) (again time.Duration) {
	post, _ := splitName(name)
	if wait, err := r.o.Wait(ctx, post); wait > 0 || err != nil {
		return min(wait, longestPause)
	}
	if ctx.Err() != nil {
		return 0
	}
	deadline := time.Now().Add(sendPatience)
	known := r.o.Changes(ctx)
	claimed, err := r.claim(ctx, name, c, known)
	if err != nil {
		if !r.unfinished.add(name, 0, err) {
			r.o.Logger.Warn("cannot claim a digest", "channel", name, "error", err)
		}
		return longestPause / 10
	}
	switch {
	case claimed.InDoubt:
		r.find(posting, *claimed.Digest, time.Now().Add(-claimed.Age), deadline)
	case claimed.Digest != nil:
		r.post(posting, r.complete(*claimed.Digest, known), deadline)
	}
	return 0
}

// claim claims a digest. A claim without an answer may have succeeded, so the next attempt repeats it under the same name.
func (r *Reporter) claim(ctx context.Context, name string, c *channel, known LimitChanges) (Claimed, error) {
	c.claim = cmp.Or(c.claim, rand.Text())
	claimed, err := r.o.Store.ClaimDigest(context.WithoutCancel(ctx), name, c.claim, known)
	if err == nil || errors.Is(err, script.ErrRefused) {
		c.claim = ""
	}
	return claimed, err
}

// find looks for a digest in doubt. If the channel has the digest, it has ended; otherwise its counts are claimed again. If nobody can
// know, the counts carry over to the next digest. No later digest has the counts of a mute, so the digest of a mute is posted again. After
// a failure, find is called again.
func (r *Reporter) find(ctx context.Context, d Digest, since, deadline time.Time) {
	looking, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	posted, known, err := r.o.Find(looking, d.Channel, d.Claim, since)
	if ctx.Err() == nil {
		r.finding.Note(err, "channel", d.Channel, "dropped", d.Dropped)
	}
	switch {
	case err != nil:
	case !known && d.Mute != nil && d.Failures+1 < maxFailures:
		r.o.Logger.Warn("digest of a mute may not have been posted; it is posted again", "channel", d.Channel, "dropped", d.Dropped)
		r.end(ctx, d, DigestEnd{State: DigestFailed, Failure: true}, deadline)
	case !known && d.Mute != nil:
		r.giveUp(ctx, d, r.o.Logger.With("channel", d.Channel, "dropped", d.Dropped), deadline)
	case !known:
		r.o.Logger.Warn("digest may not have been posted; its counts carry over", "channel", d.Channel, "dropped", d.Dropped)
		r.end(ctx, d, DigestEnd{State: DigestCarried}, deadline)
	case posted:
		r.o.Observe(Sent, d)
		r.end(ctx, d, DigestEnd{State: DigestDone}, deadline)
	default:
		r.end(ctx, d, DigestEnd{State: DigestFailed}, deadline)
	}
}

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
			logger.Warn("a digest may have been posted: looking for it")
		}
		end.State = DigestDoubt
	case failure.Rest() > 0:
		r.o.Pause(sending, d.Channel, failure.Rest())
		end.Again = max(failure.Rest(), shortestPause)
	case ctx.Err() != nil && !failure.Hopeless(): // this instance stops
		end.Again = shortestPause
	case failure.Hopeless() || failures >= maxFailures:
		r.giveUp(ctx, d, logger, deadline)
		return
	default:
		end.Again, end.Failure = time.Second<<(2*failures-1), true // after 2, 8, 32 and 128 seconds
		if !r.unfinished.add(d.Channel, d.Dropped, err) {
			logger.Warn("cannot post a digest yet", "attempt", failures, "again_in", end.Again)
		}
	}
	r.end(ctx, d, end, deadline)
}

// giveUp ends a digest that was perhaps never posted.
func (r *Reporter) giveUp(ctx context.Context, d Digest, logger *slog.Logger, deadline time.Time) {
	logger.Error("gave up a digest", "attempts", d.Failures+1)
	r.o.Observe(GivenUp, d)
	r.end(ctx, d, DigestEnd{State: DigestDone}, deadline)
}

// end records the result of a digest. It retries until the deadline, since otherwise the next digest reports the counts again.
func (r *Reporter) end(ctx context.Context, d Digest, end DigestEnd, deadline time.Time) {
	for {
		err := r.o.Store.EndDigest(context.WithoutCancel(ctx), d.name(), d.Claim, end)
		if err == nil {
			return
		}
		if time.Now().After(deadline) || !await.For(ctx, endAgain) {
			if !r.unfinished.add(d.Channel, d.Dropped, err) {
				r.o.Logger.Warn("cannot record the end of a digest", "channel", d.Channel, "error", err)
			}
			return
		}
	}
}
