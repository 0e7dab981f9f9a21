package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/seed-4578ace9/notifier/internal/config"
)

var quoted = regexp.MustCompile(`'([^']*)'`)

// settings returns the table of the settings.
func settings() (string, error) {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, s := range config.Table() {
		value := ""
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		meaning := quoted.ReplaceAllString(s.Description, "`$1`")
		if s.Secret {
			meaning += "; or its file in `" + s.Variable + "_FILE`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Variable, value, meaning)
	}
	return b.String(), nil
}
