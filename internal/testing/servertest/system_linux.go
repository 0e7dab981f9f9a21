package servertest

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithParent has the system kill the child when the test binary ends without cleaning up.
func endWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// waitStopped returns when every thread of a child has stopped after a SIGSTOP. It also returns when the child has ended. Before that, some
// threads may still answer.
func waitStopped(pid int) {
	for {
		// WNOWAIT leaves the news to be seen again, for a child that is paused twice.
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
