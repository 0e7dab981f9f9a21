//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

var (
	wanted, after = parse(os.Getenv("FAILPOINT"))
	reached       atomic.Int64
)

func parse(text string) (Point, int64) {
	name, count, _ := strings.Cut(text, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil {
		n = 1
	}
	return Point(name), n
}

// Reach kills this process if FAILPOINT names the point.
func Reach(point Point) {
	if point != wanted || reached.Add(1) != after {
		return
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // until the signal arrives
}
