//go:build powerloss

package powerloss

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	producers = 4
	pause     = 30 * time.Millisecond // between the events of a producer

	// A failure comes after this time of load: some failures before and some after a sync of every 10 s.
	leastLoad, mostLoad = time.Second, 13 * time.Second

	withoutPower = time.Second
	loadAfter    = 4 * time.Second // with power again
)

// load is what producers and the operator do around one failure. Names of the load begin with its name.
type load struct {
	site  *site
	name  string
	began time.Time

	mu     sync.Mutex
	stored map[string]string // acknowledged events: category by ID
	limits []string          // paths of limits that were set
}

// measure fails the power again and again. After a failure that leaves work undone, it goes on with a new deployment.
func (r row) measure(t *testing.T) (sum result) {
	for sum.times < *times && !t.Failed() {
		t.Run(fmt.Sprint("from ", sum.times+1), func(t *testing.T) {
			s := build(t, r)
			for sum.times < *times && !t.Failed() {
				s.sync()
				l := &load{site: s, name: fmt.Sprintf("f%d", sum.times), began: time.Now(), stored: make(map[string]string)}
				one := l.run(s.down(sum.times))
				say("%s: %v", r.name(), &one)
				sum.add(one)
				if one.unsettled > 0 { // the streams still have events that count as lost
					return
				}
				if r.losesNothing() && one.lost+one.limitsLost > 0 {
					t.Errorf("lost %d of %d events and %d of %d live limits, want none", one.lost, one.events, one.limitsLost, one.limits)
				}
			}
		})
	}
	return sum
}

func (l *load) run(down []*machine) result {
	ctx, stop := context.WithCancel(l.site.t.Context())
	defer stop()
	var actors sync.WaitGroup
	for i := range producers {
		actors.Go(func() { l.produce(ctx, i) })
	}
	actors.Go(func() { l.operate(ctx) })
	time.Sleep(leastLoad + rand.N(mostLoad-leastLoad))
	failPower(down)
	time.Sleep(withoutPower)
	for _, m := range down {
		m.restart()
	}
	time.Sleep(loadAfter)
	stop()
	actors.Wait()
	settled, adopted := l.site.drain()
	r := l.count()
	r.times = 1
	if adopted {
		r.adopted = 1
	}
	if !settled {
		r.unsettled = 1
	}
	return r
}

// produce publishes events, each until it is acknowledged: of ten events, six must be posted, three have limits, and Slack rejects one.
func (l *load) produce(ctx context.Context, producer int) {
	for i := 0; ctx.Err() == nil; i++ {
		category, title := "vital", "something happened"
		switch i % 10 {
		case 1, 4, 7:
			// Each second brings a new category, which gets events for four seconds, so that limits fill before and after the failure.
			second := max(0, int(time.Since(l.began).Seconds())-rand.IntN(4))
			category = fmt.Sprintf("limited-%s-%d", l.name, second)
		case 9:
			category, title = "doomed", "reject me"
		}
		id := fmt.Sprintf("%s-%d-%d", l.name, producer, i)
		message := &nats.Msg{Subject: "notify." + category, Header: nats.Header{nats.MsgIdHdr: {id}}, Data: []byte(title)}
		for ctx.Err() == nil && !l.publish(ctx, message) {
			time.Sleep(100 * time.Millisecond) // the pace of a producer's retries
		}
		time.Sleep(pause)
	}
}

func (l *load) publish(ctx context.Context, message *nats.Msg) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := l.site.js.PublishMsg(ctx, message, jetstream.WithRetryAttempts(0)); err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored[message.Header.Get(nats.MsgIdHdr)] = strings.TrimPrefix(message.Subject, "notify.")
	return true
}

// operate sets a limit each second, as an operator does.
func (l *load) operate(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		path := fmt.Sprintf("live.%s-%d", l.name, i)
		if _, err := l.site.command("limits", "set", path, "7/1h"); err == nil {
			l.limits = append(l.limits, path)
		}
		time.Sleep(time.Second)
	}
}

// count compares what was acknowledged with what is left.
func (l *load) count() (r result) {
	rejected, posts := make(map[string]bool), make(map[string]int)
	for _, post := range l.site.slack.Posts() {
		id := post.Origin("id")
		switch {
		case !strings.HasPrefix(id, l.name+"-"):
		case post.Accepted:
			posts[id]++
		default:
			rejected[id] = true
		}
	}
	letters := make(map[string]bool)
	stored, err := l.site.stored(deadName)
	for _, letter := range stored {
		letters[letter.Header.Get("Notifier-Id")] = true
	}
	changes, errOfLimits := l.site.stored(bucketName)
	inForce := make(map[string]bool)
	for _, change := range changes {
		inForce[change.Subject] = true
	}
	if err := errors.Join(err, errOfLimits); err != nil {
		say("%s: %v", l.site.row.name(), err)
		r.unsettled = 1 // what cannot be read counts as lost
	}
	for id := range rejected {
		r.letters++
		if !letters[id] {
			r.lettersLost++
		}
	}
	admitted := make(map[string]int)
	for id, n := range posts {
		r.twice += n - 1
		if category, found := strings.CutPrefix(l.stored[id], "limited-"); found {
			r.admissions++
			admitted[category]++
		}
	}
	for _, n := range admitted {
		r.above += max(0, n-categoryLimit)
	}
	for id, category := range l.stored {
		r.events++
		limited := strings.HasPrefix(category, "limited-") // a limit may have dropped it
		if !limited && posts[id] == 0 && !rejected[id] && !letters[id] {
			r.lost++
		}
	}
	for _, path := range l.limits {
		r.limits++
		if !inForce["$KV.notifier-limits."+path] {
			r.limitsLost++
		}
	}
	return r
}
