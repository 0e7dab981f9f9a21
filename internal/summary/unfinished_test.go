package summary

import (
	"context"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The log has one line about all digests that were cut off. A digest without a post needs no line if its end is recorded.
func TestStopWhileManyArePosted(t *testing.T) {
	const oneLine = "digests=27 dropped=324"
	for name, test := range map[string]struct {
		failure  error // of the posts that are cut off
		endFails int
		want     string
	}{
		"in doubt":                 {context.Canceled, 0, oneLine},
		"in doubt, not recorded":   {context.Canceled, 1000, oneLine},
		"not posted":               {postError{notPosted: true}, 0, ""},
		"not posted, not recorded": {postError{notPosted: true}, 1000, oneLine},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				b := startBench(t, func(ctx context.Context, _ Digest) error {
					<-ctx.Done()
					return test.failure
				}, manyDue(27)...)
				b.store.set(func() { b.store.endFails = test.endFails })
				after(5 * lookEvery)
				testkit.Equal(t, len(b.posts()), 27, "posts under way")
				b.stop()
				if test.want == "" {
					b.log.WantCount(t, 0, "")
					return
				}
				b.log.WantCount(t, 1, "")
				b.log.WantCount(t, 1, test.want)
			})
		})
	}
}
