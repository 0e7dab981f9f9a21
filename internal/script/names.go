package script

import (
	"context"
	"strings"
)

// globs are the characters that a pattern of SCAN does not take as they are.
var globs = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// scanned is how many keys one step of SCAN looks at.
const scanned = 1000

// Names lists the names of the deployment's keys, without the prefix. It needs the right to SCAN, which workers do not have. With
// an error it returns the names that it found before.
func (r *Runner) Names(ctx context.Context, tried string) ([]string, error) {
	node, err := owner(ctx, r.o.Client, r.Key("calls"))
	if err != nil {
		return nil, classify(tried, err)
	}
	var names []string
	keys := node.Scan(ctx, 0, globs.Replace(r.prefix)+"*", scanned).Iterator()
	for keys.Next(ctx) {
		names = append(names, strings.TrimPrefix(keys.Val(), r.prefix))
	}
	return names, classify(tried, keys.Err())
}
