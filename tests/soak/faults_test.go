//go:build soak

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
)

// target is the part of the deployment that fails.
type target string

const (
	onWorker target = "worker"
	onRedis  target = "redis" // or the network to it
	onNATS   target = "nats"
	onSlack  target = "slack"   // its answers
	toSlack  target = "toslack" // the network to it

	onMachine target = "machine" // it stalled, which nobody has planned
)

// incident is a fault that happened.
type incident struct {
	Target target
	Kind   string
	Worker string    `json:",omitempty"`
	From   time.Time // before it had any effect
	Upto   time.Time // after it had none
	Loses  bool      `json:",omitempty"` // Redis may have lost its last writes: see unwritten
}

// unwritten is how long appendfsync everysec may leave an answered call unwritten.
const unwritten = 5 * time.Second

// losses returns the incidents in which Redis may have lost a write of a time.
func (v *verdict) losses(from, upto time.Time) (losses []*incident) {
	for _, i := range v.incidents {
		if i.Loses && i.From.Add(-unwritten).Before(upto) && from.Before(i.Upto) {
			losses = append(losses, i)
		}
	}
	return losses
}

// mayLose reports whether Redis may have lost a write of a time.
func (v *verdict) mayLose(from, upto time.Time) bool { return len(v.losses(from, upto)) > 0 }

// faults injects one fault or two at a time, with calm times between.
type faults struct {
	d *deployment
	r *random

	mu        sync.Mutex
	incidents []*incident
}

func (f *faults) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.incidents)
}

// fault is a drawn fault. begin and end return when the fault has begun or ended.
type fault struct {
	incident

	length     time.Duration
	begin, end func()
}

const (
	calmLeast, calmMost = time.Second, 6 * time.Second
)

// planned is the begin or the end of a fault, at a time since the start of the soak.
type planned struct {
	at time.Duration
	do func()
}

// plan draws all faults of a soak and their times, before the first one begins.
func (f *faults) plan(length time.Duration) (all []planned) {
	begin := func(at time.Duration, drawn *fault) { all = append(all, planned{at, func() { f.begin(drawn) }}) }
	end := func(at time.Duration, drawn *fault) { all = append(all, planned{at, func() { f.end(drawn) }}) }
	for at := f.r.between(calmLeast, calmMost); at < length; at += f.r.between(calmLeast, calmMost) { // the time to recover
		first := f.draw()
		begin(at, &first)
		if !f.r.chance(35) {
			at += first.length
			end(at, &first)
			continue
		}
		at += f.r.between(0, first.length) // the second fault begins during the first
		second := f.draw()
		for second.Target == first.Target {
			second = f.draw()
		}
		begin(at, &second)
		at += f.r.between(0, first.length)
		end(at, &first)
		at += second.length
		end(at, &second)
	}
	return all
}

// run does what is planned. A step that takes long, such as the end of a worker, delays the steps after it at most until it has ended.
func (f *faults) run(length time.Duration) {
	start := time.Now()
	for _, next := range f.plan(length) {
		time.Sleep(time.Until(start.Add(next.at)))
		next.do()
	}
	time.Sleep(time.Until(start.Add(length))) // the soak lasts the given time
}

func (f *faults) begin(drawn *fault) {
	drawn.From = time.Now()
	text := drawn.Kind
	if drawn.Worker != "" {
		text = drawn.Worker + " " + text
	}
	say("fault: %s %s (%v)", drawn.Target, text, drawn.length.Round(10*time.Millisecond))
	f.mu.Lock()
	f.incidents = append(f.incidents, &drawn.incident)
	f.mu.Unlock()
	drawn.begin()
}

func (f *faults) end(drawn *fault) {
	drawn.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	drawn.Upto = time.Now()
}

// draw draws the next fault.
func (f *faults) draw() fault {
	switch drawn := f.r.intN(100); {
	case drawn < 35:
		return f.ofWorker()
	case drawn < 52:
		return f.ofRedis()
	case drawn < 66:
		return f.ofNATS()
	case drawn < 80:
		return f.ofWay([]target{onRedis, onNATS, toSlack}[f.r.intN(3)])
	default:
		return fault{
			incident: incident{Target: onSlack, Kind: "answers roughly"}, length: f.r.between(2*time.Second, 10*time.Second),
			begin: func() { f.d.answers.setRough(true) }, end: func() { f.d.answers.setRough(false) },
		}
	}
}

