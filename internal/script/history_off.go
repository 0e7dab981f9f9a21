//go:build !histories

package script

import "context"

// marked returns the keys as they are.
func (r *Runner) marked(_ context.Context, keys []string) []string { return keys }
