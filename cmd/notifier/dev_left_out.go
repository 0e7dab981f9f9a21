//go:build nodev

package main

import "github.com/spf13/cobra"

// addDevCommand adds nothing: this binary is built for production.
func addDevCommand(*cobra.Command) {}
