package config

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/kelseyhightower/envconfig"

	"github.com/seed-4578ace9/notifier/internal/limits"
)

const (
	prefix     = "NOTIFIER"
	fileSuffix = "_FILE"
)

// setting is one variable, and the field of a Config that it fills.
type setting struct {
	Setting
	field  reflect.Value
	parse  form
	shared bool // all workers must have an equal value

	text   string // the value from the environment or from a file, or the default
	file   string // that the text was read from
	given  bool   // set, be it well or badly
	faulty bool   // its field holds the zero value and must not be used
}

// Decode keeps the text of a variable that is set. An empty one counts as not set. Decode never fails, since envconfig stops
// at the first error.
func (s *setting) Decode(text string) error {
	s.text, s.given = text, text != ""
	return nil
}

// variables are the settings of a process, with everything that is wrong with them.
type variables struct {
	all    []*setting // in the order of the fields
	faults Faults
}

// loader fills a Config and checks the settings against each other.
type loader struct {
	config   Config
	settings variables
}

func newLoader() *loader {
	l := new(loader)
	l.settings.gather(prefix, reflect.ValueOf(&l.config).Elem())
	return l
}

// gather finds the settings of a group.
func (v *variables) gather(prefix string, group reflect.Value) {
	for i := range group.NumField() {
		field, tags := group.Field(i), group.Type().Field(i).Tag
		name := prefix
		if env := tags.Get("env"); env != "" {
			name += "_" + env
		}
		parse, isSetting := forms[tags.Get("form")]
		switch {
		case isSetting:
			v.all = append(v.all, &setting{
				Setting: Setting{name, tags.Get("default"), tags.Get("desc"), tags.Get("secret") == "true"}, field: field, parse: parse,
				shared: tags.Get("shared") == "true",
			})
		case field.Kind() == reflect.Struct:
			v.gather(name, field)
		}
	}
}

// of returns the setting whose field a pointer points to.
func (v *variables) of(pointer any) *setting {
	return v.all[slices.IndexFunc(v.all, func(s *setting) bool { return s.field.Addr().Interface() == pointer })]
}

// read fills every field from the environment.
func (v *variables) read() {
	// envconfig wants a struct: its fields are the settings, named like their variables.
	fields := make([]reflect.StructField, len(v.all))
	for i, s := range v.all {
		fields[i] = reflect.StructField{Name: s.Variable, Type: reflect.TypeOf(s)}
	}
	variables := reflect.New(reflect.StructOf(fields))
	for i, s := range v.all {
		variables.Elem().Field(i).Set(reflect.ValueOf(s))
	}
	if err := envconfig.Process("", variables.Interface()); err != nil {
		panic(fmt.Sprintf("config: the settings cannot be read at all: %v", err))
	}
	for _, s := range v.all {
		v.readFile(s)
		v.parse(s)
	}
}

// read fills the Config.
func (l *loader) read() {
	l.settings.read()
	l.config.NATS.URLSet = l.settings.of(&l.config.NATS.URL).given
	l.config.Redis.URLSet = l.settings.of(&l.config.Redis.URL).given
	l.config.HTTP.AddrSet = l.settings.of(&l.config.HTTP.Addr).given
	l.config.Page.AddrSet = l.settings.of(&l.config.Page.Addr).given
	for _, field := range []any{&l.config.Limits.Global, &l.config.Limits.Category, &l.config.Limits.Rules, &l.config.Limits.Guarantees} {
		l.config.Limits.Set = l.config.Limits.Set || l.settings.of(field).given
	}
	l.config.Ingest.AddrSet = l.settings.of(&l.config.Ingest.Addr).given
	l.config.Limits.origins = l.origins()
}

// readFile takes the text of a secret from its file, where one is named.
func (v *variables) readFile(s *setting) {
	path := os.Getenv(s.Variable + fileSuffix)
	if !s.Secret || path == "" {
		return
	}
	var err error
	if s.given {
		err = fmt.Errorf("set together with %s; expected one of them", s.Variable)
	} else {
		s.text, err = readSecret(path)
		s.file, s.given = path, true
	}
	if err != nil {
		s.faulty = true
		v.faults = append(v.faults, Fault{s.Variable + fileSuffix, shown(path), err.Error()})
	}
}

// parse fills the field of a setting that is set or has a default.
func (v *variables) parse(s *setting) {
	if !s.given {
		s.text = s.Default
	}
	if s.text == "" {
		return
	}
	value, err := s.parse(s.text)
	if err != nil {
		s.faulty = true
		v.addError(s, err)
		return
	}
	s.field.Set(reflect.ValueOf(value))
}

// origins returns where each rule comes from.
func (l *loader) origins() map[string]limits.Origin {
	origins := make(map[string]limits.Origin)
	for level, limit := range map[string]*limits.Limits{limits.LevelGlobal: &l.config.Limits.Global, limits.LevelCategory: &l.config.Limits.Category} {
		origins[level] = limits.FromDefault
		if l.settings.of(limit).given {
			origins[level] = limits.FromEnvironment
		}
	}
	for _, rule := range l.config.Limits.Rules {
		origins[rule.Level()] = limits.FromEnvironment
	}
	return origins
}

// add notes a fault of a setting, on one line. The fault names the variable that was set.
func (v *variables) add(s *setting, format string, args ...any) {
	fault := Fault{s.Variable, s.shown(), strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")}
	if fault.Value == mask {
		fault.Problem = quotedText.ReplaceAllString(fault.Problem, mask) // it may quote the secret
	}
	if s.file != "" {
		fault.Variable, fault.Value = s.Variable+fileSuffix, shown(s.file)
	}
	v.faults = append(v.faults, fault)
}

// addError records an error about a setting's value. Each error of a joined error becomes one fault.
func (v *variables) addError(s *setting, err error) {
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	for _, problem := range problems {
		v.add(s, "%v", problem)
	}
}

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

// serviceLinks matches NAME=value as Kubernetes injects it for every service whose name starts with "notifier", and as Docker's
// links did. A bare …_PORT matches only if the value is a URL: NOTIFIER_HTTP_PORT=8080 is a mistake.
var serviceLinks = regexp.MustCompile(`^NOTIFIER_(?:[A-Z0-9_]+_)?(?:` +
	`SERVICE_HOST=.*` +
	`|SERVICE_PORT(?:_[A-Z0-9_]+)?=[0-9]*` +
	`|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP))?=(?:tcp|udp|sctp)://.*` +
	`|PORT_[0-9]+_(?:TCP|UDP|SCTP)_(?:PROTO|PORT|ADDR)=.*` +
	`)$`)

// checkUnknown adds a fault for each variable that has the prefix and is no setting. The fault hides the value, which may be a
// secret under a misspelt name.
func (v *variables) checkUnknown() {
	var known []string
	for _, s := range v.all {
		known = append(known, s.Variable)
		if s.Secret {
			known = append(known, s.Variable+fileSuffix)
		}
	}
	for _, variable := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, prefix+"_") || value == "" || slices.Contains(known, name) || serviceLinks.MatchString(variable) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return levenshtein.Distance(name, a, nil) - levenshtein.Distance(name, b, nil) })
		v.faults = append(v.faults, Fault{name, mask, "no such setting; expected perhaps " + nearest})
	}
}
