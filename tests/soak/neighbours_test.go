//go:build soak

package soak

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/hostile"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
)

const (
	hostileCategory = "hostile"
	hostileChannel  = "#hostile"
	hostileSubject  = "notify.hostile.alerts"
	natsPassword    = "secret"
)

// The workers' user, the soak's user with all rights, and the hostile one, who may publish below one subject.
const (
	ownUsers    = `{ user: notifier, password: ` + natsPassword + ` }, { user: soak, password: ` + natsPassword + ` }`
	hostileUser = `{ user: hostile, password: ` + natsPassword + `, permissions: {
		publish: { allow: ["notify.hostile.>"] }, subscribe: { allow: ["_INBOX_hostile.>"] } } }`
)

// natsUsers returns the configuration of NATS: the hostile producer shares the workers' account or has one of its own.
func natsUsers(shared bool) string {
	if shared {
		return `accounts { SOAK { jetstream: enabled, users: [` + ownUsers + `, ` + hostileUser + `] } }`
	}
	return `accounts {
		SOAK { jetstream: enabled, exports: [{ service: "notify.>" }], users: [` + ownUsers + `] }
		PRODUCERS { imports: [{ service: { account: SOAK, subject: "notify.>" } }], users: [` + hostileUser + `] }
	}`
}

func isHostile(category string) bool {
	return category == hostileCategory || strings.HasPrefix(category, hostileCategory+".")
}

// intruder is the hostile producer. Order and size of its attacks are drawn.
type intruder struct {
	producer *hostile.Producer
	p        *publisher
	r        *random

	resting atomic.Bool
	busy    sync.Mutex // held during an attack

	attacks   []attack     // the latest one last
	published atomic.Int64 // events that the server may have stored
}

// attack is a finished attack.
type attack struct {
	Name       string
	Messages   int
	Stored     int64 // of those to which the server answers
	From, Upto time.Time
}

// refusedAttacks have only messages that the server refuses.
var refusedAttacks = []string{"rolls the stream up", "schedules messages on others' subjects"}

// leastOf is how many messages more than drawn an attack has. To push a live limit out of its history takes 64 messages on one of the reply subjects.
var leastOf = map[string]int{"forges through reply subjects": 3000}

// Bounds of an attack's drawn messages; 500 unless named.
var mostOf = map[string]int{
	"sends what cannot be understood":   12,
	"sends groups of empty alerts":      60,
	"sends groups of a thousand alerts": 20,
	"sends large events":                50,
	"resolves what nobody opened":       2000,
	"floods":                            3000,
}

const (
	attackPauseLeast, attackPauseMost = 100 * time.Millisecond, 1500 * time.Millisecond
	attackTimeout                     = 20 * time.Second
	attackPatience                    = 3 * time.Second // with answers, as NATS may be down
)

func (i *intruder) run(end <-chan struct{}) {
	at := time.Now()
	for {
		at = at.Add(i.r.between(attackPauseLeast, attackPauseMost))
		drawn := i.draw()
		select {
		case <-end:
			return
		case <-time.After(max(time.Until(at), attackPauseLeast)):
		}
		if !i.resting.Load() {
			i.attack(drawn)
		}
	}
}

// drawnAttack is the next attack.
type drawnAttack struct {
	number, messages int
	victim           string
}

func (i *intruder) draw() (drawn drawnAttack) {
	drawn.number = i.r.intN(len(hostile.Attacks))
	name := hostile.Attacks[drawn.number].Name
	drawn.messages = 1 + leastOf[name] + i.r.intN(cmp.Or(mostOf[name], 500))
	victims := []string{"watched", "vital", "tokens", "later", "soon", "groups", "pairs"}
	drawn.victim = "notify." + victims[i.r.intN(len(victims))]
	return drawn
}

// attack does a drawn attack. It ignores errors, since NATS may be down or refuse.
func (i *intruder) attack(drawn drawnAttack) {
	i.busy.Lock()
	defer i.busy.Unlock()
	of, n := hostile.Attacks[drawn.number], drawn.messages
	i.producer.Victim, i.producer.IDs = drawn.victim, i.p.coming()
	i.attacks = append(i.attacks, attack{Name: of.Name, Messages: n, From: time.Now()})
	i.published.Add(int64(eventsOf(of.Name, n)))
	ctx, cancel := context.WithTimeout(context.Background(), attackTimeout)
	defer cancel()
	before := i.producer.Stored()
	_ = of.Do(i.producer, ctx, n)
	last := &i.attacks[len(i.attacks)-1]
	last.Stored, last.Upto = i.producer.Stored()-before, time.Now()
}

