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

// checkPostedOnce looks for second messages of a post, by the name in their metadata. A second message of an event has another name if the
// event was published several times. Then Redis must have lost or missed the record of the first one. The same name may be there again only if
// Redis lost what it knew of the first post: the lease of its worker, that the post has begun, or its record.
func (v *verdict) checkPostedOnce() {
	var broken []string
	named := make(map[string]slacktest.Post)
	for _, post := range v.accepted {
		name, _ := post.Metadata.Payload["name"].(string)
		first, again := named[name]
		switch {
		case name == "":
			broken = append(broken, fmt.Sprintf("%s was posted without a name at %v", nameOf(post), clock(post.Received)))
		case again && !v.mayLose(first.Received.Add(-ackWait-slackTimeout), post.Received):
			broken = append(broken, v.twice(nameOf(post), first, post))
		}
		named[name] = post
	}
	copies := 0
	for id, posts := range v.posts {
		for i := 1; i < len(posts); i++ {
			if posts[i].Metadata.Payload["name"] == posts[i-1].Metadata.Payload["name"] {
				continue // counted above
			}
			copies++
			if !v.redisFailed(posts[i-1].Received, posts[i].Received) {
				broken = append(broken, v.twice(id, posts[i-1], posts[i]))
			}
		}
	}
	v.add(oncePromise, len(named), fmt.Sprintf("%d names, %d look-ups, %d second messages of events that were published again",
		len(named), v.d.slack.Calls(slacktest.MethodHistory)+v.d.slack.Calls(slacktest.MethodReplies), copies), broken)
}

func (v *verdict) twice(id string, first, second slacktest.Post) string {
	return fmt.Sprintf("%s by %s at %v (withheld: %t) and by %s at %v, recorded %v", id, workerOf(first), clock(first.Received),
		v.d.answers.withheld(first), workerOf(second), clock(second.Received), clock(v.history.recorded[id]))
}

// shortly bounds the difference of two clocks or goroutines.
const shortly = 200 * time.Millisecond

// redisFailed reports whether a worker may have failed to record a post before the next one, or Redis may have lost the record.
func (v *verdict) redisFailed(first, next time.Time) bool {
	return slices.ContainsFunc(v.incidents, func(i *incident) bool {
		return i.Target == onRedis && !strings.HasSuffix(i.Kind, "FLUSH") && i.From.Before(next.Add(2*time.Second)) && first.Add(-shortly).Before(i.Upto)
	})
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
		a, times := v.history.root[id], requests[id]
		switch {
		case a == nil || a.Returned:
		case len(times) > 0 && v.calm(times[0].Add(-shortly), times[len(times)-1].Add(ackWait)):
			wrong = append(wrong, fmt.Sprintf("%s was rejected at %v, and its slots were not returned", id, clock(times[len(times)-1])))
		default: // a fault may have hidden an earlier answer, or kept the worker from the return
			kept++
		}
	}
	v.add("given back", returned, fmt.Sprintf("%d events, %d in doubt", returned, kept), wrong)
}

// calm reports whether a time had no fault.
func (v *verdict) calm(from, upto time.Time) bool {
	return !slices.ContainsFunc(v.incidents, func(i *incident) bool { return i.From.Before(upto) && from.Before(i.Upto) })
}

// checkPairs wants a resolved event to be posted in the thread of its firing event, and only with a firing post. Redis may have lost that the
// firing event was being delivered or its pair: then nothing can be said.
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
		case len(resolved) == 0 && (v.entries[e.Resolves].Retried || v.mayLose(v.entries[e.Resolves].Began, v.recordedBy(v.entries[e.Resolves]))):
			uncertain++ // a firing message that was published again may be stored after the resolved one
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
	v.add("resolved where it began", paired, fmt.Sprintf("%d pairs, %d of neither, %d that cannot be evaluated", paired, unpaired, uncertain), broken)
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

// checkDigests bounds the drops in digests. Each stored copy of a message may be dropped, and in a shared account each acknowledgement that the
// hostile producer sent to the subjects of others. Doubtful drops count in their first digest.
func (v *verdict) checkDigests() {
	most, known := 0, 0
	if v.d.shared {
		most = v.intruder.forgedEvents()
	}
	for id, e := range v.entries {
		copies := e.Copies
		if len(v.posts[id]) > 0 || v.dead[id] > 0 {
			copies--
		} else {
			known++
		}
		most += copies
	}
	reported, again := v.reported(false)
	var broken []string
	if reported > most {
		broken = append(broken, fmt.Sprintf("digests report %d drops, of at most %d (%d events)", reported, most, known))
	}
	v.add("digests report no more", len(v.digests), fmt.Sprintf("%d digests of %d drops; %d events were dropped; %d were reported again in doubt",
		len(v.digests), reported, known, again), broken)
}

// reported adds up the drops in the digests of the hostile channel, or of the others, and the doubtful ones.
func (v *verdict) reported(toHostile bool) (reported, again int) {
	for _, post := range v.digests {
		if (post.Channel == hostileChannel) == toHostile {
			dropped, doubtful, _ := digestOf(post)
			reported += dropped - doubtful
			again += doubtful
		}
	}
	return reported, again
}

// checkLeft wants nothing left, and no mishap.
func (v *verdict) checkLeft() {
	var broken []string
	if !v.left.none() {
		broken = append(broken, v.left.String())
	}
	v.add("nothing left", len(v.entries), v.left.String(), broken)
	v.add("workers live and end", len(v.incidents), fmt.Sprintf("%d faults", len(v.incidents)), v.d.mishaps)
}
