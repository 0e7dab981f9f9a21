package algorithm

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// Limit allows Count slots in a Window, as its algorithm counts. A Count of 0 blocks.
type Limit struct {
	Count     int64
	Window    time.Duration // whole milliseconds
	Algorithm Algorithm
	Burst     int64 // capacity of the bucket, at most Count; 0: Count. For algorithms with Bursts only
}

// Guarantee is slots of each global window that belong to a path and the paths below it. Events of other paths cannot take them. An event
// belongs to the most specific guarantee on its path.
type Guarantee struct {
	Path  string
	Slots int64
}

// Capacity returns the most slots that can be free at once: the burst if there is one, otherwise the count.
func (l Limit) Capacity() int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// Description returns the row of the limit's algorithm.
func (l Limit) Description() *Description { return l.Algorithm.Description() }

// String formats the limit in the grammar of limits.
func (l Limit) String() string {
	text := strconv.FormatInt(l.Count, 10) + "/" + FormatWindow(l.Window)
	if l.Algorithm != 0 {
		text = l.Algorithm.String() + ":" + text
	}
	if l.Burst > 0 {
		text += ";burst=" + strconv.FormatInt(l.Burst, 10)
	}
	return text
}

// FormatWindow writes a window without the zero parts that time.Duration prints: 30m, not 30m0s.
func FormatWindow(window time.Duration) string {
	var text strings.Builder
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := window / unit.size; n > 0 {
			fmt.Fprintf(&text, "%d%s", n, unit.name)
			window %= unit.size
		}
	}
	return text.String()
}
