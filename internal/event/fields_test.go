package event_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/event"
)

// fullObject has every member. fullEvent is its event.
const fullObject = `{"id":"a-1","title":"Disk full","text":"/var at 99%","severity":"critical","source":"host7",
	"link":"https://example.com/x?y=1#z","fields":{"zone":"b","host":"h7","zone":"c"},
	"time":"2026-03-01T12:00:00.5+02:00","cost":3,"category":"ignored","other":[{"deep":{}}]}`

var fullEvent = event.Event{
	ID: "a-1", Category: "errors", Title: "Disk full", Text: "/var at 99%", Severity: event.SeverityCritical,
	Source: "host7", Link: "https://example.com/x?y=1#z",
	Fields: []event.Field{{Name: "host", Value: "h7"}, {Name: "zone", Value: "c"}},
	Time:   time.Date(2026, 3, 1, 10, 0, 0, 500_000_000, time.UTC), Cost: 3,
}

// bareObjects decode to an event of the text x alone.
var bareObjects = map[string]string{
	"text alone":                `{"text":"x"}`,
	"last duplicate":            `{"text":1,"text":"y","text":"x"}`,
	"last duplicate is null":    `{"severity":"error","text":"x","severity":null}`,
	"escaped name":              `{"t\u0065xt":"x"}`,
	"names in other case":       `{"text":"x","Title":"y","TEXT":"z","Cost":7,"SEVERITY":5}`,
	"empty strings":             `{"id":"","title":"","text":"x","severity":"","source":"","link":"","time":"","category":"","status":"","key":""}`,
	"no fields":                 `{"text":"x","fields":{}}`,
	"info":                      `{"text":"x","severity":"info"}`,
	"cost 1":                    `{"text":"x","cost":1}`,
	"broken category":           `{"text":"x","category":"no, not one"}`,
	"alerts that are no group":  `{"text":"x","alerts":[{},"y"]}`,
	"alerts that are an object": `{"text":"x","alerts":{}}`,
	"no alerts":                 `{"text":"x","alerts":[{}],"alerts":null}`,
	"deepest unknown member":    `{"text":"x","y":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999) + `}`,
	"nulls": `{"id":null,"title":null,"text":"x","severity":null,"source":null,"link":null,"fields":null,
		"time":null,"cost":null,"category":null,"specversion":null,"status":null,"key":null}`,
}

func onDay(year int) changes {
	return func(e *event.Event) { e.Time = time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
}

func withTitle(title string) changes { return func(e *event.Event) { e.Title = title } }
func withKey(key string) changes     { return func(e *event.Event) { e.Key = key } }
func withCost(cost int) changes      { return func(e *event.Event) { e.Cost = cost } }

func withSeverity(severity event.Severity) changes {
	return func(e *event.Event) { e.Severity = severity }
}

func withFields(fields ...event.Field) changes { return func(e *event.Event) { e.Fields = fields } }

// members has members of an object and their changes of the event.
var members = map[string]changes{
	`"title":" \t"`:                                   withTitle(" \t"),
	`"title":"a\ud800b\udc00"`:                        withTitle("a\ufffdb\ufffd"), // lone surrogates
	`"title":"\ud83d\udd25"`:                          withTitle("🔥"),
	`"title":"a\u0000b"`:                              withTitle("a\x00b"),
	`"fields":{"":""}`:                                withFields(event.Field{}),
	`"fields":{"a":1,"b":"2","a":"3"}`:                withFields(event.Field{Name: "b", Value: "2"}, event.Field{Name: "a", Value: "3"}),
	`"severity":"warning"`:                            withSeverity(event.SeverityWarning),
	`"severity":"error"`:                              withSeverity(event.SeverityError),
	`"cost":100`:                                      withCost(100),
	`"cost":1e1`:                                      withCost(10),
	`"cost":2.0`:                                      withCost(2),
	`"time":"1970-01-01T00:00:00Z"`:                   onDay(1970),
	`"time":"2100-01-01T00:00:00Z"`:                   onDay(2100),
	`"time":"2100-01-01t00:00:00z"`:                   onDay(2100),
	`"time":"2016-12-31T23:59:60Z"`:                   onDay(2017),
	`"time":"2016-12-31T18:59:60-05:00"`:              onDay(2017),
	`"link":"HTTP://EXAMPLE.COM"`:                     func(e *event.Event) { e.Link = "HTTP://EXAMPLE.COM" },
	`"links":{"Runbook":"https://r?a=b"}`:             withLinks("Runbook", "https://r?a=b"),
	`"links":{"b":"x","a":"http://a","b":"http://b"}`: withLinks("a", "http://a", "b", "http://b"),
	`"status":"firing","key":"db-1"`:                  func(e *event.Event) { e.Status, e.Key = event.StatusFiring, "db-1" },
	`"st\u0061tus":"r\u0065solved","key":"k"`:         func(e *event.Event) { e.Status, e.Key = event.StatusResolved, "k" },
	`"key":"é 🔥"`:                                     withKey("é 🔥"),
	`"key":"` + strings.Repeat("k", 64) + `"`:         withKey(strings.Repeat("k", 64)),
	`"key":"` + strings.Repeat("k", 65) + `"`:         withKey(event.StableID(strings.Repeat("k", 65))),
	`"key":"a\nb"`:                                    withKey(event.StableID("a\nb")),
}

func TestDecodeObject(t *testing.T) {
	t.Parallel()
	for _, body := range []string{fullObject, " \r\n\t" + fullObject + " \n", "\ufeff" + fullObject, " \ufeff " + fullObject} {
		requireDecoded(t, message(body), fullEvent, body)
	}
	requireDecoded(t, message(`{"title":"x"}`), decoded(withTitle("x")), "title alone")
	for name, body := range bareObjects {
		requireDecoded(t, message(body), decoded(textX), name)
	}
	for member, change := range members {
		requireDecoded(t, message(`{"text":"x",`+member+`}`), decoded(textX, change), member)
	}
}

func textX(e *event.Event) { e.Text = "x" }

// badMembers has bad members of an object by a part of the fault's detail.
var badMembers = map[string][]string{
	"id must be a string, not 7":        {`"id":7`},
	`title must be a string, not ["x"]`: {`"title":["x"]`},
	"title ":                            {`"title":` + strings.Repeat("[", 900) + strings.Repeat("]", 900)},
	"text ":                             {`"text":5`, `"text":{"a":"b"}`, `"text":false`},
	"source ":                           {`"source":1`},
	`severity must be one of info, warning, error and critical, not "fatal"`: {`"severity":"fatal"`},
	"severity ": {`"severity":"ERROR"`, `"severity":3`},
	`status must be firing or resolved, not "ok"`: {`"status":"ok"`},
	"status ":                        {`"status":"Resolved"`},
	"status resolved needs a key":    {`"status":"resolved"`, `"status":"resolved","key":""`},
	"status must be a string, not 1": {`"status":1`},
	"key must be a string, not 7":    {`"key":7`},
	"link ": {
		`"link":"/relative"`, `"link":"//example.com"`, `"link":"javascript:alert(1)"`, `"link":"ftp://example.com"`, `"link":"https://"`,
		`"link":"https://:80/x"`, `"link":"https:example.com"`, `"link":" https://example.com"`, `"link":"https://example.com/\u0000"`, `"link":7`,
	},
	"links must be an object of strings":                                         {`"links":["https://a"]`},
	"links.a must be an absolute http or https URL, not \"javascript:alert(1)\"": {`"links":{"b":"https://b","a":"javascript:alert(1)"}`},
	"fields must be an object of strings, not []":                                {`"fields":[]`},
	"fields.c must be a string, not 1":                                           {`"fields":{"a":"b","c":1}`},
	"fields.c ":                                                                  {`"fields":{"c":null}`, `"fields":{"c":{"d":"e"}}`},
	"fields.a":                                                                   {`"fields":{"a\n\u0000b":1}`},
	"…":                                                                          {`"fields":{"` + strings.Repeat("é", 5_000) + `":1}`},
	`time must be a time as in RFC 3339, not "yesterday"`:                        {`"time":"yesterday"`},
	"time ": {
		`"time":"2026-01-01"`, `"time":"2026-01-01T00:00:00"`, `"time":"2026-01-01 00:00:00Z"`, `"time":"2026-02-30T00:00:00Z"`,
		`"time":"2026-01-01T00:00:60.5.5Z"`, `"time":"2016-12-31T22:59:60Z"`, `"time":"2016-12-31T23:59:61Z"`, `"time":"9999-12-31T23:59:60Z"`, `"time":"9999-12-31T23:59:59-01:00"`, `"time":"0000-01-01T00:00:00+01:00"`, `"time":1767225600`,
	},
	"cost must be a whole number from 1 to 100, not 0": {`"cost":0`},
	"not -1":  {`"cost":-1`},
	"not 1.5": {`"cost":1.5`},
	"not 101": {`"cost":101`},
	`not "3"`: {`"cost":"3"`},
	"cost ":   {`"cost":true`, `"cost":[1]`, `"cost":1e400`, `"cost":1e-400`, `"cost":1` + strings.Repeat("0", 5_000)},
}

func TestDecodeBadMembers(t *testing.T) {
	t.Parallel()
	for detail, members := range badMembers {
		for _, member := range members {
			requireFaults(t, []faulty{{event.ReasonBadField, detail, []string{`{"text":"x",` + member + `}`}}})
		}
	}
}
