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

	text   string // the value that the environment or a file sets; the default without one
	file   string // that the text was read from
	given  bool   // set, even to an invalid value
	faulty bool   // its field holds the zero value and must not be used
}

// Decode keeps the text of a variable that is set. An empty one counts as not set. Decode never fails, since envconfig stops
// at the first error.
func (s *setting) Decode(text string) error {
	s.text, s.given = text, text != ""
	return nil
}

// loader fills a Config and finds everything that is wrong with the settings.
type loader struct {
	config Config
	all    []*setting // in the order of the fields
	faults Faults
	ending []string // warnings of certificates
}

func newLoader() *loader {
	l := new(loader)
	l.all = gather(prefix, reflect.ValueOf(&l.config).Elem())
	return l
}

// gather returns the settings of a group.
func gather(prefix string, group reflect.Value) (all []*setting) {
	for i := range group.NumField() {
		field, tags := group.Field(i), group.Type().Field(i).Tag
		name := prefix
		if env := tags.Get("env"); env != "" {
			name += "_" + env
		}
		parse, isSetting := forms[tags.Get("form")]
		switch {
		case isSetting:
			all = append(all, &setting{
				Setting: Setting{name, tags.Get("default"), tags.Get("desc"), tags.Get("secret") == "true"}, field: field, parse: parse,
				shared: tags.Get("shared") == "true",
			})
		case field.Kind() == reflect.Struct:
			all = append(all, gather(name, field)...)
		}
	}
	return all
}

// of returns the setting whose field a pointer points to.
func (l *loader) of(pointer any) *setting {
	return l.all[slices.IndexFunc(l.all, func(s *setting) bool { return s.field.Addr().Interface() == pointer })]
}

// read fills the Config from the environment.
func (l *loader) read() {
	// envconfig wants a struct: its fields are the settings, named like their variables.
	fields := make([]reflect.StructField, len(l.all))
	for i, s := range l.all {
		fields[i] = reflect.StructField{Name: s.Variable, Type: reflect.TypeOf(s)}
	}
	variables := reflect.New(reflect.StructOf(fields))
	for i, s := range l.all {
		variables.Elem().Field(i).Set(reflect.ValueOf(s))
	}
	if err := envconfig.Process("", variables.Interface()); err != nil {
		panic(fmt.Sprintf("config: the settings cannot be read at all: %v", err))
	}
	for _, s := range l.all {
		l.readFile(s)
		l.parse(s)
	}
	c := &l.config
	c.NATS.URLSet, c.Redis.URLSet = l.of(&c.NATS.URL).given, l.of(&c.Redis.URL).given
	c.HTTP.AddrSet, c.Page.AddrSet, c.Ingest.AddrSet = l.of(&c.HTTP.Addr).given, l.of(&c.Page.Addr).given, l.of(&c.Ingest.Addr).given
	for _, field := range []any{&c.Limits.Global, &c.Limits.Category, &c.Limits.Rules, &c.Limits.Guarantees} {
		c.Limits.Set = c.Limits.Set || l.of(field).given
	}
	c.Limits.origins = l.origins()
}

// readFile takes the text of a secret from its file, where one is named.
func (l *loader) readFile(s *setting) {
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
		l.faults = append(l.faults, Fault{s.Variable + fileSuffix, shown(path), err.Error()})
	}
}

// parse fills the field of a setting that is set or has a default.
func (l *loader) parse(s *setting) {
	if !s.given {
		s.text = s.Default
	}
	if s.text == "" {
		return
	}
	value, err := s.parse(s.text)
	if err != nil {
		s.faulty = true
		l.addError(s, err)
		return
	}
	s.field.Set(reflect.ValueOf(value))
}

func (l *loader) origins() map[string]limits.Origin {
	origins := make(map[string]limits.Origin)
	for level, limit := range map[string]*limits.Limits{limits.LevelGlobal: &l.config.Limits.Global, limits.LevelCategory: &l.config.Limits.Category} {
		origins[level] = limits.FromDefault
		if l.of(limit).given {
			origins[level] = limits.FromEnvironment
		}
	}
	for _, rule := range l.config.Limits.Rules {
		origins[rule.Level()] = limits.FromEnvironment
	}
	return origins
}

// add notes a fault of a setting, on one line. The fault names the variable that was set.
func (l *loader) add(s *setting, format string, args ...any) {
	fault := Fault{s.Variable, s.shown(), strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")}
	if fault.Value == mask {
		fault.Problem = quotedText.ReplaceAllString(fault.Problem, mask) // it may quote the secret
	}
	if s.file != "" {
		fault.Variable, fault.Value = s.Variable+fileSuffix, shown(s.file)
	}
	if !slices.Contains(l.faults, fault) { // two empty entries of a list have the same fault
		l.faults = append(l.faults, fault)
	}
}

// addError records an error about a setting's value. Each error of a joined error becomes one fault.
func (l *loader) addError(s *setting, err error) {
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	for _, problem := range problems {
		l.add(s, "%v", problem)
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
	table := make([]Setting, len(l.all))
	for i, s := range l.all {
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

// unknown returns a fault for each variable that has the prefix, in letters of any case, and is no setting. The fault hides the value, which may be a
// secret under a misspelt name.
func unknown(all []*setting) (faults []Fault) {
	var known []string
	for _, s := range all {
		known = append(known, s.Variable)
		if s.Secret {
			known = append(known, s.Variable+fileSuffix)
		}
	}
	for _, variable := range slices.Sorted(slices.Values(os.Environ())) {
		name, value, _ := strings.Cut(variable, "=")
		upper := strings.ToUpper(name)
		if !strings.HasPrefix(upper, prefix+"_") || value == "" || slices.Contains(known, name) || serviceLinks.MatchString(variable) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return levenshtein.Distance(upper, a, nil) - levenshtein.Distance(upper, b, nil)
		})
		faults = append(faults, Fault{name, mask, "no such setting; expected perhaps " + nearest})
	}
	return faults
}
