//go:build soak

package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

// checkPostedOnce looks for second posts of an event without a fault that hid the result of the first post.
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

// shortly bounds the difference of two clocks or goroutines.
const shortly = 200 * time.Millisecond

// unknowable names the fault that hid the result of a post from the next post of its event, or returns "".
func (v *verdict) unknowable(first, next slacktest.Post, recorded time.Time) string {
	if v.d.answers.withheld(first) {
		return "answer withheld"
	}
	at := first.Received
	end := next.Received // the end of the time without a record of the first post
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

// checkGivenBack looks for posts of events with returned slots, and for rejected events without a return.
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
		default: // a fault may have hidden an earlier answer, or kept the worker from the return
			kept++
		}
	}
	v.add("given back", fmt.Sprintf("%d events, %d in doubt", returned, kept), wrong)
}

// calm tells whether a time had no fault.
func (v *verdict) calm(from, upto time.Time) bool {
	return !slices.ContainsFunc(v.incidents, func(i *incident) bool { return i.From.Before(upto) && from.Before(i.Upto) })
}

// checkPairs wants a resolved event to be posted in the thread of its firing event, and only with a firing post.
func (v *verdict) checkPairs() {
	var broken []string
	paired, unpaired, uncertain := 0, 0, 0
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
			uncertain++ // the firing message may be stored after the resolved one
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
	v.add("resolved where it began", fmt.Sprintf("%d pairs, %d of neither, %d that cannot be evaluated", paired, unpaired, uncertain), broken)
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

// checkDigests bounds the drops in digests. Each stored copy of a message may be dropped. Doubtful drops count in their first digest.
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
	told, again := v.told(false)
	var broken []string
	if told > most {
		broken = append(broken, fmt.Sprintf("digests tell of %d drops, of at most %d (%d events)", told, most, known))
	}
	v.add("digests tell no more", fmt.Sprintf("%d digests of %d drops; %d events were dropped; %d were told again in doubt",
		len(v.digests), told, known, again), broken)
}

// told adds up the drops in the digests of the hostile channel, or of the others, and the doubtful ones.
func (v *verdict) told(toHostile bool) (told, again int) {
	for _, post := range v.digests {
		if (post.Channel == hostileChannel) == toHostile {
			dropped, doubtful, _ := digestOf(post)
			told += dropped - doubtful
			again += doubtful
		}
	}
	return told, again
}

// checkLeft wants nothing left, and no mishap.
func (v *verdict) checkLeft() {
	var broken []string
	if !v.left.none() {
		broken = append(broken, v.left.String())
	}
	v.add("nothing left", v.left.String(), broken)
	v.add("workers live and end", fmt.Sprintf("%d faults", len(v.incidents)), v.d.mishaps)
}
