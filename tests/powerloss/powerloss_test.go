//go:build powerloss

package powerloss

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var times = flag.Int("powerloss.times", 50, "how often the power of each deployment fails")

// row is a deployment and the servers whose power fails. An empty setting makes no difference to the row.
type row struct {
	servers      int    // of NATS
	syncInterval string // of nats-server
	appendfsync  string // of redis-server
	fails        fails
}

// fails is the set of servers that lose their power at the same moment.
type fails struct {
	text  string
	nats  int // number of NATS servers
	redis bool
}

func (r row) name() string {
	return strings.Join([]string{fmt.Sprintf("%d of NATS", r.servers), r.syncInterval, r.appendfsync, r.fails.text}, ",")
}

func rows() (all []row) {
	intervals, appendfsyncs := []string{"2m", "10s", "always"}, []string{"everysec", "always"}
	for _, appendfsync := range appendfsyncs {
		all = append(all, row{1, "", appendfsync, fails{"Redis", 0, true}})
	}
	for _, interval := range intervals {
		all = append(all, row{1, interval, "", fails{"NATS", 1, false}})
		for _, appendfsync := range appendfsyncs {
			all = append(all, row{1, interval, appendfsync, fails{"NATS and Redis", 1, true}})
		}
	}
	for _, interval := range intervals {
		all = append(all, row{3, interval, "", fails{"one NATS server", 1, false}}, row{3, interval, "", fails{"two NATS servers", 2, false}})
		for _, appendfsync := range appendfsyncs {
			all = append(all, row{3, interval, appendfsync, fails{"all NATS servers and Redis", 3, true}})
		}
	}
	return all
}

// losesNothing reports whether docs/delivery.md promises that the power failures of the row lose nothing that NATS has acknowledged: NATS keeps its
// power, one of three servers fails, or a single server syncs each write.
func (r row) losesNothing() bool {
	return r.fails.nats == 0 || r.servers == 3 && r.fails.nats == 1 || r.servers == 1 && r.syncInterval == "always"
}

// result is the cost of the failures of one row.
type result struct {
	times                int
	events, lost         int // acknowledged by NATS; with neither a post nor a dead letter
	twice                int // posts of an event beyond its first
	admissions, above    int // of events with limits; beyond the limits
	limits, limitsLost   int // set by the operator
	letters, lettersLost int // events that Slack rejected
	adopted              int // failures after which workers waited for an operator to adopt older limits
	unsettled            int // failures after which work was left, or a stream was without a leader, when drainPatience was over
}

func (r *result) add(other result) {
	r.times += other.times
	r.events, r.lost = r.events+other.events, r.lost+other.lost
	r.twice += other.twice
	r.admissions, r.above = r.admissions+other.admissions, r.above+other.above
	r.limits, r.limitsLost = r.limits+other.limits, r.limitsLost+other.limitsLost
	r.letters, r.lettersLost = r.letters+other.letters, r.lettersLost+other.lettersLost
	r.adopted += other.adopted
	r.unsettled += other.unsettled
}

func (r *result) String() string {
	return fmt.Sprintf("%d | %d of %d | %d | %d of %d | %d of %d | %d of %d | %d | %d",
		r.times, r.lost, r.events, r.twice, r.above, r.admissions, r.limitsLost, r.limits, r.lettersLost, r.letters, r.adopted, r.unsettled)
}

// program is the built program. TestMain sets it, and nothing changes it afterwards.
var program string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "notifier-powerloss-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a folder for the program:", err)
		os.Exit(1)
	}
	program = filepath.Join(folder, "notifier")
	status := 1
	if output, err := exec.Command("go", "build", "-o", program, "../../cmd/notifier").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, output)
	} else {
		status = m.Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(status)
}

func TestPowerLoss(t *testing.T) {
	all := rows()
	results := make([]result, len(all))
	t.Run("rows", func(t *testing.T) {
		for i, r := range all {
			t.Run(r.name(), func(t *testing.T) {
				t.Parallel()
				results[i] = r.measure(t)
			})
		}
	})
	printTable(all, results)
}

var printing sync.Mutex

// say prints a line of progress.
func say(format string, arguments ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Printf(format+"\n", arguments...)
}

// printTable prints the rows that were measured, as docs/delivery.md has them.
func printTable(all []row, results []result) {
	fmt.Print("\n| NATS servers | `sync_interval` | `appendfsync` | power fails on | times | events lost | posted twice | above the limit |" +
		" live limits lost | dead letters lost | waited for `limits adopt` | unsettled |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	orAny := func(setting string) string {
		if setting == "" {
			return "any"
		}
		return "`" + setting + "`"
	}
	for i, r := range all {
		if results[i].times > 0 {
			fmt.Printf("| %d | %s | %s | %s | %v |\n", r.servers, orAny(r.syncInterval), orAny(r.appendfsync), r.fails.text, &results[i])
		}
	}
}