// eventsOf returns how many events the messages of an attack have at most.
func eventsOf(name string, messages int) int {
	switch name {
	case "sends groups of a thousand alerts":
		return messages * hostile.AlertsOfGroup
	case "sends large events behind small ones", "sends many headers behind small events":
		return messages + hostile.SmallBefore
	}
	return messages
}

// during describes the latest attack that began before a time.
func (i *intruder) during(at time.Time) string {
	for _, a := range slices.Backward(i.attacks) {
		if a.From.Before(at) {
			return fmt.Sprintf("it %s (%d messages in %v), begun %v before", a.Name, a.Messages, a.Upto.Sub(a.From).Round(time.Millisecond),
				at.Sub(a.From).Round(time.Millisecond))
		}
	}
	return "nothing"
}

// rest pauses or resumes the intruder, and waits for the end of a running attack.
func (i *intruder) rest(resting bool) {
	i.resting.Store(resting)
	i.busy.Lock()
	defer i.busy.Unlock()
}

func (i *intruder) String() string {
	counts := make(map[string]int)
	for _, a := range i.attacks {
		counts[a.Name]++
	}
	var attacks []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		attacks = append(attacks, fmt.Sprintf("%s %d×", name, counts[name]))
	}
	return fmt.Sprintf("%d messages stored, %d refused, %d unanswered; it %s", i.producer.Stored(), i.producer.Refused(), i.producer.Unanswered(),
		strings.Join(attacks, ", "))
}

// coming lists recent and next IDs of the publisher.
func (p *publisher) coming() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := -20; n < 60; n++ {
		ids = append(ids, fmt.Sprintf(watchedID, max(0, p.ofWatcher+n)))
		for _, name := range []string{"vital-%d", "tokens-%d", "deep_a-%d", "firing-key-%d", "later-%d", "twice-%d", "group-%d-firing"} {
			ids = append(ids, fmt.Sprintf(name, max(0, p.next+n)))
		}
	}
	return ids
}

// phase is a time of measuring latency.
type phase string

const (
	faulty    phase = "" // from the start until the faults have stopped, and between the others
	alone     phase = "alone"
	disturbed phase = "disturbed"
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
	calmPatience  = 90 * time.Second
	mostLeftThere = 20 // messages in the producers' stream without a backlog
)

// measure measures latency in phases of one length, with the intruder and without it.
func (d *deployment) measure(w *watcher, i *intruder) {
	lasts := min(max(*duration/phaseShare, phaseLeast), phaseMost)
	for _, in := range []phase{alone, disturbed, disturbed, alone} {
		i.rest(true)
		d.awaitCalm()
		i.rest(in == alone)
		say("measuring the latency of other categories, %s", in)
		w.enter(in)
		time.Sleep(lasts) // the length of a phase
		w.enter(faulty)
	}
	i.rest(false)
}

