// Command pictures draws what each algorithm admits from the same arrivals into docs/limits: `make docs`. The limiter itself decides, by
// a clock that the command sets. The pictures therefore show what the code does, and are the same in every run. It also draws the week of
// `notifier simulate --week`.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-4578ace9/notifier/internal/algorithm"
)

// drawn returns the limit in the picture of an algorithm.
func drawn(a algorithm.Algorithm) string { return a.String() + ":10/1m" }

func main() {
	if err := write(filepath.Join("docs", "limits")); err != nil {
		fmt.Fprintf(os.Stderr, "pictures: %v\n", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	for _, a := range algorithm.All() {
		name, picture, err := picture(drawn(a))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name), picture, 0o644); err != nil { //nolint:gosec // for all to read
			return err
		}
	}
	week, err := pictureOfWeek()
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, weekName), week, 0o644) //nolint:gosec // for all to read
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
