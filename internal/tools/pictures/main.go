// Command pictures draws into docs/limits what each kind of limit admits from the same arrivals: `make docs`. The
// limiter itself decides, by a clock that the command sets, so the pictures are what the code does and always come out
// the same.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// limits are those that are drawn, each into a file of its algorithm's name.
var drawn = []string{"log:10/1m", "counter:10/1m", "fixed:10/1m", "token:10/1m", "leaky:10/1m", "inflight:10/1m"}

func main() {
	if err := write(filepath.Join("docs", "limits")); err != nil {
		fmt.Fprintf(os.Stderr, "pictures: %v\n", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	for _, limit := range drawn {
		name, picture, err := picture(limit)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name), picture, 0o644); err != nil { //nolint:gosec // for all to read
			return err
		}
	}
	return nil
}

// picture is the picture of a limit, and the name of its file.
func picture(limit string) (name string, svg []byte, err error) {
	r, err := replay(limit)
	if err != nil {
		return "", nil, fmt.Errorf("replaying %s: %w", limit, err)
	}
	if svg, err = draw(r); err != nil {
		return "", nil, fmt.Errorf("drawing %s: %w", limit, err)
	}
	return r.limit.Algorithm.String() + ".svg", svg, nil
}
