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

// Bounds of an attack's drawn messages; 500 unless named. Large messages have at most 13 MB together: four workers and the server share the
// cores of the soak with all its other parts. TestNeighbours sends up to 160 times as many of them.
var mostOf = map[string]int{
	"sends what cannot be understood":        12,
	"sends groups of empty alerts":           60,
	"sends groups of a thousand alerts":      20,
	"sends large events":                     50,
	"sends large events behind small ones":   50,
	"sends many headers behind small events": 200,
	"sends titles of 250 kB":                 50,
	"resolves what nobody opened":            2000,
	"floods":                                 3000,
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
	reported, again := v.reported(true)
	most := int(v.intruder.published.Load())
	if posted+dead+reported > most {
		broken = append(broken, fmt.Sprintf("%d outcomes of at most %d events", posted+dead+reported, most))
	}
	broken = append(broken, v.checkStored()...)
	v.add("one outcome of the hostile", int(v.intruder.producer.Stored()), fmt.Sprintf("%d events at most: %d posted, %d dead letters are left, %d reported as dropped (%d again in doubt)",
		most, posted, dead, reported, again), broken)
}
