package store

import (
	"slices"
	"sort"
	"time"
)

// timeline gives each call of a memory store its time, and remembers the calls that granted something.
type timeline struct {
	clock func() time.Time
	calls []grantingCall // in the order of their times
}

// grantingCall is a call that granted something.
type grantingCall struct {
	at    int64
	nonce string
}

// now returns a time after every grant, except for grants beyond the tolerance.
func (t *timeline) now() int64 {
	now := t.clock().UnixMicro()
	if newest := t.newest(now + tolerance.Microseconds()); newest > 0 {
		now = max(now, newest+1)
	}
	return now
}

// newest returns the time of the newest call up to a time; 0 if there is none.
func (t *timeline) newest(upto int64) int64 {
	for _, call := range slices.Backward(t.calls) {
		if call.at <= upto {
			return call.at
		}
	}
	return 0
}

// remember notes a call that granted something.
func (t *timeline) remember(now int64, nonce string) {
	upto := now + tolerance.Microseconds()
	t.calls = slices.DeleteFunc(t.calls, func(call grantingCall) bool { return call.nonce == nonce || call.at > upto })
	later := sort.Search(len(t.calls), func(i int) bool { return t.calls[i].at > now }) // a clock may have run ahead a little
	t.calls = slices.Insert(t.calls, later, grantingCall{at: now, nonce: nonce})
}

// forget drops the calls that no answer depends on any more. It keeps the newest call: the clock stays above its time.
func (t *timeline) forget(now int64) {
	upto := now - nonceKept.Microseconds() + 1 // like lib/records.lua: older nonces are forgotten
	if newest := t.newest(now + tolerance.Microseconds()); newest > 0 {
		upto = min(upto, newest)
	}
	kept := sort.Search(len(t.calls), func(i int) bool { return t.calls[i].at >= upto })
	t.calls = t.calls[kept:]
}
