package servertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// SentinelMaster is the name under which the sentinels of these tests know the primary.
const SentinelMaster = "notifier"

const (
	sentinels = 3
	replicas  = 2

	// A primary is missed after five seconds, which a busy machine does not take to answer. A failover that does not come
	// about is tried again after twice the timeout; were that shorter, a sentinel that has not heard of the first one yet
	// would begin another.
	sentinelSettings = `
port %s
bind 127.0.0.1
dir %s
sentinel monitor ` + SentinelMaster + ` %s %s 2
sentinel down-after-milliseconds ` + SentinelMaster + ` 5000
sentinel failover-timeout ` + SentinelMaster + ` 5000
sentinel parallel-syncs ` + SentinelMaster + ` 2
`
)

// Sentinel is a primary with two replicas and three sentinels, each in its own process. Its methods are for one goroutine at a time.
type Sentinel struct {
	Addrs []string // of the sentinels

	t         testing.TB
	servers   []*Redis // the primary and its replicas, whichever is which by now
	sentinels []*Redis
}

// StartSentinel starts all six processes, and returns when the replicas have the primary's data and the sentinels know all six processes,
// which takes some two seconds. The arguments go to [StartRedis] for the primary and the replicas. All processes end with the test.
func StartSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	primary := StartRedis(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)
	s := &Sentinel{t: t, servers: []*Redis{primary}}
	host, port := primary.hostAndPort()
	for range replicas {
		s.servers = append(s.servers, StartRedis(t, append([]string{"--replicaof", host, port}, args...)...))
	}
	s.AwaitReplicas()
	for range sentinels {
		s.sentinels = append(s.sentinels, startSentinel(t, primary))
	}
	for _, sentinel := range s.sentinels {
		s.Addrs = append(s.Addrs, sentinel.Addr)
		await(t, "the sentinels to know everybody", func() (done bool, state string) {
			state = sentinel.CLI("INFO", "sentinel")
			return strings.Contains(state, fmt.Sprintf("slaves=%d,sentinels=%d", replicas, sentinels)), state
		})
	}
	return s
}

// startSentinel starts a Redis server as a sentinel. It is killed like any other, and not made to be started again.
func startSentinel(t testing.TB, primary *Redis) *Redis {
	t.Helper()
	s := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", ReservePort(t)), Dir: t.TempDir(), t: t, program: primary.program}
	_, own := s.hostAndPort()
	host, port := primary.hostAndPort()
	file := filepath.Join(s.Dir, "sentinel.conf")
	s.process = startOnPort(t, func() *exec.Cmd {
		// A sentinel keeps its state in its settings.
		testkit.NoError(t, os.WriteFile(file, fmt.Appendf(nil, sentinelSettings, own, s.Dir, host, port), 0o600))
		return exec.Command(s.program, file, "--sentinel")
	}, "+monitor master "+SentinelMaster)
	t.Cleanup(s.Kill)
	return s
}

// Primary is the server that the first sentinel names as the primary, dead or alive.
func (s *Sentinel) Primary() *Redis {
	s.t.Helper()
	return s.named(0)
}

// named returns the server that a sentinel names as the primary.
func (s *Sentinel) named(sentinel int) *Redis {
	s.t.Helper()
	reply := s.sentinels[sentinel].CLI("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
	address := strings.Replace(reply, "\n", ":", 1)
	i := slices.IndexFunc(s.servers, func(r *Redis) bool { return r.Addr == address })
	if i < 0 {
		s.t.Fatalf("ask for the primary: the sentinels name %q, which is none of the servers", address)
	}
	return s.servers[i]
}

// KillPrimary ends the primary with SIGKILL and returns it. Writes that had not reached a replica are lost.
func (s *Sentinel) KillPrimary() *Redis {
	s.t.Helper()
	primary := s.Primary()
	primary.Kill()
	return primary
}

// AwaitFailover returns the new primary once all sentinels agree on it and it takes writes. The new primary differs from old.
func (s *Sentinel) AwaitFailover(old *Redis) *Redis {
	s.t.Helper()
	primary := old
	await(s.t, "a new primary", func() (done bool, state string) {
		for i := range s.sentinels {
			named := s.named(i)
			if named == old || i > 0 && named != primary {
				return false, fmt.Sprintf("a sentinel that names %s", named.Addr)
			}
			primary = named
		}
		state = primary.CLI("ROLE")
		return strings.HasPrefix(state, "master\n"), state
	})
	return primary
}

// Failovers is how many the sentinels have carried out.
func (s *Sentinel) Failovers() int {
	s.t.Helper()
	return testkit.Must(strconv.Atoi(valueAfter(s.sentinels[0].CLI("SENTINEL", "MASTER", SentinelMaster), "config-epoch")))(s.t)
}

// AwaitReplicas returns when all that the primary holds by now has reached every replica.
func (s *Sentinel) AwaitReplicas() {
	s.t.Helper()
	primary := s.servers[0]
	if len(s.sentinels) > 0 {
		primary = s.Primary()
	}
	written := testkit.Must(strconv.Atoi(valueAfter(primary.CLI("ROLE"), "master")))(s.t)
	for _, replica := range s.servers {
		if replica == primary {
			continue
		}
		await(s.t, "a replica to have all that was written", func() (done bool, state string) {
			state = replica.CLI("ROLE")
			have, err := strconv.Atoi(valueAfter(state, "connected"))
			return err == nil && have >= written, state
		})
	}
}

// CutReplicas parts the replicas from the primary for good: what is written from now on reaches none of them.
func (s *Sentinel) CutReplicas() {
	s.t.Helper()
	primary := s.Primary()
	primary.CLI("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
	primary.CLI("CLIENT", "KILL", "TYPE", "replica")
}

// valueAfter is the line behind one.
func valueAfter(text, line string) string {
	lines := strings.Split(text, "\n")
	if i := slices.Index(lines, line); i >= 0 && i+1 < len(lines) {
		return lines[i+1]
	}
	return ""
}
