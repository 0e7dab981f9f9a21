//go:build nodev

package main

import (
	"github.com/spf13/cobra"
)

// rehearsals returns nothing: this binary is built for production, and its help does not name dev and slack-stub.
func rehearsals() []*cobra.Command { return nil }
