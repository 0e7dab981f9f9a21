package tests

import (
	"os/exec"
	"syscall"
)

// endWithParent has the system kill a process when the test binary ends without cleaning up.
func endWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
