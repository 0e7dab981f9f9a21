package tests

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
)

// program is the built program. TestMain sets it, and nothing changes it afterwards.
var program string

// withFailPoints builds the program once more, with its fail points and without the command dev, for the first test that asks.
var withFailPoints = sync.OnceValues(func() (string, error) {
	killable := program + "-failpoints"
	return killable, build(killable, "-tags", "failpoints,nodev")
})

func build(program string, flags ...string) error {
	command := exec.Command("go", append(append([]string{"build", "-ldflags", "-s -w", "-o", program}, flags...), "../cmd/notifier")...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w\n%s", err, output)
	}
	return nil
}

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	folder, err := os.MkdirTemp("", "notifier-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a folder for the program:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }()
	program = filepath.Join(folder, "notifier")
	if err := build(program); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if signal.Ignored(os.Interrupt) { // as in the background of a script, which the workers would inherit
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	servertest.MoreTestsAtOnce(12)
	status := m.Run()
	if status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return status
}
