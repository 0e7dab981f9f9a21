package servertest_test

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := servertest.StartSentinel(t)
	primary := s.Primary()
	if role := primary.CLI("ROLE"); !strings.HasPrefix(role, "master\n") || len(s.Addrs) != 3 || s.Failovers() != 0 {
		t.Fatalf("got %d sentinels, %d failovers and the role %q, want 3, 0 and master", len(s.Addrs), s.Failovers(), role)
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
		t.Errorf("got %d failovers and the primary %s, want 1 and another than %s", s.Failovers(), s.Primary().Addr, primary.Addr)
	}
	if kept, lost := next.CLI("GET", "kept"), next.CLI("GET", "lost"); kept != "1" || lost != "(nil)" {
		t.Errorf("got the replicated value %q and the other value %q, want 1 and (nil)", kept, lost)
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
