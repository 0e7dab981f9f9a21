// Command mutants plants each bug of its table in the code, one at a time, and sees that a test finds it: `make mutants`.
// Arguments name some of the bugs.
//
// A bug counts as caught if the code compiles with it, and if its test passes without it and fails with it. The source
// files keep their content: the go command reads changed copies through an overlay. The overlay reaches embedded files
// too, and GOFLAGS hands it to the programs that a test builds.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// errNotCaught is the error if the report has another verdict than caught.
var errNotCaught = errors.New("not every bug was caught")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, ".", table(), os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutants: %v\n", err)
		os.Exit(1)
	}
}

// run tries those of the mutants that are named, or all of them.
func run(ctx context.Context, root string, mutants []mutant, names []string) error {
	chosen, err := choose(mutants, names)
	if err != nil {
		return err
	}
	r, err := newRunner(root)
	if err != nil {
		return err
	}
	return errors.Join(r.tryAll(ctx, chosen, os.Stdout, os.Stderr), r.close())
}

// choose returns the mutants of these names in their order, or all mutants where there is no name.
func choose(mutants []mutant, names []string) ([]mutant, error) {
	if len(names) == 0 {
		return mutants, nil
	}
	byName := make(map[string]mutant, len(mutants))
	for _, m := range mutants {
		byName[m.name] = m
	}
	chosen := make([]mutant, len(names))
	for i, name := range names {
		m, known := byName[name]
		if !known {
			return nil, fmt.Errorf("the table has no bug %q", name)
		}
		chosen[i] = m
	}
	return chosen, nil
}

// tryAll writes each verdict to progress at once, and all verdicts to report in the end. Progress also gets the last lines
// of the output if the verdict is not caught.
func (r *runner) tryAll(ctx context.Context, mutants []mutant, report, progress io.Writer) error {
	var lines strings.Builder
	count := 0
	for _, m := range mutants {
		began := time.Now()
		verdict, output := r.try(ctx, m)
		if ctx.Err() != nil {
			return fmt.Errorf("trying %s: %w", m.name, context.Cause(ctx))
		}
		_, _ = fmt.Fprintf(progress, "%s: %s\n", m.name, verdict)
		if verdict == caught {
			count++
		} else {
			_, _ = io.WriteString(progress, ending(output))
		}
		fmt.Fprintf(&lines, "%-22s %4.0fs  %-40s %s\n", verdict, time.Since(began).Seconds(), m.name, m.bug)
	}
	_, err := fmt.Fprintf(report, "\n%s%d of %d caught\n", lines.String(), count, len(mutants))
	if err == nil && count < len(mutants) {
		err = errNotCaught
	}
	return err
}

// ending returns the last 20 lines of an output, indented.
func ending(output []byte) string {
	lines := strings.Split(strings.TrimRight(string(output), "\n"), "\n")
	var text strings.Builder
	for _, line := range lines[max(0, len(lines)-20):] {
		text.WriteString("    " + line + "\n")
	}
	return text.String()
}
