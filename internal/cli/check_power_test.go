package cli

import (
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// check names the row of the table of power failures, and what the users may not ask for.
func TestCheckOfPower(t *testing.T) {
	const system = `
		accounts {
			SYS { users: [ { user: sys, password: s } ], exports: [ { service: "$SYS.REQ.SERVER.PING.VARZ" } ] }
			A { jetstream: enabled, users: [ { user: u, password: p } ], imports: [ { service: { account: SYS, subject: "$SYS.REQ.SERVER.PING.VARZ" } } ] }
		}
		system_account: SYS
		no_auth_user: u
		`
	for _, test := range []struct {
		nats, redis, right, want string
	}{
		{system + "jetstream { sync_interval: always }", "everysec", "+@all", "servers of NATS 1, sync_interval always, appendfsync everysec; the table"},
		{system, "always", "+@all", "servers of NATS 1, sync_interval 2m0s, appendfsync always; the table"},
		{"", "always", "-config", "servers of NATS 1; unknown: sync_interval (the NATS user may not ask for it), appendfsync (the Redis user may not ask for it); the table"},
		{"", "", "+@all", "servers of NATS 1, appendfsync none; unknown: sync_interval"},
	} {
		arguments := []string{"--appendonly", "yes", "--appendfsync", test.redis}
		if test.redis == "" {
			arguments = nil
		}
		natsServer, redisServer := servertest.StartNATSProcess(t, test.nats), servertest.StartRedis(t, arguments...)
		redisServer.CLI("ACL", "SETUSER", "user", "reset", "on", ">password", "~*", "+@all", test.right)
		testkit.SetSettings(t, map[string]string{
			"SINK": "console", "NATS_URL": natsServer.URL, "REDIS_URL": "redis://user:password@" + redisServer.Addr,
		})
		_, _, err := execute(t.Context(), "", "provision")
		testkit.NoError(t, err)
		out, _, err := execute(t.Context(), "", "check")
		testkit.NoError(t, err)
		if !strings.Contains(out, "ok    power failures: "+test.want) {
			t.Errorf("got\n%s\nwant %q in it", out, test.want)
		}
	}
}