// awaitCalm waits until there is no backlog.
func (d *deployment) awaitCalm() {
	deadline := time.Now().Add(calmPatience)
	for calm := 0; calm < 5 && time.Now().Before(deadline); {
		l, err := d.leftInJetStream()
		if err == nil && l.messages <= mostLeftThere && l.queued == 0 {
			calm++
		} else {
			calm = 0
		}
		time.Sleep(200 * time.Millisecond) // the time between two checks
	}
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
	alone, disturbed := v.ways(alone), v.ways(disturbed)
	if len(alone) == 0 || len(disturbed) == 0 {
		v.add("neighbours unharmed", 0, "nothing", append(broken, "no way was measured"))
		return
	}
	seen := v.intruder.String()
	for _, q := range []float64{0.5, 0.99} {
		without, with := quantile(alone, q), quantile(disturbed, q)
		ratio := float64(with) / float64(without)
		text := fmt.Sprintf("p%.0f of %d and %d ways %v alone, %v disturbed, ratio %.2f", 100*q, len(alone), len(disturbed),
			without.Round(100*time.Microsecond), with.Round(100*time.Microsecond), ratio)
		if ratio > mostSlower && with > noise {
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

// forged describes a wrong category or channel of a post.
func (v *verdict) forged(id string, post slacktest.Post) string {
	category := post.Origin("category")
	text := fmt.Sprint(post.Text, post.Message)
	switch {
	case isHostile(category) != (post.Channel == hostileChannel):
		return fmt.Sprintf("%s of %s was posted to %s", id, category, post.Channel)
	case isHostile(category):
		return ""
	case strings.Contains(text, hostileCategory), strings.Contains(text, "claim"):
		return fmt.Sprintf("%s of %s was posted, and is the hostile producer's: %s", id, category, post.Text)
	case v.entries[id] != nil && v.entries[id].Category != category:
		return fmt.Sprintf("%s of %s was posted as one of %s", id, v.entries[id].Category, category)
	}
	return ""
}

// The soak sets a live limit, which the reply subjects of the hostile producer attack. It equals the limit of the settings.
const liveCategory, liveLimit, liveAuthor = "pairs", "15/10s", "soak"

// acknowledgement matches what the server publishes to a reply subject, also if the stream was full.
var acknowledgement = regexp.MustCompile(`^\{("error": ?\{[^}]*\}, ?)?"stream": ?"`)

// checkForged wants no effect of the server's acknowledgements that the hostile producer sent to others. live is what `limits` printed. In a
// shared account nothing can keep acknowledgements out of the producers' stream: they become dead letters of the victim's category.
func (v *verdict) checkForged(live string) {
	var broken []string
	if !regexp.MustCompile(`(?m)^` + liveCategory + ` +` + liveLimit + ` +live\b`).MatchString(live) {
		broken = append(broken, "the live limit is lost: "+live)
	}
	for _, subject := range v.unmarked {
		broken = append(broken, "no worker wrote the dead letter of "+subject)
	}
	for subject, n := range v.forgedDead {
		if !v.d.shared {
			broken = append(broken, fmt.Sprintf("%d acknowledgements are events of %s", n, subject))
		}
	}
	forging := v.intruder.forging()
	if !*attacked {
		forging = 1 // only the live limit is checked
	}
	v.add("nothing forged", forging, fmt.Sprintf("%d subjects with acknowledgements as dead letters; a shared account: %v", len(v.forgedDead), v.d.shared), broken)
}

// forges reports whether an attack makes the server publish acknowledgements on others' subjects.
func (a attack) forges() bool { return leastOf[a.Name] > 0 }

// forging counts these attacks.
func (i *intruder) forging() (attacks int) {
	for _, a := range i.attacks {
		if a.forges() {
			attacks++
		}
	}
	return attacks
}

// forgedEvents bounds the acknowledgements that the server published on subjects of others' events: see [hostile.Producer.ForgeReplies].
func (i *intruder) forgedEvents() (most int) {
	replies, ofEvents := hostile.Replies("notify.victim"), 0
	for _, reply := range replies {
		if strings.HasPrefix(reply, "notify.") {
			ofEvents++
		}
	}
	for _, a := range i.attacks {
		if a.forges() {
			most += ofEvents * (a.Messages/len(replies) + 1)
		}
	}
	return most
}

// checkStored wants messages of each kind of attack to be stored, or the soak would attack with nothing. One attack may meet a full stream.
func (v *verdict) checkStored() (broken []string) {
	const some = 3 // attacks while nothing fails
	stored, undisturbed := make(map[string]int64), make(map[string]int)
	for _, a := range v.intruder.attacks {
		stored[a.Name] += a.Stored
		if v.calm(a.From, a.Upto) {
			undisturbed[a.Name]++
		}
	}
	for name, n := range undisturbed {
		if n >= some && stored[name] == 0 && !slices.Contains(refusedAttacks, name) {
			broken = append(broken, fmt.Sprintf("it %s %d times without a fault, and the server has stored nothing", name, n))
		}
	}
	return broken
}

// checkHostile wants no more outcomes of the hostile producer than events.
func (v *verdict) checkHostile() {
	var broken []string
	posted, dead := 0, 0
	for id, posts := range v.posts {
		if v.entries[id] == nil && len(posts) > 0 {
			posted++
			if v.hostileDead[id] > 0 {
				broken = append(broken, id+" was posted, and is a dead letter")
			}
		}
	}
	for _, n := range v.hostileDead {
		dead += n
	}
	told, again := v.told(true)
	most := int(v.intruder.published.Load())
	if posted+dead+told > most {
		broken = append(broken, fmt.Sprintf("%d outcomes of at most %d events", posted+dead+told, most))
	}
	broken = append(broken, v.checkStored()...)
	v.add("one outcome of the hostile", int(v.intruder.producer.Stored()), fmt.Sprintf("%d events at most: %d posted, %d dead letters are left, %d told as dropped (%d again in doubt)",
		most, posted, dead, told, again), broken)
}
