//go:build nodev

package main

import "github.com/spf13/cobra"

// addRehearsals adds nothing, and no help names dev and slack-stub: this binary is built for production.
func addRehearsals(*cobra.Command) {}
