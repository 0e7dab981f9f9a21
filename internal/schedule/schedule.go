// Package schedule has weekly schedules, such as "Tue 02:00-04:00 Europe/Paris".
//
// A window of a schedule begins when the clock of its zone first shows the begin on a day, and ends when that clock last shows the end. If
// the clock skips one of them, the moment of the skip counts instead. So a window is an hour longer in the night in which the clock goes
// back, and never misses a moment at which the clock shows a time between both. The zones are those of the system, as
// time.LoadLocation finds them. All functions may be called concurrently.
package schedule

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Weekly is a window on some days of every week.
type Weekly struct {
	days       [7]bool // by time.Weekday
	begin, end int     // minutes of the day; an end up to the begin is on the next day
	zone       *time.Location
}

// form is DAYS HH:MM-HH:MM ZONE.
var form = regexp.MustCompile(`^([A-Za-z,-]+)\s+(\d\d:\d\d)-(\d\d:\d\d)\s+(\S+)$`)

// names are the days as Parse reads them, from Monday.
var names = []string{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"}

const daily = "daily"

// Parse reads days, times and a zone. Days are daily, or names and ranges with commas between, such as Mon-Fri,Sun.
func Parse(text string) (Weekly, error) {
	parts := form.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Weekly{}, fmt.Errorf("%.100q is not a weekly schedule: expected days, times and a zone, such as \"Tue 02:00-04:00 Europe/Paris\"", text)
	}
	days, err := parseDays(parts[1])
	if err != nil {
		return Weekly{}, err
	}
	w := Weekly{days: days}
	var faults [2]error
	w.begin, faults[0] = parseTime(parts[2])
	w.end, faults[1] = parseTime(parts[3])
	if err := errors.Join(faults[:]...); err != nil {
		return Weekly{}, err
	}
	if w.begin == w.end || w.begin == fullDay {
		return Weekly{}, fmt.Errorf("%s-%s is empty; a whole day is 00:00-24:00", parts[2], parts[3])
	}
	if w.days == [7]bool{true, true, true, true, true, true, true} && w.begin == 0 && w.end == fullDay {
		return Weekly{}, errors.New("daily 00:00-24:00 never ends")
	}
	if parts[4] == "Local" { // which zone this is depends on the machine
		return Weekly{}, errors.New("the zone Local is not the same on all machines: name it, such as Europe/Paris or UTC")
	}
	w.zone, err = zoneOf(parts[4], time.LoadLocation)
	return w, err
}

// zoneOf returns a zone, which load loads. Without a database [time.LoadLocation] reports every zone but UTC as unknown.
func zoneOf(name string, load func(string) (*time.Location, error)) (*time.Location, error) {
	zone, err := load(name)
	if err == nil {
		return zone, nil
	}
	if _, err := load("Europe/Paris"); err != nil {
		return nil, fmt.Errorf("cannot look up the time zone %.60q: this host has no time zone database: install tzdata (/usr/share/zoneinfo) or set ZONEINFO", name)
	}
	return nil, fmt.Errorf("%.60q is not a time zone: expected a name such as Europe/Paris or UTC", name)
}

func parseDays(text string) (days [7]bool, err error) {
	if strings.EqualFold(text, daily) {
		text = "Mon-Sun"
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, last := dayNumber(from), dayNumber(to)
		if first < 0 || last < 0 {
			return days, fmt.Errorf("%.40q is neither a day nor a range of days: expected Mon, Tue, Wed, Thu, Fri, Sat, Sun, Mon-Fri or daily", part)
		}
		for day := first; ; day = (day + 1) % len(names) {
			days[(day+1)%len(names)] = true // time.Weekday counts from Sunday
			if day == last {
				break
			}
		}
	}
	return days, nil
}

func dayNumber(name string) int {
	return slices.IndexFunc(names, func(day string) bool { return strings.EqualFold(day, name) })
}

const fullDay = 24 * 60

// parseTime returns the minutes of the day.
func parseTime(text string) (int, error) {
	var hours, minutes int
	_, err := fmt.Sscanf(text, "%d:%d", &hours, &minutes)
	if all := 60*hours + minutes; err == nil && minutes < 60 && all <= fullDay {
		return all, nil
	}
	return 0, fmt.Errorf("%s is not a time between 00:00 and 24:00", text)
}

// String returns the schedule in the form that Parse reads, the same for all equal schedules.
func (w Weekly) String() string {
	var days []string
	for i := 0; i < len(names); i++ {
		first := i
		for i < len(names) && w.days[(i+1)%len(names)] {
			i++
		}
		switch last := i - 1; {
		case last == first:
			days = append(days, names[first])
		case last > first:
			days = append(days, names[first]+"-"+names[last])
		}
	}
	text := strings.Join(days, ",")
	if text == "Mon-Sun" {
		text = daily
	}
	return fmt.Sprintf("%s %02d:%02d-%02d:%02d %s", text, w.begin/60, w.begin%60, w.end/60, w.end%60, w.zone)
}

// lookBack is more days than windows can follow one another without a break.
const lookBack = 8

// Next returns the window that contains t or, without one, the next window. Windows that follow one another without a break are one.
func (w Weekly) Next(t time.Time) (begin, end time.Time) {
	for day := -lookBack; ; day++ { // a week has at least one day
		from, to := w.on(t, day)
		switch {
		case !to.After(from): // no window begins on this day
		case from.After(end) && end.After(t):
			return begin, end
		case from.After(end):
			begin, end = from, to
		case to.After(end):
			end = to
		}
	}
}

// on returns the window that begins some days after the day of t; zero times: none begins.
func (w Weekly) on(t time.Time, days int) (begin, end time.Time) {
	year, month, day := t.In(w.zone).Date()
	date := time.Date(year, month, day+days, 0, 0, 0, 0, time.UTC)
	if !w.days[date.Weekday()] {
		return begin, end
	}
	last := w.end
	if last <= w.begin {
		last += fullDay
	}
	begin, _ = w.moments(date.Add(time.Duration(w.begin) * time.Minute))
	_, end = w.moments(date.Add(time.Duration(last) * time.Minute))
	return begin, end
}

// moments returns when the clock of the zone first and last shows a time, which is given as if the zone were UTC. If the clock skips it,
// both are the moment of the skip.
func (w Weekly) moments(shown time.Time) (first, last time.Time) {
	const apart = 24 * time.Hour
	_, before := shown.Add(-apart).In(w.zone).Zone()
	_, after := shown.Add(apart).In(w.zone).Zone()
	first, last = shown.Add(-time.Duration(before)*time.Second).In(w.zone), shown.Add(-time.Duration(after)*time.Second).In(w.zone)
	shows := func(t time.Time) bool { return t.Format(time.DateTime) == shown.Format(time.DateTime) }
	switch isFirst, isLast := shows(first), shows(last); {
	case isFirst && isLast:
	case isFirst:
		last = first
	case isLast:
		first = last
	default:
		first, _ = first.ZoneBounds()
		last = first
	}
	return first, last
}
