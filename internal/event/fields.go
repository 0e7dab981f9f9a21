package event

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// read sets the fields of the event from the members of a body. The body names the category if the subject does not.
func (e *Event) read(o object) *Fault {
	r := reader{members: o}
	if e.Category == "" {
		if e.Category = r.category(); r.fault == nil {
			e.Category = cmp.Or(e.Category, Default)
		}
	}
	e.identify(r.text("id"))
	e.Title = r.text("title")
	e.Text = cmp.Or(r.text("text"), e.Text)
	e.Source = cmp.Or(r.text("source"), e.Source)
	e.Severity = cmp.Or(oneOf(&r, "severity", "one of info, warning, error and critical", severities...), e.Severity)
	e.Status = r.status()
	e.Key = stableID(r.text("key"))
	e.Link = r.link()
	e.Links = r.links()
	e.Fields = r.texts("fields")
	if given := r.time("time"); !given.IsZero() {
		e.Time = given
	}
	e.Cost = cmp.Or(r.cost(), e.Cost)
	r.checkResolved(e.Status, e.Key)
	return r.fault
}

// identify sets the ID, unless id is empty or the event already has an ID of higher precedence.
func (e *Event) identify(id string) {
	if e.Derived && id != "" {
		e.ID, e.Derived = stableID(id), false
	}
}

// reader reads the members of an object. It keeps the first fault, and finds no member after a fault.
type reader struct {
	members object
	fault   *Fault
}

func (r *reader) get(name string) []byte {
	if r.fault != nil {
		return nil
	}
	return r.members.get(name)
}

// refuse records that a member has an unexpected value.
func (r *reader) refuse(name, expected, found string) {
	r.fault = NewFault(ReasonBadField, fmt.Sprintf("%s must be %s, not %s", shortened(name, maxExcerptBytes), expected, found))
}

// text returns the string value of a member, "" if the member is absent.
func (r *reader) text(name string) string {
	value := r.get(name)
	if value == nil {
		return ""
	}
	if value[0] != '"' {
		r.refuse(name, "a string", show(value))
		return ""
	}
	return unquote(value)
}

// texts returns the string members of an object, in the body's order; the last value of a duplicate name.
func (r *reader) texts(name string) []Field {
	value := r.get(name)
	if value == nil {
		return nil
	}
	if value[0] != '{' {
		r.refuse(name, "an object of strings", show(value))
		return nil
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
			r.refuse(name+"."+m.name, "a string", show(m.value))
			return nil
		}
		fields = append(fields, Field{strings.Clone(m.name), unquote(m.value)})
	}
	return fields
}

// category returns the category that a body names, "" for none.
func (r *reader) category() string {
	value := r.get("category")
	switch {
	case value == nil, string(value) == `""`:
		return ""
	case value[0] != '"':
		r.fault = NewFault(ReasonBadCategory, "category must be a string, not "+show(value))
		return ""
	}
	var category string
	category, r.fault = parseCategory(unquote(value))
	return category
}

func (r *reader) status() Status {
	return oneOf(r, "status", "firing or resolved", StatusFiring, StatusResolved)
}

// checkResolved rejects a resolved event without a key. Such an event could be the first notification about its subject, because nothing
// connects it to a firing event.
func (r *reader) checkResolved(status Status, key string) {
	if r.fault == nil && status == StatusResolved && key == "" {
		r.fault = NewFault(ReasonBadField, "status resolved needs a key, which names what is resolved")
	}
}

// oneOf returns the text of a member, which must be one of words; "" if the member is absent.
func oneOf[T ~string](r *reader, name, expected string, words ...T) T {
	word := r.text(name)
	if word == "" || slices.Contains(words, T(word)) {
		return T(word)
	}
	r.refuse(name, expected, excerpt(word))
	return ""
}

func (r *reader) link() string {
	value := r.text("link")
	if value != "" {
		r.checkLink("link", value)
	}
	return value
}

// links returns the URLs of an object by their names.
func (r *reader) links() []Field {
	links := r.texts("links")
	for _, l := range links {
		r.checkLink("links."+l.Name, l.Value)
	}
	return links
}

// checkLink rejects the value of a member that is not a link.
func (r *reader) checkLink(name, value string) {
	if !isLink(value) && r.fault == nil {
		r.refuse(name, "an absolute http or https URL", excerpt(value))
	}
}

// isLink reports whether s is an absolute http or https URL.
func isLink(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// time returns the time of a member, the zero time if the member is absent.
func (r *reader) time(name string) time.Time {
	value := r.text(name)
	if value == "" {
		return time.Time{}
	}
	t, ok := parseTime(value)
	if !ok {
		r.refuse(name, "a time as in RFC 3339", excerpt(value))
	}
	return t
}

// cost reads any notation of a whole number, such as 10, 10.0 and 1e1. It returns 0 if the member is absent.
func (r *reader) cost() int {
	value := r.get("cost")
	if value == nil {
		return 0
	}
	cost, err := strconv.ParseFloat(string(value), 64)
	if err != nil || cost < 1 || cost > MaxCost || cost != float64(int(cost)) {
		r.refuse("cost", fmt.Sprintf("a whole number from 1 to %d", MaxCost), show(value))
		return 0
	}
	return int(cost)
}

// parseCategory returns path in lower case if it is a category.
func parseCategory(path string) (string, *Fault) {
	category := lowerASCII(path)
	if err := ValidatePath(category); err != nil {
		return "", NewFault(ReasonBadCategory, err.Error())
	}
	return category, nil
}

// parseTime reads an RFC 3339 time with letters in either case. A leap second, which ends a day in UTC, is read as the second after it. The year
// must have four digits in UTC too.
func parseTime(s string) (t time.Time, ok bool) {
	const begin, end = len("2006-01-02T15:04:"), len("2006-01-02T15:04:05")
	text := strings.ToUpper(s)
	isLeap := len(text) > end && text[begin:end] == "60"
	if isLeap {
		text = text[:begin] + "59" + text[end:]
	}
	t, err := time.Parse(time.RFC3339, text)
	if t = t.UTC(); isLeap {
		t = t.Add(time.Second)
	}
	hour, minute, second := t.Clock()
	if err != nil || t.Year() < 0 || t.Year() > 9999 || isLeap && hour+minute+second > 0 {
		return time.Time{}, false
	}
	return t, true
}
