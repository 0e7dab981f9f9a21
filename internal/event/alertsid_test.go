package event_test

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// TestIsGroup distinguishes groups of alerts from other bodies.
func TestIsGroup(t *testing.T) {
	t.Parallel()
	for _, body := range []string{alertmanager, grafana, " \ufeff" + one(`"status":"firing"`), `{"\u0061lerts":[{},{}]}`} {
		testkit.Equal(t, event.IsGroup([]byte(body)), true, "%s", body)
	}
	for _, body := range []string{
		"", "text", `{"title":"x"}`, `{"alerts":[]}`, `{"alerts":{}}`, `{"alerts":["x"]}`, `[{"alerts":[{}]}]`, `{"specversion":"1.0","data":{"alerts":[{}]}}`,
		`{"specversion":"1.0","id":"1","source":"/a","type":"t","data":{"title":"x"},"alerts":[{}]}`,
	} {
		testkit.Equal(t, event.IsGroup([]byte(body)), false, "%s", body)
	}
}

// TestReadAlert reads alerts by themselves. Their messages decode to the events and the IDs that the whole body gives them.
func TestReadAlert(t *testing.T) {
	t.Parallel()
	d := decoder()
	for _, body := range []string{alertmanager, grafana, `{"receiver":"<r>","alerts":[` + `{"labels":{"alertname":"x"}},{"labels":{"alertname":"y"},"startsAt":"2026-01-02T03:04:05Z"}]}`} {
		var group struct {
			Alerts                []json.RawMessage
			ExternalURL, Receiver string
		}
		testkit.NoError(t, json.Unmarshal([]byte(body), &group))
		parts, _ := d.Parts(message(body))
		if len(group.Alerts) > 1 {
			testkit.Equal(t, d.AlertID(message(body)), "", "identity of one alert of %s", body)
		}
		for i, element := range group.Alerts {
			got, fault := d.ReadAlert(element, cmp.Or(group.ExternalURL, group.Receiver))
			testkit.Require(t, fault == nil, "alert %d of %s: got %v, want no fault", i, body, fault)
			requireNoParts(t, message(string(got.Data)))
			want := testkit.Must(d.Decode(message(body)))(t)
			if len(parts) > 0 {
				want = testkit.Must(d.Decode(inRoom(message(string(parts[i].Data)), parts[i].Room)))(t)
				want.Part = ""
			}
			decoded := testkit.Must(d.Decode(message(string(got.Data))))(t)
			testkit.EqualDeeply(t, decoded, want, "event of %s", got.Data)
			if decoded.Derived {
				decoded.ID = ""
			}
			testkit.Equal(t, got.ID, decoded.ID, "identity of %s", element)
			inEnvelope := `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + string(got.Data) + `}`
			testkit.Equal(t, d.AlertID(withHeader(message(inEnvelope), "Nats-Msg-Id", "h")), got.ID, "identity of %s in a CloudEvent", element)
		}
	}
}

func TestReadAlertFaults(t *testing.T) {
	t.Parallel()
	for element, want := range map[string]struct {
		reason event.Reason
		detail string
	}{
		"{":                             {event.ReasonBadJSON, "not valid JSON"},
		"{\"labels\":{\"a\":\"\xff\"}}": {event.ReasonBadUTF8, "not valid UTF-8"},
		"5":                             {event.ReasonBadField, "an alert must be an object, not 5"},
		"{}":                            {event.ReasonEmpty, "neither title nor text"},
		`{"labels":5}`:                  {event.ReasonBadField, "labels must be"},
		`{"labels":{"alertname":"x"},"values":` + strings.Repeat("[", 9998) + strings.Repeat("]", 9998) + `}`: {event.ReasonBadJSON, "exceeded max depth"},
		`{"labels":{"alertname":"` + strings.Repeat("x", maxBytes) + `"}}`:                                    {event.ReasonTooLarge, "the body has"},
	} {
		alert, fault := decoder().ReadAlert([]byte(element), "source")
		if fault == nil || alert.ID != "" || alert.Data != nil {
			t.Errorf("%.40s: got %.40q, fault %v, want a fault", element, alert.Data, fault)
			continue
		}
		checkFault(t, fault, want.reason, want.detail)
	}
}
