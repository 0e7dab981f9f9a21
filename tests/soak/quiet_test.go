//go:build soak

package soak

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// The categories of the features that keep a channel quiet, see settings.
const (
	keyedCategory   = "keyed"    // each key has a limit
	foldedCategory  = "repeated" // repeats of a key are folded into its message
	swingsCategory  = "swings"   // keys flap
	mutedCategory   = "muted"    // it is muted now and then
	keysAtOnce      = 5
	eventsOfAKey    = 40 // of a folded key
	changesOfSwing  = 8
	flapWindow      = 15 * time.Second
	muteLength      = 8 * time.Second
	firingAlertBody = `{"id":%q,"title":"it began","status":"firing","key":%q,"severity":"error"}`
	resolvedBody    = `{"id":%q,"title":"it is over","status":"resolved","key":%q}`
)

// keyed publishes an event of one of few keys.
func (p *publisher) keyed() {
	key := fmt.Sprint("k", p.r.intN(keysAtOnce))
	e := p.enter(entry{ID: p.newID(keyedCategory), Category: keyedCategory, Key: key, Fate: limited})
	p.publish(e, nil, fmt.Sprintf(`{"id":%q,"title":"something of a key","key":%q}`, e.ID, key))
}

// fold publishes a firing event of a key that has many of them.
func (p *publisher) fold() {
	p.folded++
	e := p.enter(entry{ID: p.newID(foldedCategory), Category: foldedCategory, Key: fmt.Sprint("fold-", p.folded/eventsOfAKey), Fate: counted})
	p.publish(e, nil, fmt.Sprintf(firingAlertBody, e.ID, e.Key))
}

// swing publishes an event of a key, and later its further changes.
func (p *publisher) swing() {
	key := p.newID("swing")
	change := func(n int) {
		fate, body := counted, firingAlertBody
		if n%2 == 1 {
			fate, body = ends, resolvedBody
		}
		e := p.enter(entry{ID: fmt.Sprint(key, "-", n), Category: swingsCategory, Key: key, Fate: fate})
		p.publish(e, nil, fmt.Sprintf(body, e.ID, key))
	}
	change(0)
	for n := 1; n < changesOfSwing; n++ {
		p.followUp(time.Duration(n)*time.Second, func() { change(n) })
	}
}

// mute is a time in which no event of mutedCategory may reach Slack.
type mute struct{ From, Upto time.Time }

// muter mutes a category now and then.
type muter struct {
	d *deployment
	r *random

	mu     sync.Mutex
	mutes  []mute
	failed []failedMute
}

// failedMute is a command that promised nothing.
type failedMute struct {
	mute

	Output string
}

func (m *muter) run(end <-chan struct{}) {
	for {
		select {
		case <-end:
			return
		case <-time.After(m.r.between(muteLength, 3*muteLength)):
		}
		began := time.Now()
		command := exec.Command(filepath.Join(m.d.folder, workerName(0)),
			"mute", mutedCategory, "--for", muteLength.String(), "--reason", "a soak", "--as", "soak")
		command.Env = append(environment(settings, m.d.workers[0].settings), m.d.recording()...)
		if output, err := command.CombinedOutput(); err != nil {
			say("  (no mute: %v: %.200s)", err, output)
			m.failed = append(m.failed, failedMute{mute{began, time.Now()}, fmt.Sprintf("%v: %.200s", err, output)})
			continue
		}
		m.mu.Lock()
		m.mutes = append(m.mutes, mute{time.Now(), began.Add(muteLength)})
		m.mu.Unlock()
	}
}

// recovers bounds the time after a fault in which a new client may fail.
const recovers = 5 * time.Second

// checkMutes wants no post of a muted event. A request that was on its way when the command returned may arrive a moment later, and a worker
// that is stopped right before its request sends the request when it goes on. A mute may fail only if it could not reach NATS or Redis.
func (v *verdict) checkMutes(m *muter) {
	var broken []string
	posts := 0
	for _, post := range v.accepted {
		if post.Origin("category") != mutedCategory {
			continue
		}
		posts++
		for _, during := range m.mutes {
			late := post.Received.Sub(during.From)
			if late > 2*slackTimeout && post.Received.Before(during.Upto) && !v.disturbed(post.Received.Add(-late), post.Received, onWorker, onRedis, toSlack, onMachine) {
				broken = append(broken, fmt.Sprintf("%s was posted at %v by %s, and its path was muted from %v to %v",
					nameOf(post), clock(post.Received), workerOf(post), clock(during.From), clock(during.Upto)))
			}
		}
	}
	for _, failed := range m.failed {
		if !v.disturbed(failed.From.Add(-recovers), failed.Upto, onNATS, onRedis, onMachine) {
			broken = append(broken, fmt.Sprintf("no mute from %v to %v: %s", clock(failed.From), clock(failed.Upto), failed.Output))
		}
	}
	v.add("muted is not posted", len(m.mutes), fmt.Sprintf("%d mutes, %d failed, %d posts beside them", len(m.mutes), len(m.failed), posts), broken)
}

// disturbed reports whether one of the targets had a fault in a time.
func (v *verdict) disturbed(from, upto time.Time, targets ...target) bool {
	return slices.ContainsFunc(v.incidents, func(i *incident) bool {
		return slices.Contains(targets, i.Target) && i.From.Before(upto) && from.Before(i.Upto.Add(shortly))
	})
}

