//go:build soak

package soak

import (
	"os/exec"
	"syscall"
)

// endWithParent has the system kill a worker when the soak ends without cleaning up.
func endWithParent(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
