package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/limits"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// operatorLines are the command lines that operators run, except check, which tries the rights of a worker.
var operatorLines = []string{
	"limits", "limits payments.refunds", "limits payments.refunds@db-1", "limits history",
	"limits set payments 5/1h", "limits set payments 6/1h --shadow", "limits unset payments", "limits rollback 1", "limits adopt --yes",
	"mute payments --for 2h --reason upgrade", "mutes", "unmute payments",
	"delayed list payments", "delayed release payments.refunds evt-5 --yes", "delayed drop payments.refunds evt-6 --yes",
	"why evt-4711", "why evt-4", "why payments.refunds",
}

// The user notifier-operator of the sample has the rights for the commands of operators, and none that they do not use.
func TestOperatorRedisUser(t *testing.T) {
	natsServer, redisServer := limitsServers(t, map[string]string{
		"SINK": "console", "CATEGORY_LIMIT": "1/1h+fixed:1/1h+counter:1/1h+token:1/1h+leaky:1/1h+inflight:1/1h", "LIMITS": "*@key=5/1h",
	})
	k := newWhyKitOf(t, natsServer, redisServer)
	admit(t, "payments.refunds", 1)
	k.note(k.drop())
	k.wait(room.Pair, "evt-4", `{"title": "over", "status": "resolved", "key": "db-1"}`, time.Now().Add(time.Hour))
	for _, id := range []string{"evt-5", "evt-6"} {
		k.wait(room.Slot, id, `{"title": "waits"}`, time.Now().Add(time.Hour))
	}

	var user []string
	for line := range strings.Lines(testkit.Text(t, "../../configs/redis/users.acl")) {
		if words := strings.Fields(line)[1:]; words[0] == "notifier-operator" {
			user = words
		}
	}
	redisServer.CLI(append([]string{"acl", "setuser"}, user...)...)
	t.Setenv("NOTIFIER_REDIS_URL", "redis://notifier-operator:change-me@"+redisServer.Addr+"/0")
	redisServer.CLI("config", "resetstat")
	for _, line := range operatorLines {
		if line == "limits adopt --yes" {
			inForce(t, redisServer, limits.Position{Generation: 1 << 50, Revision: 7})
		}
		_, _, err := execute(t.Context(), "", strings.Split(line, " ")...)
		testkit.NoError(t, err)
	}
	output, _, _ := execute(t.Context(), "", "status", "--json") // fails without a worker
	testkit.Contains(t, "status", output, `"version":"`)

	stats := redisServer.CLI("info", "commandstats")
	used := commandsOf(stats, `cmdstat_(\S+):calls=[1-9]`)
	used = slices.DeleteFunc(used, func(command string) bool { return strings.HasPrefix(command, "config") })
	rights := commandsOf(strings.Join(user, "\n"), `(?m)^\+(\S+)$`)
	rights = slices.DeleteFunc(rights, func(command string) bool { return command == "select" }) // this URL has the database 0
	testkit.EqualSlices(t, rights, used, "rights of the user, and the commands that were called")
	testkit.EqualSlices(t, commandsOf(stats, `cmdstat_(\S+):\S*,rejected_calls=[1-9]`), []string{"scan"}, "optional commands that were refused")
}

// commandsOf returns the sorted matches of the group of a pattern.
func commandsOf(text, pattern string) (commands []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		commands = append(commands, match[1])
	}
	slices.Sort(commands)
	return commands
}
