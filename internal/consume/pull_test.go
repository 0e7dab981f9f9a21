package consume

import (
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestNextDemand(t *testing.T) {
	t.Parallel()
	const ackWait = 32 * time.Second
	for name, test := range map[string]struct {
		demand, received int
		handing          time.Duration
		want             int
	}{
		"all came, and were taken over at once":     {64, 64, 0, 128},
		"all came, and were taken over quickly":     {64, 64, time.Second - 1, 128},
		"all came, and were taken over less so":     {64, 64, time.Second, 64},
		"fewer came":                                {64, 63, 0, 64},
		"none came":                                 {64, 0, 0, 64},
		"they had to wait":                          {64, 64, 4*time.Second + 1, 16},
		"few came and had to wait":                  {256, 3, ackWait, 64},
		"never below the smallest":                  {smallestFetch, smallestFetch, ackWait, smallestFetch},
		"never below the smallest, from just above": {smallestFetch + 1, 1, ackWait, smallestFetch},
		"never above the largest":                   {largestFetch, largestFetch, 0, largestFetch},
		"never above the largest, from just below":  {largestFetch - 1, largestFetch - 1, 0, largestFetch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Equal(t, nextDemand(test.demand, test.received, test.handing, ackWait), test.want, "the next demand")
		})
	}
}
