package config

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

const (
	prefix     = "NOTIFIER"
	fileSuffix = "_FILE"
)

// setting is what every variable has, whatever its type. Its first four fields come from the
// name and the tags of its field.
type setting struct {
	name        string
	fallback    string // the default, "" for none
	description string
	secret      bool // also read from the file that <name>_FILE names; never shown

	text   string // as set, in the environment or in a file; else the default
	file   string // that the text was read from
	given  bool   // set, be it well or badly
	faulty bool   // its value must not be used
}

func (s *setting) common() *setting { return s }

// Decode keeps the text for resolve. It never fails, since envconfig stops at the first error.
func (s *setting) Decode(text string) error {
	s.text = text
	return nil
}

// fault reports a problem with the setting's value. It names the variable that was set.
func (s *setting) fault(format string, args ...any) Fault {
	fault := newFault(s.name, shown(s.text, s.secret), fmt.Sprintf(format, args...))
	if s.file != "" {
		fault.Variable, fault.Value = s.name+fileSuffix, shown(s.file, false)
	}
	return fault
}

// faults reports an error about the setting's value; one that joins several is as many faults.
func (s *setting) faults(err error) []Fault {
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	faults := make([]Fault, len(problems))
	for i, problem := range problems {
		faults[i] = s.fault("%v", problem)
	}
	return faults
}

// read settles which text counts: the variable, its file, or the default. A variable that is
// set but empty counts as not set.
func (s *setting) read() []Fault {
	s.given = os.Getenv(s.name) != ""
	if !s.given {
		s.text = s.fallback
	}
	if !s.secret {
		return nil
	}
	path := os.Getenv(s.name + fileSuffix)
	if path == "" {
		return nil
	}
	var err error
	if s.given {
		err = fmt.Errorf("set together with %s; expected one of them", s.name)
	} else {
		s.text, err = readSecret(path)
		s.file = path
	}
	s.given = true
	if err != nil {
		s.faulty = true
		return []Fault{{s.name + fileSuffix, shown(path, false), err.Error()}}
	}
	return nil
}

// A form reads one kind of text. Its errors say what is wrong and what is expected; an error
// that joins several is as many faults. They must not hold the text of a secret.
type form[T any] interface {
	parse(text string) (T, error)
}

// value is a setting of type T, written in form F.
type value[T any, F form[T]] struct {
	setting
	got T // the zero T where the setting is neither given nor has a default
}

func (v *value[T, F]) resolve() []Fault {
	faults := v.read()
	if v.text == "" {
		return faults
	}
	var f F
	got, err := f.parse(v.text)
	if err == nil {
		v.got = got
		return faults
	}
	v.faulty = true
	return append(faults, v.faults(err)...)
}

// anySetting is a value of any type.
type anySetting interface {
	envconfig.Decoder
	common() *setting
	resolve() []Fault
}

// newVariables returns the struct that envconfig fills, and its settings in order.
func newVariables() (*variables, []anySetting) {
	v := new(variables)
	// The names come from envconfig, so that they are those that it reads. It walks the struct
	// in the same order as gather.
	var names strings.Builder
	if err := envconfig.Usagef(prefix, v, &names, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		panic(fmt.Sprintf("config: the settings cannot be listed: %v", err))
	}
	return v, gather(reflect.ValueOf(v).Elem(), strings.Fields(names.String()), nil)
}

func gather(group reflect.Value, names []string, settings []anySetting) []anySetting {
	for i := range group.NumField() {
		found, ok := reflect.TypeAssert[anySetting](group.Field(i).Addr())
		if !ok {
			settings = gather(group.Field(i), names, settings)
			continue
		}
		tags := group.Type().Field(i).Tag
		s := found.common()
		s.name = names[len(settings)]
		s.fallback = tags.Get("default")
		s.description = tags.Get("desc")
		s.secret = tags.Get("secret") == "true"
		settings = append(settings, found)
	}
	return settings
}
