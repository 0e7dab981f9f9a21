package config

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
