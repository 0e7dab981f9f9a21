//go:build soak

package soak

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// calls is the folder in which all processes record their calls to Redis. The build tag histories has them do it.
func (d *deployment) calls() string { return filepath.Join(d.folder, "calls") }

// recordedFor bounds the size of what is recorded: 10 minutes are about 100 MB.
const recordedFor = 30 * time.Minute

// recording returns the variables that name this folder, and the end of the recording.
func (d *deployment) recording() []string {
	return []string{"HISTORY_FOLDER=" + d.calls(), "HISTORY_UNTIL=" + began.Add(recordedFor).Format(time.RFC3339)}
}

var (
	checkedCalls = regexp.MustCompile(`(\d+ (?:answered )?calls (?:were lost|of \d+ processes).*)\n`)
	brokenCalls  = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: .*(?:does not follow|no order|had ended|has never run|panic).*`)
)

// checkCalls wants an order of all calls to Redis in which the in-memory limiter gives the same answers: TestRecordedHistory looks for it.
func (v *verdict) checkCalls() {
	t, folder := v.d.t, v.d.calls()
	until := strconv.FormatInt(began.Add(recordedFor).Truncate(time.Second).UnixMicro(), 10) // later runs may be of calls that are not recorded
	runs := slices.DeleteFunc(v.history.runs, func(run string) bool { return run > until })
	losses := []*incident{}
	for _, i := range v.incidents {
		if i.Loses {
			losses = append(losses, i)
		}
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(folder, "losses.json"), testkit.Must(json.Marshal(losses))(t), 0o600))
	testkit.NoError(t, os.WriteFile(filepath.Join(folder, "runs"), []byte(strings.Join(runs, "\n")+"\n"), 0o600))
	command := exec.CommandContext(t.Context(), "go", "test", "-tags", "histories", "-count=1", "-timeout", "0", "-v",
		"-run", "^TestRecordedHistory$", "../../internal/throttle/store", "-history.from="+folder)
	output, err := command.CombinedOutput()
	var seen, broken []string
	for _, line := range checkedCalls.FindAllStringSubmatch(string(output), -1) {
		seen = append(seen, line[1])
	}
	if err != nil {
		broken = append(brokenCalls.FindAllString(string(output), -1), err.Error())
		testkit.NoError(t, os.WriteFile(filepath.Join(folder, "verdict"), output, 0o600))
	}
	v.add("answers as in memory", len(seen), strings.Join(seen, "; "), broken)
}