func (f *faults) ofWorker() fault {
	w := f.d.workers[f.r.intN(len(f.d.workers))]
	drawn := fault{incident: incident{Target: onWorker, Worker: w.name}, length: f.r.between(0, 4*time.Second)}
	switch f.r.intN(5) {
	case 0, 1:
		drawn.Kind, drawn.begin, drawn.end = "kill -9", w.kill, func() { f.d.startWorker(w) }
	case 2, 3:
		drawn.Kind = "SIGSTOP"
		drawn.length = f.r.between(200*time.Millisecond, 3*ackWait)
		drawn.begin, drawn.end = func() { w.signal(syscall.SIGSTOP) }, func() { w.signal(syscall.SIGCONT) }
	default:
		drawn.Kind, drawn.begin, drawn.end = "SIGTERM", func() { f.d.stopWorker(w) }, func() { f.d.startWorker(w) }
	}
	return drawn
}

func (f *faults) ofRedis() fault {
	redis := f.d.redis
	drawn := fault{incident: incident{Target: onRedis}, end: func() {}}
	switch f.r.intN(6) {
	case 0, 1:
		drawn.Kind, drawn.Loses, drawn.length = "kill -9", true, f.r.between(0, 5*time.Second)
		drawn.begin, drawn.end = redis.Kill, redis.Restart
	case 2, 3:
		drawn.Kind, drawn.length = "SIGSTOP", f.r.between(100*time.Millisecond, 5*time.Second)
		drawn.begin, drawn.end = redis.Pause, redis.Resume
	case 4:
		drawn.Kind, drawn.begin = "SCRIPT FLUSH", func() { redis.CLI("SCRIPT", "FLUSH") }
	default:
		drawn.Kind, drawn.begin = "FUNCTION FLUSH", func() {
			if servertest.HasFunctions(f.d.t) {
				redis.CLI("FUNCTION", "FLUSH")
			}
		}
	}
	return drawn
}

func (f *faults) ofNATS() fault {
	drawn := fault{incident: incident{Target: onNATS}, end: func() {}}
	switch f.r.intN(5) {
	case 0, 1:
		drawn.Kind, drawn.length = "kill -9", f.r.between(0, 5*time.Second)
		drawn.begin, drawn.end = f.d.nats.Kill, f.d.nats.Restart
	case 2, 3:
		drawn.Kind, drawn.length = "SIGSTOP", f.r.between(100*time.Millisecond, 6*time.Second)
		drawn.begin, drawn.end = f.d.nats.Pause, f.d.nats.Resume
	default:
		number := f.r.intN(1000)
		drawn.Kind, drawn.begin = "consumer deleted", func() { f.deleteConsumer(number) }
	}
	return drawn
}

// deleteConsumer deletes the consumer of the producers' stream, or one of the room.
func (f *faults) deleteConsumer(drawn int) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	stream, name, err := streamName, consumerName, error(nil)
	if drawn >= 400 {
		stream = roomName
		name, err = f.consumerOfRoom(ctx, drawn)
	}
	if err == nil {
		err = f.d.js.DeleteConsumer(ctx, stream, name)
	}
	if err != nil {
		say("  (%v)", err) // NATS may be down because of another fault
	}
}

func (f *faults) consumerOfRoom(ctx context.Context, drawn int) (string, error) {
	stream, err := f.d.js.Stream(ctx, roomName)
	if err != nil {
		return "", err
	}
	var names []string
	listed := stream.ConsumerNames(ctx)
	for name := range listed.Name() {
		names = append(names, name)
	}
	if err := listed.Err(); err != nil {
		return "", fmt.Errorf("list the consumers of the room: %w", err)
	}
	if len(names) == 0 {
		return "", errors.New("the room has no consumer")
	}
	slices.Sort(names)
	return names[drawn%len(names)], nil
}

// ofWay is a fault of the network to a server.
func (f *faults) ofWay(to target) fault {
	proxies := map[target]*servertest.Proxy{onRedis: f.d.toRedis, onNATS: f.d.toNATS, toSlack: f.d.toSlack}
	p := proxies[to]
	drawn := fault{incident: incident{Target: to}, length: f.r.between(200*time.Millisecond, 4*time.Second), end: func() {}}
	switch f.r.intN(5) {
	case 0:
		drawn.Kind, drawn.length, drawn.begin = "connections cut", 0, p.Cut
	case 1:
		drawn.Kind = "connections cut and refused"
		drawn.begin, drawn.end = func() { p.Refuse(true) }, func() { p.Refuse(false) }
	case 2:
		// A reply lost within a connection never arrives, so the connection is cut at the end.
		drawn.Kind = "replies lost"
		drawn.begin, drawn.end = func() { p.DropReplies(true) }, func() { p.Cut(); p.DropReplies(false) }
	case 3:
		drawn.Kind, drawn.length = "one reply lost", 500*time.Millisecond
		drawn.begin, drawn.end = func() { p.CutAfterRequest("") }, p.Cut
	default:
		delay := f.r.between(20*time.Millisecond, 300*time.Millisecond)
		drawn.Kind = "slow by " + delay.String()
		drawn.begin, drawn.end = func() { p.Delay(delay) }, func() { p.Delay(0) }
	}
	return drawn
}
