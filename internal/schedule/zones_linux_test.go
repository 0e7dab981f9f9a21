package schedule

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestWithoutZones parses schedules in a process whose root directory is empty: it has no time zone database.
func TestWithoutZones(t *testing.T) {
	const rootOf, skipped = "NOTIFIER_TEST_ROOT", 3
	if root := os.Getenv(rootOf); root != "" {
		if err := syscall.Chroot(root); err != nil {
			os.Exit(skipped)
		}
		testkit.Equal(t, testkit.Must(Parse("Tue 02:00-04:00 UTC"))(t).String(), "Tue 02:00-04:00 UTC", "schedule")
		if _, err := Parse("Tue 02:00-04:00 Europe/Madrid"); err == nil || !strings.Contains(err.Error(), "no time zone database") {
			t.Errorf("got the error %v, want one that names the missing database", err)
		}
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = []string{rootOf + "=" + t.TempDir()} // and neither ZONEINFO nor GOROOT
	if os.Geteuid() != 0 {                           // a namespace in which this user may change its root
		child.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
	}
	output, err := child.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || child.ProcessState != nil && child.ProcessState.ExitCode() == skipped {
		t.Skip("this user may not change the root directory of a process")
	}
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
