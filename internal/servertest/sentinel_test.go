package servertest_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := servertest.StartSentinel(t)
	primary := s.Primary()
	if role := primary.CLI("ROLE"); !strings.HasPrefix(role, "master\n") || len(s.Addrs) != 3 || s.Failovers() != 0 {
		t.Fatalf("%d sentinels, %d failovers, the primary's role is %q", len(s.Addrs), s.Failovers(), role)
	}
	primary.CLI("SET", "kept", "1")
	s.AwaitReplicas()
	s.CutReplicas()
	primary.CLI("SET", "lost", "1")
	if killed := s.KillPrimary(); killed != primary {
		t.Fatalf("killed %s, want %s", killed.Addr, primary.Addr)
	}

	next := s.AwaitFailover(primary)
	if next == primary || s.Primary() != next || s.Failovers() != 1 {
		t.Errorf("after %d failovers the primary is %s, it was %s", s.Failovers(), s.Primary().Addr, primary.Addr)
	}
	if kept, lost := next.CLI("GET", "kept"), next.CLI("GET", "lost"); kept != "1" || lost != "(nil)" {
		t.Errorf("what the replicas had is %q, what they had not is %q", kept, lost)
	}
	testkit.Equal(t, next.CLI("SET", "new", "1"), "OK", "a write is answered with")
}

func TestRestartLoading(t *testing.T) {
	t.Parallel()
	r := servertest.StartRedis(t)
	r.CLI("SET", "key", "value")
	r.RestartLoading()
	requireError(t, r, "LOADING ", "GET", "key")
	r.EndLoading()
	testkit.Equal(t, r.CLI("GET", "key"), "value", "key")
}
