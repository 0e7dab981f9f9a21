//go:build nodev

package main

import "github.com/spf13/cobra"

// addDevCommand adds nothing, and no help speaks of dev: this binary is built for production.
func addDevCommand(*cobra.Command) {}
