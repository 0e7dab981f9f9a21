// Command plainenglish measures how often the sentences of comments and pages have a form that has to be read twice.
//
//	go run ./internal/tools/plainenglish [--hits] [PATH...]
//
// Without a path it measures the areas of the repository. It prints each form's share of the sentences beside its bound, and exits with
// status 1 if a share is above the bound. With paths it measures these files and directories against the bounds of docs. --hits
// lists the sentences that have a form.
//
// A form is a hint: a sentence with such a form may be right, and a sentence without one may be bad.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

var errAboveBound = errors.New("a share is above its bound: --hits lists the sentences")

func main() {
	report, err := run(os.Args[1:], areas)
	fmt.Print(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, "plainenglish:", err)
		os.Exit(1)
	}
}

// run measures the paths of the arguments, or the given areas if no argument is a path. It returns the report.
func run(arguments []string, measured []area) (string, error) {
	flags := flag.NewFlagSet("plainenglish", flag.ContinueOnError)
	hits := flags.Bool("hits", false, "list the sentences that have a form")
	if err := flags.Parse(arguments); err != nil {
		return "", err
	}
	if flags.NArg() > 0 {
		measured = []area{{name: "paths", paths: flags.Args()}}
	}
	var (
		report strings.Builder
		result error
	)
	for _, a := range measured {
		all, err := read(a.paths)
		if err != nil {
			return "", err
		}
		if len(all) == 0 {
			return "", fmt.Errorf("no sentences below %v", a.paths)
		}
		if *hits {
			list(&report, all)
		}
		if !compare(&report, a, all) {
			result = errAboveBound
		}
	}
	return report.String(), result
}

// list prints the sentences that have a form, by form.
func list(out *strings.Builder, all []sentence) {
	for _, form := range forms {
		fmt.Fprintf(out, "\n%s\n", form.name)
		for _, s := range all {
			if form.pattern.MatchString(s.text) {
				fmt.Fprintf(out, "  %s:%d: %s\n", s.file, s.line, s.text)
			}
		}
	}
	out.WriteByte('\n')
}

// compare prints the share of each form beside the highest share among the models. It returns whether no share, rounded to a tenth of a percent, is
// above it.
func compare(out *strings.Builder, a area, all []sentence) bool {
	within := true
	fmt.Fprintf(out, "%s: %d sentences\n%6s  %7s\n", a.name, len(all), "here", "models")
	for _, form := range forms {
		found := 0
		for _, s := range all {
			if form.pattern.MatchString(s.text) {
				found++
			}
		}
		mark := " "
		tenths := (found*1000 + len(all)/2) / len(all)
		if tenths > form.models {
			within, mark = false, "!"
		}
		fmt.Fprintf(out, "%5.1f%% %s%6.1f%%  %s\n", percent(tenths), mark, percent(form.models), form.name)
	}
	return within
}

func percent(tenths int) float64 { return float64(tenths) / 10 }
