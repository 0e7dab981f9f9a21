package event_test

import (
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// TestAlertsID gives the same name to the same alerts, and another name to other alerts.
func TestAlertsID(t *testing.T) {
	t.Parallel()
	const (
		one   = `{"status":"firing","labels":{"a":"1"},"startsAt":"2026-01-02T03:04:05Z","fingerprint":"f1"}`
		other = `{"status":"resolved","labels":{"a":"2"},"startsAt":"2026-01-02T03:04:05Z","fingerprint":"f2"}`
		plain = `{"status":"firing","labels":{"a":"1","b":"2"},"startsAt":"2026-01-02T03:04:05Z"}`
	)
	id := func(alerts string) string {
		name, ok := event.AlertsID([]byte(` {"receiver":"x","alerts":[` + alerts + `]}`))
		testkit.Equal(t, ok, true, "%s: is a group", alerts)
		return name
	}
	testkit.Equal(t, id(one), "f1 firing 2026-01-02T03:04:05Z", "the name of one alert")
	testkit.Equal(t, id(one+","+other), id(other+","+one), "the name of a group in another order")
	different := map[string]string{}
	for _, alerts := range []string{
		one, other, plain, one + "," + other, one + "," + one, one + "," + plain,
		`{"status":"resolved","labels":{"a":"1"},"startsAt":"2026-01-02T03:04:05Z","fingerprint":"f1"}`,
		`{"status":"firing","labels":{"a":"1"},"startsAt":"2026-01-02T04:04:05Z","fingerprint":"f1"}`,
		`{"status":"firing","labels":{"a":"1","b":"3"},"startsAt":"2026-01-02T03:04:05Z"}`,
		`{"status":1,"fingerprint":"f1"}`, `{"status":2,"fingerprint":"f1"}`,
	} {
		if same, taken := different[id(alerts)]; taken {
			t.Errorf("name of %s: got that of %s, want another one", alerts, same)
		}
		different[id(alerts)] = alerts
	}
	for _, body := range []string{"", "text", `{"title":"x"}`, `{"alerts":[]}`, `{"alerts":{}}`, `{"alerts":["x"]}`, `[{"alerts":[{}]}]`} {
		if name, ok := event.AlertsID([]byte(body)); ok {
			t.Errorf("name of %s: got %q, want none", body, name)
		}
	}
}
