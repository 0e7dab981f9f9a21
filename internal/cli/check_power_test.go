package cli

import (
	"fmt"
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
		{system + "jetstream { sync_interval: always }", "everysec", "+@all", "servers of NATS 1, sync_interval always, appendfsync everysec: row 1, always, everysec of docs/delivery.md"},
		{system, "always", "+@all", "servers of NATS 1, sync_interval 2m0s, appendfsync always: row 1, 2m, always of docs/delivery.md"},
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

// TestRowsOfPower checks that the table of power failures has each row that check names.
func TestRowsOfPower(t *testing.T) {
	t.Parallel()
	page := testkit.Text(t, "../../docs/delivery.md")
	for _, servers := range []string{"1", "2", "3", "5"} {
		for _, interval := range []string{"always", "1s", "10s", "11s", "2m0s", "1h0m0s"} {
			for _, fsync := range []string{"always", "everysec", "no", "none"} {
				named := powerRow(servers, interval, fsync)
				row := strings.Split(strings.TrimPrefix(strings.TrimPrefix(named, "more than "), "row "), ", ")
				if !strings.Contains(page, fmt.Sprintf("\n| %s | `%s` | `%s` |", row[0], row[1], row[2])) {
					t.Errorf("check names %q, which is not in the table", named)
				}
			}
		}
	}
	for _, test := range [][4]string{
		{"1", "2m0s", "none", "more than row 1, 2m, everysec"},
		{"2", "1h0m0s", "always", "more than row 1, 2m, always"},
		{"3", "11s", "everysec", "row 3, 2m, everysec"},
		{"5", "1s", "no", "more than row 3, 10s, everysec"},
		{"3", "always", "always", "row 3, always, always"},
	} {
		testkit.Equal(t, powerRow(test[0], test[1], test[2]), test[3], "%v", test)
	}
}
