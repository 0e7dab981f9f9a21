// Command bounds keeps the types of the product small, and its calls readable.
//
//	go run ./internal/tools/bounds
//
// It prints each place of the product that is above a bound, and exits with status 1 if there is one. Tests, test support and tools have no
// bounds. golangci-lint holds the bounds of functions and files.
package main

import (
	"errors"
	"fmt"
	"os"
)

var errAboveBound = errors.New("the product is above a bound")

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bounds:", err)
		os.Exit(1)
	}
}

func run() error {
	packages, err := load(".")
	if err != nil {
		return err
	}
	found := check(packages)
	for _, line := range found {
		fmt.Println(line)
	}
	if len(found) > 0 {
		return errAboveBound
	}
	return nil
}
