//go:build histories

package script

import "context"

// markName is the key of the mark in a context.
type markName struct{}

// WithMark has the call of a script store its time under a key of this name. In package lua, the build tag histories adds that to the scripts.
func WithMark(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, markName{}, name)
}

// marked appends the key of the mark, if the context has one.
func (r *Runner) marked(ctx context.Context, keys []string) []string {
	if name, ok := ctx.Value(markName{}).(string); ok {
		return append(keys, r.Key("history:"+name))
	}
	return keys
}
