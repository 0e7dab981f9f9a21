//go:build !linux

package servertest

import "os/exec"

// endWithParent does nothing where the system has no signal for it: there a test binary
// that is killed leaves its servers behind.
func endWithParent(*exec.Cmd) {}

// waitStopped does nothing where the system does not report it: there a server may answer for a moment after it was paused.
func waitStopped(int) {}