// seenText is what a message says of the events that were folded into it.
var seenText = regexp.MustCompile(`seen (\d+) times`)

// seen returns the events that a message counts, itself among them.
func (v *verdict) seen(post slacktest.Post) int {
	for _, shown := range v.shown[post.ChannelID+" "+post.Timestamp].Texts() {
		if parts := seenText.FindStringSubmatch(shown.Text); parts != nil {
			events, _ := strconv.Atoi(parts[1])
			return events
		}
	}
	return 1
}

// alertsOf returns the events of each key of a category, in the order of their publishes.
func (v *verdict) alertsOf(category string) map[string][]*entry {
	byKey := make(map[string][]*entry)
	for _, e := range v.entries {
		if e.Category == category {
			byKey[e.Key] = append(byKey[e.Key], e)
		}
	}
	for _, events := range byKey {
		slices.SortFunc(events, func(a, b *entry) int { return a.Began.Compare(b.Began) })
	}
	return byKey
}

// distant is after every soak.
var distant = began.AddDate(1, 0, 0)

// recordedBy returns when Redis had recorded each of some events as delivered or folded. It is distant if a record is missing: the event was
// dropped or the record was lost, at any time.
func (v *verdict) recordedBy(events ...*entry) (last time.Time) {
	for _, e := range events {
		recorded := v.history.recorded[e.ID]
		if recorded.IsZero() {
			return distant
		}
		if recorded.After(last) {
			last = recorded
		}
	}
	return last
}

// checkFolds wants one message for each folded key, which counts all events of the key. Only if Redis loses its newest writes, a key may get a
// second message, and counts are uncertain: the policy `hold` decides nothing without Redis, and an event that lost its reply or its worker is
// recorded with its number.
func (v *verdict) checkFolds() {
	var broken []string
	all, counts, uncertain := 0, 0, 0
	byKey := v.alertsOf(foldedCategory)
	for key, events := range byKey {
		var posts []slacktest.Post
		sum := 0
		for _, e := range events {
			for _, post := range v.posts[e.ID] {
				posts = append(posts, post)
				sum += v.seen(post)
			}
		}
		all += len(events)
		counts += sum
		switch {
		case len(posts) == 0:
			broken = append(broken, fmt.Sprintf("%s has %d events and no message", key, len(events)))
		case v.mayLose(events[0].Began, v.recordedBy(events...)):
			uncertain++
		case len(posts) > 1:
			broken = append(broken, fmt.Sprintf("%s has %d messages: %s and %s", key, len(posts), nameOf(posts[0]), nameOf(posts[1])))
		case sum != len(events):
			broken = append(broken, fmt.Sprintf("%s has %d events, and its message of %v counts %d", key, len(events), clock(posts[0].Received), sum))
		}
	}
	v.add("folded is counted", len(byKey)-uncertain, fmt.Sprintf("%d events of %d keys, %d in messages; %d keys beside a loss of Redis", all, len(byKey), counts, uncertain), broken)
}

// swung is what became of a key that changed.
type swung struct {
	events  []*entry
	reports []slacktest.Post
}

// hasFlapped reports whether the key certainly flapped: each change was recorded before the next one was published. A change that waits, such as
// for the post of the change before, may be decided after the next one, and then it does not count.
func (v *verdict) hasFlapped(s swung) bool {
	first, last := s.events[0].Began, s.events[len(s.events)-1].Stored
	for n, e := range s.events {
		next := distant
		if n+1 < len(s.events) {
			next = s.events[n+1].Began
		}
		if !v.recordedBy(e).Before(next) {
			return false
		}
	}
	return len(s.events) == changesOfSwing && last.Sub(first) <= flapWindow && !v.mayLose(first, last.Add(2*flapWindow))
}

// mostReports bounds the reports of a key. The first one comes when the key has not changed for flapWindow. Each further report needs a change that
// was decided after the earlier report.
func (v *verdict) mostReports(s swung) int {
	steady, most := s.events[0].Began.Add(flapWindow-shortly), 1
	for _, e := range s.events {
		if v.recordedBy(e).After(steady) {
			most++
		}
	}
	return most
}

// checkFlaps wants one report for each key that flapped, and a second report only of a key that changed again. If Redis loses its newest writes,
// it may forget changes and a report.
func (v *verdict) checkFlaps() {
	reports := make(map[string][]slacktest.Post)
	for _, report := range v.reports {
		key := report.Origin("id")
		key = key[:max(0, strings.LastIndexByte(key, '-'))]
		reports[key] = append(reports[key], report)
	}
	var broken []string
	once, uncertain := 0, 0
	byKey := v.alertsOf(swingsCategory)
	for key, events := range byKey {
		s := swung{events, reports[key]}
		text := fmt.Sprintf("%s changed %d times from %v and has %d reports", key, len(events), clock(events[0].Began), len(s.reports))
		switch n := len(s.reports); {
		case n == 0 && v.hasFlapped(s):
			broken = append(broken, text)
		case n > v.mostReports(s) && !v.mayLose(events[0].Began, s.reports[n-1].Received):
			broken = append(broken, text)
		case n == 1:
			once++
		default:
			uncertain++
		}
	}
	v.add("flapping is reported once", once, fmt.Sprintf("%d keys, %d reported once, %d that cannot be evaluated", len(byKey), once, uncertain), broken)
}
