//go:build soak

package soak

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

var (
	duration = flag.Duration("soak.duration", 10*time.Minute, "how long events are published and faults happen")
	seedFlag = flag.String("soak.seed", "", "a number that draws events and faults; drawn itself if it is empty")
	attacked = flag.Bool("soak.hostile", true, "whether the hostile producer attacks")
)

const (
	// drainPatience bounds how long everything may take to be settled once the faults have stopped.
	drainPatience = 4 * time.Minute
	progressEvery = 10 * time.Second
)

// random is a source of random numbers for several goroutines. Each purpose has its own source, so the draws of one do not change those of
// another.
type random struct {
	mu     sync.Mutex
	source *rand.Rand
}

func newRandom(seed, purpose uint64) *random {
	return &random{source: rand.New(rand.NewPCG(seed, purpose))}
}

func (r *random) intN(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source.IntN(n)
}

// between draws a duration from..to.
func (r *random) between(from, to time.Duration) time.Duration {
	return from + time.Duration(r.intN(int((to-from)/time.Millisecond)+1))*time.Millisecond
}

func (r *random) chance(percent int) bool { return r.intN(100) < percent }

var began = time.Now()

// say prints one line at once.
func say(format string, arguments ...any) {
	fmt.Printf("%8.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, arguments...))
}

func TestSoak(t *testing.T) {
	seed := rand.Uint64N(1_000_000)
	if *seedFlag != "" {
		if _, err := fmt.Sscan(*seedFlag, &seed); err != nil {
			t.Fatalf("read the seed %q: %v", *seedFlag, err)
		}
	}
	folder, err := os.MkdirTemp("", "notifier-soak-") //nolint:usetesting // it outlives a soak that fails
	testkit.NoError(t, err)
	d := deploy(t, folder, seed)
	say("seed %d, %v of faults, notes in %s; the hostile producer shares the workers' account: %v", seed, *duration, folder, d.shared)
	d.command("limits", "set", liveCategory, liveLimit, "--as", liveAuthor)
	p := &publisher{d: d, seed: seed, entries: make(map[string]*entry)}
	f := &faults{d: d, r: newRandom(seed, 3)}
	producer := &hostile.Producer{JetStream: d.connect("hostile"), Subject: hostileSubject, Patience: attackPatience}
	i := &intruder{producer: producer, p: p, r: newRandom(seed, 4)}
	w := &watcher{p: p}
	m := &muter{d: d, r: newRandom(seed, 6)}
	publishing := make(chan struct{})
	var producers sync.WaitGroup
	actors := []func(<-chan struct{}){p.run, w.run, m.run}
	if *attacked {
		actors = append(actors, i.run)
	}
	for _, run := range actors {
		producers.Go(func() { run(publishing) })
	}
	watched := make(chan struct{})
	go d.watch(p, f, watched)

	f.run(*duration)
	say("the faults have stopped")
	measured := &measurement{w: w, rest: i.rest, awaitCalm: d.awaitCalm, observe: d.stalls.observe}
	measured.run(min(max(*duration/phaseShare, phaseLeast), phaseMost))
	close(publishing)
	producers.Wait()
	drained := d.drain()
	close(watched)
	live := d.command("limits")
	for _, worker := range d.workers {
		d.stopWorker(worker)
	}
	// Requests that hang at Slack have ended with the workers.
	v := newVerdict(d, p, f, i, drained)
	v.measured = measured
	v.check()
	v.checkMutes(m)
	v.checkForged(live)
	v.checkCalls()
	v.print()
	if v.failed() {
		v.keep()
		t.Errorf("seed %d: promises were not kept; ledgers and logs are in %s", seed, folder)
		return
	}
	_ = os.RemoveAll(folder)
}

// watch prints a line of progress from time to time.
func (d *deployment) watch(p *publisher, f *faults, ended <-chan struct{}) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		published, ids := p.progress()
		l, err := d.leftInJetStream() // NATS may be down
		say("published %d (%d IDs)  accepted by Slack %d  requests to post %d  faults %d  left: %v (error %v)",
			published, ids, len(d.slack.Accepted()), d.slack.Calls(slacktest.MethodPost), f.count(), l, err)
	}
}
