package servertest_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
)

// TestSentinelFailover wants that a primary that is cut off takes its last write with it.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := servertest.StartSentinel(t)
	primary := s.Primary()
	primary.CLI("SET", "kept", "1")
	s.AwaitReplicas()
	s.CutReplicas()
	primary.CLI("SET", "lost", "1")
	next := s.AwaitFailover(s.KillPrimary())
	if kept, lost := next.CLI("GET", "kept"), next.CLI("GET", "lost"); next == primary || kept != "1" || lost != "(nil)" {
		t.Errorf("got the replicated value %q and the other value %q, want 1 and (nil)", kept, lost)
	}
}
