//go:build soak

package soak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// phase is a time of measuring latency.
type phase string

const (
	faulty    phase = "" // from the start until the faults have stopped, and between the others
	alone     phase = "alone"
	disturbed phase = "disturbed"
	discarded phase = "discarded" // the machine was busy
)

// Pauses between watched events. Their rate stays within their guarantee, so all of them are posted.
const (
	watchedSeldom = time.Second
	watchedOften  = 110 * time.Millisecond
)

const (
	watchedCategory = "watched"
	watchedID       = watchedCategory + "-%d"
)

// newWatchedID counts the events of the watcher apart from those of the publisher: the IDs of the publisher do not depend on the time.
func (p *publisher) newWatchedID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ofWatcher++
	return fmt.Sprintf(watchedID, p.ofWatcher)
}

// watcher publishes the events whose latency is measured.
type watcher struct {
	p         *publisher
	mu        sync.Mutex
	phase     phase
	published sync.WaitGroup
}

func (w *watcher) enter(in phase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = in
}

func (w *watcher) run(end <-chan struct{}) {
	defer w.published.Wait()
	for {
		w.mu.Lock()
		in := w.phase
		w.mu.Unlock()
		pause := watchedSeldom
		if in != faulty {
			pause = watchedOften
		}
		select {
		case <-end:
			return
		case <-time.After(pause):
		}
		// A late answer to a publish delays no other publish.
		id := w.p.newWatchedID()
		w.published.Go(func() {
			w.p.publishEvent(entry{ID: id, Category: watchedCategory, Fate: certain, Phase: in}, "something of the watcher")
		})
	}
}

const (
	phaseLeast    = 12 * time.Second
	phaseMost     = time.Minute
	phaseShare    = 20 // of the time of faults
	phaseTries    = 3
	mostLeftThere = 20 // messages in the producers' stream without a backlog
)

// measurement measures latency in phases of one length, with the intruder and without it.
type measurement struct {
	w         *watcher
	rest      func(resting bool) // pauses or resumes the intruder
	awaitCalm func() bool        // reports whether the backlog ended
	observe   func() func() busy // begins to observe the machine, and returns what ends that

	busy    busy     // the worst of the phases that count
	missing []string // phases that were not measured
}

func (m *measurement) run(lasts time.Duration) {
	for _, in := range []phase{alone, disturbed, disturbed, alone} {
		m.measure(in, lasts)
	}
	m.rest(false)
}

// measure measures a phase. If the machine is busy with something else, the phase shows the machine: it is measured again, and the last try
// counts.
func (m *measurement) measure(in phase, lasts time.Duration) {
	for try := 1; ; try++ {
		m.rest(true)
		if !m.awaitCalm() { // the latency would be that of the backlog
			m.missing = append(m.missing, fmt.Sprintf("no phase %s was measured: there was a backlog for %v", in, drainPatience))
			return
		}
		m.rest(in == alone)
		say("measuring the latency of other categories, %s", in)
		from, observed := time.Now(), m.observe()
		m.w.enter(in)
		time.Sleep(lasts) // the length of a phase
		m.w.enter(faulty)
		found := observed()
		if !found.matters() || try == phaseTries {
			m.busy = m.busy.worst(found)
			return
		}
		say("%v: the phase does not count", found)
		m.w.p.discard(in, from)
	}
}

// discard takes the events of a phase that began at a time out of the measurement.
func (p *publisher) discard(in phase, from time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		if e.Phase == in && (e.Began.IsZero() || !e.Began.Before(from)) {
			e.Phase = discarded
		}
	}
}

// awaitCalm waits until there is no backlog, for drainPatience at most, and reports whether there is none.
func (d *deployment) awaitCalm() bool {
	deadline := time.Now().Add(drainPatience)
	for calm := 0; calm < 5; {
		if time.Now().After(deadline) {
			return false
		}
		l, err := d.leftInJetStream()
		if err == nil && l.messages <= mostLeftThere && l.queued == 0 {
			calm++
		} else {
			calm = 0
		}
		time.Sleep(200 * time.Millisecond) // the time between two checks
	}
	return true
}

const (
	mostSlower = 2.0
	// noise is a latency that a busy machine explains.
	noise = 250 * time.Millisecond
)

// way is the latency of one watched event from publish to post.
type way struct {
	took time.Duration
	e    *entry
}

// ways returns the latencies of a phase, the shortest first.
func (v *verdict) ways(in phase) []way {
	var ways []way
	for id, e := range v.entries {
		if posts := v.posts[id]; e.Category == watchedCategory && e.Phase == in && len(posts) > 0 {
			ways = append(ways, way{posts[0].Received.Sub(e.Began), e})
		}
	}
	slices.SortFunc(ways, func(a, b way) int { return cmp.Compare(a.took, b.took) })
	return ways
}

func quantile(sorted []way, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].took
}

// checkNeighbours looks for harm by the hostile producer: lost or repeated events of others, forged posts, and higher latency.
func (v *verdict) checkNeighbours() {
	var broken []string
	for _, p := range v.promises {
		for _, fault := range p.Broken {
			if !strings.Contains(fault, hostileCategory+".") && (p.Name == lossPromise || p.Name == oncePromise) {
				broken = append(broken, fault)
			}
		}
	}
	for id, posts := range v.posts {
		for _, post := range posts {
			if fault := v.forged(id, post); fault != "" {
				broken = append(broken, fault)
			}
		}
	}
	if under := v.ways(faulty); len(under) > 0 {
		say("the neighbours' way under faults: p50 %v, p99 %v of %d ways", quantile(under, 0.5).Round(time.Millisecond),
			quantile(under, 0.99).Round(time.Millisecond), len(under))
	}
	broken = append(broken, v.measured.missing...)
	alone, disturbed := v.ways(alone), v.ways(disturbed)
	if len(alone) == 0 || len(disturbed) == 0 {
		v.add("neighbours unharmed", 0, "nothing", append(broken, "no way was measured"))
		return
	}
	isJudged := v.measured.busy.others <= mostOthers // a stall without others is the attack's own
	seen := fmt.Sprintf("%v, latency is judged: %v; %s", v.measured.busy, isJudged, v.intruder)
	for _, q := range []float64{0.5, 0.99} {
		without, with := quantile(alone, q), quantile(disturbed, q)
		ratio := float64(with) / float64(without)
		text := fmt.Sprintf("p%.0f of %d and %d ways %v alone, %v disturbed, ratio %.2f", 100*q, len(alone), len(disturbed),
			without.Round(100*time.Microsecond), with.Round(100*time.Microsecond), ratio)
		if ratio > mostSlower && with > noise && isJudged {
			broken = append(broken, text)
		}
		seen = text + "; " + seen
	}
	for _, slow := range disturbed[max(0, len(disturbed)-4):] {
		say("%s took %v (stored after %v): %s", slow.e.ID, slow.took.Round(time.Millisecond), slow.e.Stored.Sub(slow.e.Began).Round(time.Millisecond),
			v.intruder.during(slow.e.Began))
	}
	v.add("neighbours unharmed", len(disturbed), seen, broken)
}
