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

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/exactness"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/stored"
)

// Promises that say whether the neighbours were harmed.
const (
	lossPromise = "nothing lost"
	oncePromise = "posted twice in doubt only"
)

// promise is one row of the table.
type promise struct {
	Name   string
	Seen   string   // how much there was to keep it
	Broken []string // where it was not kept
}

// verdict compares the ledgers.
type verdict struct {
	d         *deployment
	incidents []*incident
	left      left
	intruder  *intruder

	entries map[string]*entry
	posts   map[string][]slacktest.Post // accepted, by event
	digests []slacktest.Post            // accepted
	updates map[string]int              // of messages, by channel and ts
	dead    map[string]int              // dead letters by event

	hostileDead map[string]int // those of the hostile producer
	journal     *journal

	promises []promise
}

func newVerdict(d *deployment, p *publisher, f *faults, i *intruder, drained left) *verdict {
	v := &verdict{
		d: d, incidents: f.incidents, left: drained, intruder: i, entries: p.entries,
		posts:   make(map[string][]slacktest.Post),
		updates: make(map[string]int), dead: make(map[string]int), hostileDead: make(map[string]int),
	}
	for _, post := range d.slack.Accepted() {
		if _, _, isDigest := digestOf(post); isDigest {
			v.digests = append(v.digests, post)
		} else {
			v.posts[idOf(post)] = append(v.posts[idOf(post)], post)
		}
	}
	for _, update := range d.slack.Updates() {
		v.updates[update.Channel+" "+update.Timestamp]++
	}
	v.readDeadLetters()
	var err error
	names := make(map[string]string)
	for id, e := range v.entries {
		names[e.Identity] = id
	}
	nameOf := func(identity string) string {
		if name, known := names[identity]; known {
			return name
		}
		return identity
	}
	if v.journal, err = readJournal(d.redis.Dir, nameOf); err != nil {
		d.t.Fatal(err)
	}
	return v
}

