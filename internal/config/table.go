package config

import (
	"fmt"
	"regexp"
	"strings"
)

// Setting describes one variable.
type Setting struct {
	Variable    string // its full name
	Default     string // "" for none
	Description string // single quotes enclose literal text
	Secret      bool   // may also be read from the file that <Variable>_FILE names
}

// Table lists every setting, in the order of the manual.
func Table() []Setting {
	l := newLoader()
	table := make([]Setting, len(l.settings.all))
	for i, s := range l.settings.all {
		table[i] = s.Setting
	}
	return table
}

var quoted = regexp.MustCompile(`'([^']*)'`)

// Markdown returns the settings as a table.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n|---|---|---|\n")
	for _, s := range Table() {
		value := ""
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		meaning := quoted.ReplaceAllString(s.Description, "`$1`")
		if s.Secret {
			meaning += "; or its file in `" + s.Variable + fileSuffix + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Variable, value, meaning)
	}
	return b.String()
}
