package limits

import (
	"cmp"
	"strings"
	"time"
)

// Use is how full one limit of one path is.
type Use struct {
	Level string `json:"level"` // the rule of the limit, as in metrics
	Path  string `json:"path"`  // "" is the root
	Limit string `json:"limit"` // such as 10/30m
	Used  int64  `json:"used"`
	Size  int64  `json:"size"` // the capacity of the limit
	// Next is when an event that the limit denied finds its slots: if guarantees reserve slots, an event without a guarantee. It is nil unless
	// such a time is known.
	Next *time.Time `json:"next_slot,omitempty"`
}

// UseOf returns the use of a limit of a node, without the time of its next slot.
func UseOf(n Node, l Limit, used int64) Use {
	return Use{Level: n.Level, Path: n.Path, Limit: l.String(), Used: used, Size: l.Capacity()}
}

// Name returns the path, or "global" for the root. The use of one key has "@key" behind its path.
func (u Use) Name() string {
	if strings.HasSuffix(u.Level, eachKey) {
		return u.Path + eachKey
	}
	return cmp.Or(u.Path, LevelGlobal)
}

// Full reports whether no slot is free, other than for guarantees.
func (u Use) Full() bool { return u.Used >= u.Size || u.Next != nil }

// Share is how full the limit is, from 0 to 1. A limit of no slots is full.
func (u Use) Share() float64 {
	if u.Full() {
		return 1
	}
	return float64(u.Used) / float64(u.Size)
}
