//go:build soak

package soak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// Promises that checkNeighbours reads.
const (
	lossPromise = "nothing lost"
	oncePromise = "posted once"
)

// promise is one row of the table.
type promise struct {
	Name   string
	Count  int      // of what was checked
	Seen   string   // what was checked
	Broken []string // violations
}

// longSoak is how long a soak lasts that has something to check for every promise.
const longSoak = 8 * time.Minute

// verdict compares the ledgers with each other.
type verdict struct {
	d         *deployment
	lasted    time.Duration // how long faults happened
	incidents []*incident
	left      left
	intruder  *intruder
	measured  *measurement

	entries  map[string]*entry
	accepted []slacktest.Post
	posts    map[string][]slacktest.Post  // accepted, by event
	digests  []slacktest.Post             // accepted
	reports  []slacktest.Post             // accepted: that a key is steady
	updates  map[string]int               // of messages, by channel and ts
	shown    map[string]slacktest.Message // what a message shows since its newest update, by channel and ts
	dead     map[string]int               // dead letters by event

	hostileDead map[string]int // those of the hostile producer
	forgedDead  map[string]int // those that are acknowledgements of the server, by subject
	unmarked    []string       // dead letters that no worker wrote
	history     *redisHistory
	outcomes    map[string]outcomes // in the journal of the workers, by event

	promises []promise
}

func newVerdict(d *deployment, p *publisher, f *faults, i *intruder, drained left) *verdict {
	v := &verdict{
		d: d, lasted: *duration, incidents: slices.Concat(f.incidents, d.stalls.incidents()), left: drained, intruder: i, entries: p.entries, accepted: d.slack.Accepted(),
		posts:   make(map[string][]slacktest.Post),
		updates: make(map[string]int), shown: make(map[string]slacktest.Message), dead: make(map[string]int), hostileDead: make(map[string]int),
		forgedDead: make(map[string]int),
	}
	for _, post := range v.accepted {
		_, _, isDigest := digestOf(post)
		switch {
		case isDigest:
			v.digests = append(v.digests, post)
		case strings.Contains(post.Text, "steady since "):
			v.reports = append(v.reports, post)
		default:
			v.posts[idOf(post)] = append(v.posts[idOf(post)], post)
		}
	}
	for _, update := range d.slack.Updates() {
		message := update.Channel + " " + update.Timestamp
		v.updates[message]++
		v.shown[message] = update.Message
	}
	v.readDeadLetters()
	v.readOutcomes()
	names := make(map[string]string)
	for id, e := range v.entries {
		names[e.Identity] = id
	}
	nameOf := func(identity string) string { return cmp.Or(names[identity], identity) }
	v.history = testkit.Must(readHistory(d.redis.Dir, nameOf))(d.t)
	return v
}

func (v *verdict) readDeadLetters() {
	ctx, cancel := context.WithTimeout(v.d.t.Context(), time.Minute)
	defer cancel()
	for _, letter := range testkit.Must(v.d.read(ctx, deadName))(v.d.t) {
		if !trusted.IsMarked(letter.Header) {
			v.unmarked = append(v.unmarked, letter.Subject)
			continue
		}
		if acknowledgement.Match(letter.Data) {
			v.forgedDead[letter.Header.Get("Notifier-Subject")]++
			continue
		}
		category, _ := strings.CutPrefix(letter.Header.Get("Notifier-Subject"), "notify.")
		e := event.Event{Category: category, ID: letter.Header.Get("Notifier-Id"), Part: letter.Header.Get("Notifier-Part")}
		if isHostile(category) {
			v.hostileDead[e.Identity()]++
		} else {
			v.dead[e.ShownID()]++
		}
	}
}

func (v *verdict) check() {
	v.checkLost()
	v.checkOutcomes()
	v.checkAnswers()
	v.checkLimits()
	v.checkCountedOnce()
	v.checkNeedlessDrops()
	v.checkPostedOnce()
	v.checkGivenBack()
	v.checkPairs()
	v.checkFolds()
	v.checkFlaps()
	v.checkDigests()
	v.checkLeft()
	if *attacked {
		v.checkHostile()
	}
	v.checkNeighbours()
}

// add adds a promise. A promise of which a long soak has checked nothing is broken: nobody knows whether it is kept.
func (v *verdict) add(name string, count int, seen string, broken []string) {
	if count == 0 && v.lasted >= longSoak {
		broken = append(broken, fmt.Sprintf("nothing was checked in %v", v.lasted))
	}
	slices.Sort(broken)
	v.promises = append(v.promises, promise{name, count, seen, broken})
}

func (v *verdict) print() {
	fmt.Printf("\n%-28s %-6s %7s  %s\n", "promise", "", "broken", "seen")
	for _, p := range v.promises {
		result := "PASS"
		if len(p.Broken) > 0 {
			result = "FAIL"
		}
		fmt.Printf("%-28s %-6s %7d  %s\n", p.Name, result, len(p.Broken), p.Seen)
	}
	for _, p := range v.promises {
		for _, broken := range p.Broken[:min(len(p.Broken), 8)] {
			fmt.Printf("  %s: %s\n", p.Name, broken)
		}
	}
	fmt.Println()
}

func (v *verdict) failed() bool {
	return slices.ContainsFunc(v.promises, func(p promise) bool { return len(p.Broken) > 0 })
}

func moment(microseconds int64) string { return clock(time.UnixMicro(microseconds)) }

func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%.3fs", t.Sub(began).Seconds())
}

// keep writes the ledgers to files.
func (v *verdict) keep() {
	var posts []any
	for _, post := range v.d.slack.Posts() {
		posts = append(posts, map[string]any{
			"name": nameOf(post), "received": post.Received, "at": clock(post.Received), "worker": workerOf(post), "accepted": post.Accepted,
			"channel": post.Channel, "thread": post.Thread, "ts": post.Timestamp, "withheld": v.d.answers.withheld(post), "text": post.Text,
		})
	}
	published := slices.SortedFunc(maps.Values(v.entries), func(a, b *entry) int { return a.Began.Compare(b.Began) })
	failures := []error{os.CopyFS(filepath.Join(v.d.folder, "redis"), os.DirFS(v.d.redis.Dir))}
	for name, ledger := range map[string]any{
		"published": published, "posts": posts, "admissions": v.history.admissions, "faults": v.incidents,
		"attacks": v.intruder.attacks, "promises": v.promises,
	} {
		text, err := json.MarshalIndent(ledger, "", " ")
		failures = append(failures, err, os.WriteFile(filepath.Join(v.d.folder, name+".json"), text, 0o600))
	}
	err := errors.Join(failures...)
	testkit.Check(v.d.t, err == nil, "write the ledgers: %v", err)
}
