package throttle

import (
	"testing"
)

// Passed counts what was skipped between two positions once, also where the reply to a call is lost and the call made again.
func TestPassed(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	r := newRedis(client, "passed", scriptSettings(t))
	for _, step := range []struct {
		name                 string
		nonce                int64
		sequence, deliveries uint64
		want                 int64
	}{
		{"the first position", 1, 100, 50, 0},
		{"each message delivered", 2, 110, 60, 0},
		{"seven skipped", 3, 120, 63, 7},
		{"the same call again", 3, 120, 63, 7},
		{"the same position of another instance", 4, 120, 63, 0},
		{"a position before that", 5, 115, 62, 0},
		{"redeliveries hide what was skipped", 6, 125, 75, 0},
		{"four skipped", 7, 130, 76, 4},
	} {
		got, err := r.passedOnce(t.Context(), step.nonce, "consumer", step.sequence, step.deliveries)
		if err != nil || got != step.want {
			t.Errorf("%s: %d, %v, want %d", step.name, got, err, step.want)
		}
	}
	if vanished, err := r.Passed(t.Context(), "another", 5, 1); err != nil || vanished != 0 {
		t.Errorf("another consumer: %d, %v", vanished, err)
	}
}
