//go:build soak

package soak

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	// mostStall and mostOthers do not change the latency of a phase.
	mostStall  = 50 * time.Millisecond
	mostOthers = 0.15
	// longStall is as long as a fault.
	longStall = time.Second
)

// stalls are the times in which a process waited for the processor.
type stalls struct {
	mu    sync.Mutex
	spans []span
}

// span is the time of a stall.
type span struct{ from, upto time.Time }

// measureStalls measures until the test ends.
func measureStalls(t *testing.T) *stalls {
	s := new(stalls)
	go func() {
		const nap = 5 * time.Millisecond
		for t.Context().Err() == nil {
			began := time.Now()
			time.Sleep(nap) // how late the sleep ends is what is measured
			s.note(began.Add(nap), time.Now())
		}
	}()
	return s
}

// note notes a stall that may matter.
func (s *stalls) note(from, upto time.Time) {
	if upto.Sub(from) > mostStall/4 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.spans = append(s.spans, span{from, upto})
	}
}

// longest returns the longest stall that touches a time.
func (s *stalls) longest(from, upto time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.spans {
		if one.from.Before(upto) && from.Before(one.upto) {
			longest = max(longest, one.upto.Sub(one.from))
		}
	}
	return longest
}

// incidents returns the long stalls.
func (s *stalls) incidents() (long []*incident) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.spans {
		if one.upto.Sub(one.from) >= longStall {
			long = append(long, &incident{Target: onMachine, Kind: "stall", From: one.from, Upto: one.upto})
		}
	}
	return long
}

// busy is how much the machine did besides the soak.
type busy struct {
	stall  time.Duration // the longest one
	others float64       // share of the processors' time that others used
}

// matters reports whether the latency of a phase shows the machine.
func (b busy) matters() bool { return b.stall > mostStall || b.others > mostOthers }

func (b busy) worst(other busy) busy {
	return busy{max(b.stall, other.stall), max(b.others, other.others)}
}

func (b busy) String() string {
	return fmt.Sprintf("the machine stalled for %v at most, and others used %.0f%% of it", b.stall.Round(time.Millisecond), 100*b.others)
}

// observe begins to observe the machine. The returned function ends that.
func (s *stalls) observe() func() busy {
	from, before := time.Now(), readTicks()
	return func() busy {
		after := readTicks()
		others := float64(after.others-before.others) / float64(max(1, after.all-before.all))
		return busy{s.longest(from, time.Now()), max(0, others)}
	}
}

// ticks are what the kernel has counted of the processors' time: all of it, and what other processes and other machines of the host used.
type ticks struct{ all, others int64 }

// readTicks reads the times from /proc. The processes of the soak are this one and its children. Without /proc, others use nothing.
func readTicks() (t ticks) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}
	}
	first, _, _ := strings.Cut(string(text), "\n")
	const user, nice, system, steal, guest = 0, 1, 2, 7, 8
	for place, count := range numbers(strings.Fields(first)[1:]) {
		switch place {
		case user, nice, system, steal:
			t.others += count
		}
		if place < guest { // which user has already
			t.all += count
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range processes {
		t.others -= ownTicks(name)
	}
	return t
}

// ownTicks returns the time of a process of the soak, with the time of its children that have ended; of other processes 0.
func ownTicks(name string) int64 {
	text, _ := os.ReadFile(name)                                              // the process may have ended
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // behind the command, which may have blanks
	const parent, first, last = 1, 11, 14
	if len(fields) <= last {
		return 0
	}
	self := strconv.Itoa(os.Getpid())
	if fields[parent] != self && name != "/proc/"+self+"/stat" {
		return 0
	}
	own := int64(0)
	for _, count := range numbers(fields[first : last+1]) {
		own += count
	}
	return own
}

func numbers(words []string) (all []int64) {
	for _, word := range words {
		n, _ := strconv.ParseInt(word, 10, 64) // the kernel writes numbers
		all = append(all, n)
	}
	return all
}

// TestOwnTime counts the time of a child after its end, and nothing of the process that started the test.
func TestOwnTime(t *testing.T) {
	const hertz = 100 // ticks of a second
	of := func(id int) int64 { return ownTicks(fmt.Sprintf("/proc/%d/stat", id)) }
	before := of(os.Getpid())
	child := exec.Command("sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
	testkit.NoError(t, child.Run())
	took := child.ProcessState.UserTime() + child.ProcessState.SystemTime()
	const rounding = 2
	testkit.AtMost(t, int64(took.Seconds()*hertz)-rounding, of(os.Getpid())-before, "ticks of the child")
	testkit.Equal(t, of(os.Getppid()), 0, "ticks of another process")
	now := readTicks()
	testkit.AtMost(t, now.others, now.all, "ticks of others")
}
