package event

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// read takes over the members of a body. The error is a *Fault.
func (e *Event) read(o object, bare bool) error {
	if bare {
		category, err := bodyCategory(o)
		if err != nil {
			return err
		}
		e.Category = category
	}
	id, err := text(o, "id")
	if err != nil {
		return err
	}
	e.identify(id)
	for _, target := range []struct {
		name  string
		value *string
	}{
		{"title", &e.Title}, {"text", &e.Text}, {"source", &e.Source},
	} {
		value, err := text(o, target.name)
		if err != nil {
			return err
		}
		if value != "" {
			*target.value = value
		}
	}
	if err := e.readSeverity(o); err != nil {
		return err
	}
	if err := e.readStatus(o); err != nil {
		return err
	}
	if err := e.readLink(o); err != nil {
		return err
	}
	if err := e.readFields(o); err != nil {
		return err
	}
	if err := e.readTime(o); err != nil {
		return err
	}
	return e.readCost(o)
}

// identify sets the ID unless id is empty or the producer gave one of higher rank before.
func (e *Event) identify(id string) {
	if e.Derived && id != "" {
		e.ID, e.Derived = stableID(id), false
	}
}

func (e *Event) readSeverity(o object) error {
	value, err := text(o, "severity")
	if err != nil || value == "" {
		return err
	}
	switch s := Severity(value); s {
	case SeverityInfo, SeverityWarning, SeverityError, SeverityCritical:
		e.Severity = s
		return nil
	default:
		return badField("severity", "one of info, warning, error and critical", excerpt(value), nil)
	}
}

func (e *Event) readStatus(o object) error {
	status, err := statusOf(o)
	if err != nil {
		return err
	}
	key, err := text(o, "key")
	if err != nil {
		return err
	}
	e.Status, e.Key = status, stableID(key)
	return nil
}

// statusOf returns the status that a body or an alert has, "" if it has none. The error is a *Fault.
func statusOf(o object) (Status, error) {
	value, err := text(o, "status")
	if err != nil || value == "" {
		return "", err
	}
	if s := Status(value); s == StatusFiring || s == StatusResolved {
		return s, nil
	}
	return "", badField("status", "firing or resolved", excerpt(value), nil)
}

func (e *Event) readLink(o object) error {
	value, err := text(o, "link")
	if err != nil || value == "" {
		return err
	}
	if ok, err := isLink(value); !ok {
		return badField("link", "an absolute http or https URL", excerpt(value), err)
	}
	e.Link = value
	return nil
}

// isLink reports whether s is an absolute http or https URL; where it is no URL at all, err says why.
func isLink(s string) (ok bool, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return false, fmt.Errorf("parsing a link: %w", err)
	}
	return (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "", nil
}

func (e *Event) readFields(o object) error {
	fields, err := texts(o, "fields")
	e.Fields = fields
	return err
}

// readTime keeps the time of the envelope where the body has none.
func (e *Event) readTime(o object) error {
	t, err := timeOf(o, "time")
	if !t.IsZero() {
		e.Time = t
	}
	return err
}

// readCost takes any notation of a whole number, so that 10, 10.0 and 1e1 are the same.
func (e *Event) readCost(o object) error {
	value := o.get("cost")
	if value == nil {
		return nil
	}
	cost, err := strconv.ParseFloat(string(value), 64)
	if err != nil || cost < 1 || cost > MaxCost || cost != float64(int(cost)) {
		return badField("cost", fmt.Sprintf("a whole number from 1 to %d", MaxCost), show(value), err)
	}
	e.Cost = int(cost)
	return nil
}

func bodyCategory(o object) (string, error) {
	value := o.get("category")
	switch {
	case value == nil, string(value) == `""`:
		return Default, nil
	case value[0] != '"':
		return "", NewFault(ReasonBadCategory, "category must be a string, not "+show(value), nil)
	default:
		return parseCategory(unquote(value))
	}
}

// parseCategory returns path in lower case if it is a category then. The error is a *Fault.
func parseCategory(path string) (string, error) {
	category := lowerASCII(path)
	if err := ValidatePath(category); err != nil {
		return "", NewFault(ReasonBadCategory, err.Error(), err)
	}
	return category, nil
}

// text returns the string that a member holds, "" if it is absent. The error is a *Fault.
func text(o object, name string) (string, error) {
	value := o.get(name)
	if value == nil {
		return "", nil
	}
	if value[0] != '"' {
		return "", badField(name, "a string", show(value), nil)
	}
	return unquote(value), nil
}

// texts returns the strings that a member, an object, holds: in the body's order; of duplicates
// the last one, at its place. The error is a *Fault.
func texts(o object, name string) ([]Field, error) {
	value := o.get(name)
	if value == nil {
		return nil, nil
	}
	if value[0] != '{' {
		return nil, badField(name, "an object of strings", show(value), nil)
	}
	members := splitObject(value)
	last := make(map[string]int, len(members))
	for i, m := range members {
		last[m.name] = i
	}
	var fields []Field
	for i, m := range members {
		if last[m.name] != i {
			continue
		}
		if m.value[0] != '"' {
			return nil, badField(name+"."+m.name, "a string", show(m.value), nil)
		}
		fields = append(fields, Field{m.name, unquote(m.value)})
	}
	return fields, nil
}

// timeOf returns the time that a member holds, zero if it is absent. The error is a *Fault.
func timeOf(o object, name string) (time.Time, error) {
	value, err := text(o, name)
	if err != nil || value == "" {
		return time.Time{}, err
	}
	t, err := parseTime(value)
	if err != nil {
		return time.Time{}, badField(name, "a time as in RFC 3339", excerpt(value), err)
	}
	return t, nil
}

func badField(name, expected, found string, err error) error {
	if shown := cut(name, maxExcerptBytes); len(shown) < len(name) {
		name = shown + mark
	}
	return NewFault(ReasonBadField, fmt.Sprintf("%s must be %s, not %s", name, expected, found), err)
}

// parseTime reads an RFC 3339 time, whose letters may be in either case and which must be one in
// UTC too: a zone may take it out of the four digits of the year.
func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, strings.ToUpper(s))
	if err != nil {
		return time.Time{}, fmt.Errorf("parsing a time: %w", err)
	}
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}, fmt.Errorf("parsing a time: year %d in UTC", t.Year())
	}
	return t, nil
}
