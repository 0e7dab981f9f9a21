package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Tue 02:00-04:00 Europe/Paris":                "Tue 02:00-04:00 Europe/Paris",
		" mon-fri,SUN  09:00-17:30   UTC ":            "Mon-Fri,Sun 09:00-17:30 UTC",
		"Sat-Mon 22:00-06:00 America/New_York":        "Mon,Sat-Sun 22:00-06:00 America/New_York",
		"daily 01:00-02:00 Asia/Kolkata":              "daily 01:00-02:00 Asia/Kolkata",
		"Wed,Tue,Tue 12:00-12:01 Australia/Lord_Howe": "Tue-Wed 12:00-12:01 Australia/Lord_Howe",
	} {
		testkit.Equal(t, testkit.Must(Parse(text))(t).String(), want, "schedule %q", text)
	}
	for text, want := range map[string]string{
		"":                              "is not a weekly schedule",
		"Tue 02:00-04:00":               "is not a weekly schedule",
		"Tue 2:00-4:00 UTC":             "is not a weekly schedule",
		"Tuesday 02:00-04:00 UTC":       `"Tuesday" is neither a day nor a range of days`,
		"Tue, 02:00-04:00 UTC":          `"" is neither a day`,
		"Tue 02:00-25:00 UTC":           "25:00 is not a time",
		"Tue 02:60-04:00 UTC":           "02:60 is not a time",
		"Tue 02:00-02:00 UTC":           "is empty; a whole day is 00:00-24:00",
		"Mon-Sun 00:00-24:00 UTC":       "never ends",
		"Tue 24:00-02:00 UTC":           "is empty",
		"Tue 02:00-04:00 Europe/Pariss": `"Europe/Pariss" is not a time zone`,
		"Tue 02:00-04:00 Local":         "is not the same on all machines",
	} {
		_, err := Parse(text)
		testkit.Fails(t, "schedule "+text, err, nil, want)
	}
}

// TestNext has windows around midnight, without a break, and in the nights in which the clock is put forward and back.
func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, schedule, at, begin, end string }{
		{"before", "Tue 02:00-04:00 Europe/Paris", "2026-11-23T12:00:00Z", "2026-11-24T01:00:00Z", "2026-11-24T03:00:00Z"},
		{"at the begin", "Tue 02:00-04:00 Europe/Paris", "2026-11-24T01:00:00Z", "2026-11-24T01:00:00Z", "2026-11-24T03:00:00Z"},
		{"at the end", "Tue 02:00-04:00 Europe/Paris", "2026-11-24T03:00:00Z", "2026-12-01T01:00:00Z", "2026-12-01T03:00:00Z"},
		{"in summer", "Tue 02:00-04:00 Europe/Paris", "2026-07-06T12:00:00Z", "2026-07-07T00:00:00Z", "2026-07-07T02:00:00Z"},
		{"after midnight", "Mon 22:00-06:00 UTC", "2026-11-24T05:59:00Z", "2026-11-23T22:00:00Z", "2026-11-24T06:00:00Z"},
		{"without a break", "Mon-Wed 00:00-24:00 UTC", "2026-11-24T05:00:00Z", "2026-11-23T00:00:00Z", "2026-11-26T00:00:00Z"},
		{"overlapping itself", "Mon,Tue 10:00-09:00 UTC", "2026-11-23T11:00:00Z", "2026-11-23T10:00:00Z", "2026-11-24T09:00:00Z"},
		// 29 March 2026: 02:00 becomes 03:00 in Paris.
		{"begin is skipped", "Sun 02:30-04:00 Europe/Paris", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		{"end is skipped", "Sun 01:00-02:30 Europe/Paris", "2026-03-28T12:00:00Z", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"},
		{"both are skipped", "Sun 02:10-02:50 Europe/Paris", "2026-03-28T12:00:00Z", "2026-04-05T00:10:00Z", "2026-04-05T00:50:00Z"},
		// 25 October 2026: 03:00 becomes 02:00 in Paris.
		{"longer night", "Sun 02:00-04:00 Europe/Paris", "2026-10-24T12:00:00Z", "2026-10-25T00:00:00Z", "2026-10-25T03:00:00Z"},
		{"shown twice", "Sun 02:15-02:45 Europe/Paris", "2026-10-24T12:00:00Z", "2026-10-25T00:15:00Z", "2026-10-25T01:45:00Z"},
		{"between both", "Sun 02:15-02:45 Europe/Paris", "2026-10-25T01:00:00Z", "2026-10-25T00:15:00Z", "2026-10-25T01:45:00Z"},
	} {
		begin, end := testkit.Must(Parse(c.schedule))(t).Next(testkit.Must(time.Parse(time.RFC3339, c.at))(t))
		testkit.Equal(t, begin.UTC().Format(time.RFC3339), c.begin, "%s: begin", c.name)
		testkit.Equal(t, end.UTC().Format(time.RFC3339), c.end, "%s: end", c.name)
	}
}

// TestWithoutZones looks zones up on a host without a time zone database, and on a host with one.
func TestWithoutZones(t *testing.T) {
	t.Parallel()
	without := func(name string) (*time.Location, error) {
		if name == "UTC" {
			return time.UTC, nil
		}
		return nil, errors.New("unknown time zone " + name)
	}
	const noDatabase = "this host has no time zone database"
	testkit.Equal(t, testkit.Must(zoneOf("UTC", without))(t), time.UTC, "zone UTC without a database")
	_, err := zoneOf("Europe/Madrid", without)
	testkit.Fails(t, "a zone without a database", err, nil, noDatabase)
	if _, err := zoneOf("Europe/Nowhere", time.LoadLocation); err == nil || strings.Contains(err.Error(), noDatabase) {
		t.Errorf("an unknown zone: got the error %v, want one without %q", err, noDatabase)
	}
}