func (v *verdict) readDeadLetters() {
	ctx, cancel := context.WithTimeout(v.d.t.Context(), time.Minute)
	defer cancel()
	letters, err := stored.Read(ctx, v.d.js, deadName,
		func(m *jetstream.RawStreamMsg) (*jetstream.RawStreamMsg, bool) { return m, true }, func(int64, int64) {})
	if err != nil {
		v.d.t.Fatalf("read the dead letters: %v", err)
	}
	for letter := range letters {
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
	v.checkLimits()
	v.checkCountedOnce()
	v.checkNeedlessDrops()
	v.checkPostedOnce()
	v.checkGivenBack()
	v.checkPairs()
	v.checkDigests()
	v.checkLeft()
	v.checkHostile()
	v.checkNeighbours()
}

func (v *verdict) add(name, seen string, broken []string) {
	slices.Sort(broken)
	v.promises = append(v.promises, promise{name, seen, broken})
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

// checkLost looks for events that had to be heard of: those that were admitted, those that had to be, and bad ones.
func (v *verdict) checkLost() {
	var lost []string
	posted, dropped, must := 0, 0, 0
	admitted := v.lastAdmissions()
	for id, e := range v.entries {
		sent, dead := len(v.posts[id]) > 0, v.dead[id] > 0
		a := admitted[id]
		switch {
		case sent:
			posted++
		case dead:
		case e.Fate == doomed:
			lost = append(lost, fmt.Sprintf("%s is no dead letter", id))
		case a != nil && !a.Returned:
			lost = append(lost, fmt.Sprintf("%s was admitted at %v and never posted", id, moment(a.At)))
		case e.Fate == certain:
			lost = append(lost, fmt.Sprintf("%s of %s had room and was never posted (published %v)", id, e.Category, clock(e.Stored)))
		default:
			dropped++
		}
		if e.Fate == certain {
			must++
		}
	}
	for id, a := range admitted {
		if v.entries[id] == nil && !a.Returned && len(v.posts[id]) == 0 && v.hostileDead[id] == 0 {
			lost = append(lost, fmt.Sprintf("%s was admitted at %v and never posted", id, moment(a.At)))
		}
	}
	v.add(lossPromise, fmt.Sprintf("%d events: %d posted, %d dropped, %d dead; %d had to be posted, %d were admitted",
		len(v.entries), posted, dropped, len(v.dead), must, len(admitted)), lost)
}

func (v *verdict) lastAdmissions() map[string]*admission {
	last := make(map[string]*admission)
	for _, a := range v.journal.admissions {
		last[a.ID] = a
	}
	return last
}

// checkOutcomes looks for outcomes that an event must not have.
func (v *verdict) checkOutcomes() {
	var wrong []string
	for id, n := range v.dead {
		switch e := v.entries[id]; {
		case e == nil:
			wrong = append(wrong, fmt.Sprintf("%q is a dead letter, and was not published", id))
		case e.Fate != doomed:
			wrong = append(wrong, fmt.Sprintf("%s is a dead letter", id))
		case n > e.Copies:
			wrong = append(wrong, fmt.Sprintf("%s is %d dead letters of at most %d messages", id, n, e.Copies))
		}
	}
	for id, posts := range v.posts {
		switch e := v.entries[id]; {
		case e == nil && isHostile(v.categoryOf(id)):
		case e == nil:
			wrong = append(wrong, fmt.Sprintf("%q was posted, and was not published: %s", id, posts[0].Text))
		case e.Fate == doomed:
			wrong = append(wrong, fmt.Sprintf("%s was posted", id))
		}
	}
	v.add("one outcome", fmt.Sprintf("%d dead letters", len(v.dead)), wrong)
}

// checkLimits checks what Redis has written against the limits, in pieces that overlap by all that matters; and that what was
// posted had been admitted. What Redis lost when it was killed may have been admitted: at most one limit for each loss.
func (v *verdict) checkLimits() {
	events := v.journal.events(v.categoryOf)
	var broken []string
	const piece = int64(60e6)
	seen := make(map[string]bool)
	for from := 0; from < len(events); {
		start := events[from].At
		upto := from
		for upto < len(events) && events[upto].At < start+piece {
			upto++
		}
		before := from
		for before > 0 && events[before-1].At > start-longestMemory.Microseconds() {
			before--
		}
		for _, fault := range faultsIn(exactness.Check(limits, events[before:upto])) {
			if !seen[fault] {
				seen[fault] = true
				broken = append(broken, fault)
			}
		}
		from = upto
	}
	broken = append(broken, v.journal.overInUse...)

	admitted := v.lastAdmissions()
	losses, lost := 0, make(map[*incident]int)
	for _, i := range v.incidents {
		if i.Loses {
			losses++
		}
	}
	for id, posts := range v.posts {
		e := v.entries[id]
		if e == nil && !isHostile(v.categoryOf(id)) || e != nil && e.Fate == resolves || admitted[id] != nil {
			continue
		}
		loss := v.lossNear(posts[0].Received)
		if loss == nil {
			broken = append(broken, fmt.Sprintf("%s was posted at %v, and Redis has never admitted it", id, clock(posts[0].Received)))
			continue
		}
		if lost[loss]++; lost[loss] > int(limits.Limits[0].Count) {
			broken = append(broken, fmt.Sprintf("%s was posted at %v: more than one limit is missing after one loss", id, clock(posts[0].Received)))
		}
	}
	sum := 0
	for _, n := range lost {
		sum += n
	}
	v.add("never above a limit", fmt.Sprintf("%d admissions under %d limits; %d were lost in %d kills of Redis (appendfsync everysec)",
		len(events), len(limits.Limits)+1, sum, losses), broken)
	v.add("all or nothing", fmt.Sprintf("%d logs", len(v.journal.seen)), v.journal.faults)
}

func faultsIn(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

// lossNear is a kill of Redis at which the admission of a post may have been lost.
func (v *verdict) lossNear(at time.Time) *incident {
	for _, i := range v.incidents {
		if i.Loses && at.After(i.From.Add(-time.Minute)) && at.Before(i.Upto.Add(time.Minute)) {
			return i
		}
	}
	return nil
}

func (v *verdict) categoryOf(id string) string {
	if e := v.entries[id]; e != nil {
		return e.Category
	}
	category, _, _ := strings.Cut(id, " ") // as an identity has it
	category, _, _ = strings.Cut(category, "#")
	return category
}

// checkCountedOnce looks for a second admission of one event whose first one was not given back.
func (v *verdict) checkCountedOnce() {
	var twice []string
	before := make(map[string]*admission)
	for _, a := range v.journal.admissions {
		if b := before[a.ID]; b != nil && !b.Returned {
			twice = append(twice, fmt.Sprintf("%s took slots at %v and again at %v", a.ID, moment(b.At), moment(a.At)))
		}
		before[a.ID] = a
		if e := v.entries[a.ID]; e == nil && isHostile(v.categoryOf(a.ID)) {
			if a.Slots != 1 {
				twice = append(twice, fmt.Sprintf("%s took %d slots", a.ID, a.Slots))
			}
		} else if e == nil {
			twice = append(twice, fmt.Sprintf("%q took slots, and was not published", a.ID))
		} else if e.Cost != a.Slots {
			twice = append(twice, fmt.Sprintf("%s of cost %d took %d slots", a.ID, e.Cost, a.Slots))
		}
	}
	v.add("counted once", fmt.Sprintf("%d admissions of %d events", len(v.journal.admissions), len(before)), twice)
}

// mostJudged bounds the drops that are judged, which takes a while for each.
const mostJudged = 3000

// checkNeedlessDrops judges the drops of events whose messages were watched. Such an event was decided about between its
// publication and the moment at which its message was seen to be gone; what is remembered of a full limit may be older by the
// time to live of the deny cache. If there was room for it in all of that time, it was dropped needlessly.
func (v *verdict) checkNeedlessDrops() {
	history := v.journal.events(v.categoryOf)
	for i := range history {
		history[i].Returned = exactness.Span{} // when exactly is not known: it is not counted as room
	}
	var needless []string
	judged := 0
	for id, e := range v.entries {
		watched := e.Fate == limited && e.Copies == 1 && !e.Settled.IsZero() && e.Category != "soon" && e.Category != "busy"
		if !watched || len(v.posts[id]) > 0 || judged == mostJudged || v.lastAdmission(id) {
			continue
		}
		judged++
		if hadRoom(history, e, e.Began.Add(-denyCacheTTL), e.Settled) {
			needless = append(needless, fmt.Sprintf("%s of %s, cost %d, was dropped between %v and %v", id, e.Category, e.Cost, clock(e.Began), clock(e.Settled)))
		}
	}
	v.add("no needless drop", fmt.Sprintf("%d drops judged", judged), needless)
}

func (v *verdict) lastAdmission(id string) bool { return v.journal.root[id] != nil }

// hadRoom tells whether an event would have fitted all limits at any moment of a time: at its beginning, and behind each
// admission in it.
func hadRoom(history []exactness.Event, e *entry, from, upto time.Time) bool {
	first, last := from.UnixMicro(), upto.UnixMicro()
	begin, _ := slices.BinarySearchFunc(history, first-longestMemory.Microseconds(), byTime)
	end, _ := slices.BinarySearchFunc(history, last, byTime)
	moments := []int64{first}
	for _, other := range history[begin:end] {
		if other.At >= first {
			moments = append(moments, other.At+1)
		}
	}
	slices.Reverse(moments) // the latest is the most likely one at which there was none
	for _, at := range moments {
		here, _ := slices.BinarySearchFunc(history, at, byTime)
		asked := exactness.Event{ID: "asked", Category: e.Category, Cost: e.Cost, At: at, Call: len(history), Admitted: true}
		tried := append(slices.Clone(history[begin:here]), asked)
		if exactness.Check(limits, tried) != nil { // it has no room, or limits were broken before it
			return false
		}
	}
	return true
}

func byTime(e exactness.Event, at int64) int { return cmp.Compare(e.At, at) }

// checkPostedOnce looks for second posts of an event, and for what may have kept the first one's result from being known.
func (v *verdict) checkPostedOnce() {
	var unexcused []string
	second, causes := 0, make(map[string]int)
	for id, posts := range v.posts {
		for i := 1; i < len(posts); i++ {
			second++
			if cause := v.unknowable(posts[i-1], posts[i], v.journal.recorded[id]); cause != "" {
				causes[cause]++
				continue
			}
			unexcused = append(unexcused, fmt.Sprintf("%s by %s at %v and by %s at %v, recorded %v", id,
				workerOf(posts[i-1]), clock(posts[i-1].Received), workerOf(posts[i]), clock(posts[i].Received), clock(v.journal.recorded[id])))
		}
	}
	var counted []string
	for _, cause := range slices.Sorted(maps.Keys(causes)) {
		counted = append(counted, fmt.Sprintf("%d %s", causes[cause], cause))
	}
	v.add(oncePromise, fmt.Sprintf("%d second posts: %s", second, strings.Join(counted, ", ")), unexcused)
}

// shortly is for what happens at the same time as something else, as two clocks or goroutines see it.
const shortly = 200 * time.Millisecond

// unknowable tells why the result of a post could not be known when the next one of its event was made, "" if it could.
func (v *verdict) unknowable(first, next slacktest.Post, recorded time.Time) string {
	if v.d.answers.withheld(first) {
		return "answer withheld"
	}
	at := first.Received
	end := next.Received // until when the first post was not recorded
	if !recorded.IsZero() && recorded.Before(end) {
		end = recorded
	}
	for _, i := range v.incidents {
		overlaps := func(from, upto time.Time) bool { return i.From.Before(upto) && from.Before(i.Upto) }
		mine := i.Target == onWorker && i.Worker == workerOf(first)
		switch {
		case i.Target == toSlack && overlaps(at.Add(-shortly), at.Add(slackTimeout)):
			return "on a broken way to Slack"
		case mine && i.Kind != "SIGTERM" && i.From.After(at.Add(-shortly)) && i.From.Before(end.Add(shortly)):
			return "before the record, by a worker that was killed or stopped"
		case mine && i.Kind == "SIGTERM" && overlaps(at, at.Add(shortly)):
			return "before the record, by a worker that was told to end"
		case i.Target == onRedis && !strings.HasSuffix(i.Kind, "FLUSH") && overlaps(at.Add(-shortly), end.Add(2*time.Second)):
			return "while Redis could not record it"
		case i.Target == onWorker && i.Kind == "SIGSTOP" && i.Worker == workerOf(next) &&
			i.Upto.Before(next.Received.Add(shortly)) && i.Upto.After(next.Received.Add(-sendTimeout)):
			return "by a worker that stood still in the middle of a post"
		}
	}
	return ""
}

// checkGivenBack looks for events that were posted although their slots had been returned.
func (v *verdict) checkGivenBack() {
	var wrong []string
	returned := 0
	for id, a := range v.lastAdmissions() {
		if !a.Returned {
			continue
		}
		returned++
		if len(v.posts[id]) > 0 {
			wrong = append(wrong, fmt.Sprintf("%s was posted at %v, and its slots were returned after %v", id, clock(v.posts[id][0].Received), moment(a.From)))
		}
	}
	requests := make(map[string][]time.Time)
	for _, post := range v.d.slack.Posts() {
		requests[idOf(post)] = append(requests[idOf(post)], post.Received)
	}
	kept := 0
	for _, id := range slices.Concat(slices.Collect(maps.Keys(v.dead)), slices.Collect(maps.Keys(v.hostileDead))) {
		a, times := v.journal.root[id], requests[id]
		switch {
		case a == nil || a.Returned:
		case len(times) > 0 && v.calm(times[0].Add(-shortly), times[len(times)-1].Add(ackWait)):
			wrong = append(wrong, fmt.Sprintf("%s was rejected at %v, and its slots were not returned", id, clock(times[len(times)-1])))
		default: // an answer may have been lost before, or the worker killed before it could return them
			kept++
		}
	}
	v.add("given back", fmt.Sprintf("%d events, %d in doubt", returned, kept), wrong)
}

// calm tells whether nothing was wrong in a time.
func (v *verdict) calm(from, upto time.Time) bool {
	return !slices.ContainsFunc(v.incidents, func(i *incident) bool { return i.From.Before(upto) && from.Before(i.Upto) })
}

// checkPairs checks that what was resolved is told where it was told that it began, and only there.
func (v *verdict) checkPairs() {
	var broken []string
	paired, unpaired, unjudged := 0, 0, 0
	for id, e := range v.entries {
		if e.Fate != resolves {
			continue
		}
		firing, resolved := v.posts[e.Resolves], v.posts[id]
		switch {
		case len(firing) == 0 && len(resolved) == 0:
			unpaired++
		case len(firing) == 0:
			broken = append(broken, fmt.Sprintf("%s was posted at %v, and %s never", id, clock(resolved[0].Received), e.Resolves))
		case len(resolved) == 0 && v.entries[e.Resolves].Retried:
			unjudged++ // the message that was posted may have been stored behind this one
		case len(resolved) == 0:
			broken = append(broken, fmt.Sprintf("%s (stored %v) was never posted, and %s was at %v (stored %v)",
				id, clock(e.Stored), e.Resolves, clock(firing[0].Received), clock(v.entries[e.Resolves].Stored)))
		default:
			paired++
			if fault := v.checkPair(firing, resolved); fault != "" {
				broken = append(broken, id+" "+fault)
			}
		}
	}
	v.add("resolved where it began", fmt.Sprintf("%d pairs, %d of neither, %d that cannot be judged", paired, unpaired, unjudged), broken)
}

func (v *verdict) checkPair(firing, resolved []slacktest.Post) string {
	for _, reply := range resolved {
		first := slices.IndexFunc(firing, func(p slacktest.Post) bool { return p.ChannelID == reply.ChannelID && p.Timestamp == reply.Thread })
		switch {
		case first < 0:
			return fmt.Sprintf("was posted at %v in the thread %q, which is not that of what it resolves", clock(reply.Received), reply.Thread)
		case firing[first].Received.After(reply.Received):
			return "was posted before what it resolves"
		case v.updates[reply.ChannelID+" "+reply.Thread] == 0:
			return "was posted, and what it resolves was not updated"
		}
	}
	return ""
}

// checkDigests checks that digests do not tell of more drops than there can have been. A message may be stored more than
// once, and each copy is dropped by itself. What may have been told before is counted where it was told first.
func (v *verdict) checkDigests() {
	most, known := 0, 0
	for id, e := range v.entries {
		copies := e.Copies
		if len(v.posts[id]) > 0 || v.dead[id] > 0 {
			copies--
		} else {
			known++
		}
		most += copies
	}
	told, again := 0, 0
	for _, post := range v.digests {
		if post.Channel == hostileChannel {
			continue
		}
		dropped, doubtful, _ := digestOf(post)
		told += dropped - doubtful
		again += doubtful
	}
	var broken []string
	if told > most {
		broken = append(broken, fmt.Sprintf("digests tell of %d drops, of at most %d (%d events)", told, most, known))
	}
	v.add("digests tell no more", fmt.Sprintf("%d digests of %d drops; %d events were dropped; %d were told again in doubt",
		len(v.digests), told, known, again), broken)
}

// checkLeft looks for what is left over.
func (v *verdict) checkLeft() {
	var broken []string
	if !v.left.none() {
		broken = append(broken, v.left.String())
	}
	v.add("nothing left", fmt.Sprintf("%s; %s in the room still taken", v.left, v.d.placesTaken()), broken)
	v.add("workers live and end", fmt.Sprintf("%d faults", len(v.incidents)), v.d.mishaps)
}

func moment(microseconds int64) string { return clock(time.UnixMicro(microseconds)) }

func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%.3fs", t.Sub(began).Seconds())
}

// keep writes down the ledgers.
func (v *verdict) keep() {
	var posts []any
	for _, post := range v.d.slack.Posts() {
		posts = append(posts, map[string]any{
			"name": nameOf(post), "received": post.Received, "at": clock(post.Received), "worker": workerOf(post), "accepted": post.Accepted,
			"channel": post.Channel, "thread": post.Thread, "ts": post.Timestamp, "withheld": v.d.answers.withheld(post), "text": post.Text,
		})
	}
	var failures []error
	for name, list := range map[string][]any{
		"published": anyOf(slices.SortedFunc(maps.Values(v.entries), func(a, b *entry) int { return a.Began.Compare(b.Began) })),
		"posts":     posts, "admissions": anyOf(v.journal.admissions), "faults": anyOf(v.incidents), "attacks": anyOf(v.intruder.attacks), "promises": anyOf(v.promises),
	} {
		failures = append(failures, writeLines(filepath.Join(v.d.folder, name+".jsonl"), list))
	}
	failures = append(failures, os.CopyFS(filepath.Join(v.d.folder, "redis"), os.DirFS(v.d.redis.Dir)))
	if err := errors.Join(failures...); err != nil {
		v.d.t.Errorf("write the ledgers: %v", err)
	}
}

func anyOf[T any](list []T) []any {
	all := make([]any, len(list))
	for i, value := range list {
		all[i] = value
	}
	return all
}

func writeLines(path string, list []any) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(file)
	for _, value := range list {
		if err := encoder.Encode(value); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return file.Close()
}
