package config

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

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

type loader struct {
	Config
	settings []*setting // in the order of the fields
	faults   Faults
}

func newLoader() *loader {
	l := new(loader)
	l.gather(prefix, reflect.ValueOf(&l.Config).Elem())
	return l
}

// gather finds the settings of a group.
func (l *loader) gather(prefix string, group reflect.Value) {
	for i := range group.NumField() {
		field, tags := group.Field(i), group.Type().Field(i).Tag
		name := prefix
		if env := tags.Get("env"); env != "" {
			name += "_" + env
		}
		parse, isSetting := forms[tags.Get("form")]
		switch {
		case isSetting:
			l.settings = append(l.settings, &setting{
				Setting: Setting{name, tags.Get("default"), tags.Get("desc"), tags.Get("secret") == "true"}, field: field, parse: parse,
				shared: tags.Get("shared") == "true",
			})
		case field.Kind() == reflect.Struct:
			l.gather(name, field)
		}
	}
}

// setting returns the setting whose field a pointer points to.
func (l *loader) setting(pointer any) *setting {
	return l.settings[slices.IndexFunc(l.settings, func(s *setting) bool { return s.field.Addr().Interface() == pointer })]
}

// read fills every field.
func (l *loader) read() {
	// envconfig wants a struct: its fields are the settings, named like their variables.
	fields := make([]reflect.StructField, len(l.settings))
	for i, s := range l.settings {
		fields[i] = reflect.StructField{Name: s.Variable, Type: reflect.TypeOf(s)}
	}
	variables := reflect.New(reflect.StructOf(fields))
	for i, s := range l.settings {
		variables.Elem().Field(i).Set(reflect.ValueOf(s))
	}
	if err := envconfig.Process("", variables.Interface()); err != nil {
		panic(fmt.Sprintf("config: the settings cannot be read at all: %v", err))
	}

	for _, s := range l.settings {
		l.readFile(s)
		l.parse(s)
	}
	l.NATS.URLSet = l.setting(&l.NATS.URL).given
	l.Redis.URLSet = l.setting(&l.Redis.URL).given
	l.HTTP.AddrSet = l.setting(&l.HTTP.Addr).given
	l.Page.AddrSet = l.setting(&l.Page.Addr).given
	for _, field := range []any{&l.Limits.Global, &l.Limits.Category, &l.Limits.Rules, &l.Limits.Guarantees} {
		l.Limits.Set = l.Limits.Set || l.setting(field).given
	}
	l.Ingest.AddrSet = l.setting(&l.Ingest.Addr).given
	l.Limits.origins = l.origins()
	l.Config.shared = l.shared()
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
		l.faults = append(l.faults, Fault{s.Variable + fileSuffix, shown(path, false), err.Error()})
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

// origins tells where each rule comes from.
func (l *loader) origins() map[string]limits.Origin {
	origins := make(map[string]limits.Origin)
	for level, limit := range map[string]*limits.Limits{limits.LevelGlobal: &l.Limits.Global, limits.LevelCategory: &l.Limits.Category} {
		origins[level] = limits.FromDefault
		if l.setting(limit).given {
			origins[level] = limits.FromEnvironment
		}
	}
	for _, rule := range l.Limits.Rules {
		origins[rule.Pattern.String()] = limits.FromEnvironment
	}
	return origins
}

// add notes a fault of a setting, on one line. The fault names the variable that was set.
func (l *loader) add(s *setting, format string, args ...any) {
	fault := Fault{s.Variable, shown(s.text, s.Secret), strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")}
	if fault.Value == mask {
		fault.Problem = quotedText.ReplaceAllString(fault.Problem, mask) // it may quote the secret
	}
	if s.file != "" {
		fault.Variable, fault.Value = s.Variable+fileSuffix, shown(s.file, false)
	}
	l.faults = append(l.faults, fault)
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
