package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/journal"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// whyAnswer is the output of `notifier why --json`.
type whyAnswer struct {
	Events []struct {
		ID        string
		Category  string
		State     string
		Sentences []string
		Entries   []journal.Entry
	}
	Totals []struct {
		Result string
		Level  string
		Count  int
	}
	Counted []string
	Missing string
	Unknown []string
}

// why runs `notifier why --json`.
func (d *deployment) why(arguments ...string) (answer whyAnswer) {
	d.t.Helper()
	p := run(d.t, d.settings("HTTP_ADDR", "off"), append([]string{"why", "--json"}, arguments...)...)
	if err := json.Unmarshal([]byte(p.stdout.String()), &answer); err != nil {
		d.t.Fatalf("why %s: %v: %s", strings.Join(arguments, " "), err, p.all())
	}
	testkit.EqualSlices(d.t, answer.Unknown, nil, "what could not be asked about %s", strings.Join(arguments, " "))
	return answer
}

// whyAll asks `notifier why` several questions in one call.
func (d *deployment) whyAll(arguments ...string) (answers []whyAnswer) {
	d.t.Helper()
	asking := run(d.t, d.settings("HTTP_ADDR", "off"), append([]string{"why", "--json"}, arguments...)...)
	for decoder := json.NewDecoder(strings.NewReader(asking.stdout.String())); decoder.More(); {
		var answer whyAnswer
		testkit.NoError(d.t, decoder.Decode(&answer))
		testkit.EqualSlices(d.t, answer.Unknown, nil, "what could not be asked")
		answers = append(answers, answer)
	}
	return answers
}

// wantWhy wants an answer about one event, with a state and a text in its sentences.
func (d *deployment) wantWhy(state, says string, arguments ...string) {
	d.t.Helper()
	testkit.Await(d.t, "why "+strings.Join(arguments, " "), func() error { // workers write the journal after the outcome
		answer := d.why(arguments...)
		if len(answer.Events) != 1 || answer.Events[0].State != state || !strings.Contains(strings.Join(answer.Events[0].Sentences, "\n"), says) {
			return fmt.Errorf("got %+v, want %s and %q", answer, state, says)
		}
		return nil
	})
}

// TestWhy publishes an event for each state, and asks about each.
func TestWhy(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	rejectedPosts(d.slack)
	workers := d.startFleet(2, delaying("2/30m", "waits.>=1h,waits=1h", "SUMMARY_INTERVAL", "5s")...)
	for i := range 4 {
		outcome := map[bool]string{true: "sent", false: "dropped"}[i < 2]
		d.publishUntil(workers, outcome, "notify.payments.refunds", eventBody(fmt.Sprint("refund-", i)))
		if i == 0 {
			d.publishUntil(workers, "duplicate", "notify.payments.refunds", eventBody("refund-0"))
		}
	}
	d.publishUntil(workers, "dead", "notify.errors", eventBody("rejected-1"))
	d.publishUntil(workers, "dead", "notify.errors", "{broken", "Nats-Msg-Id", "broken-1", "Content-Type", "application/json")
	d.publishUntil(workers, "dropped", "notify.disks", resolved("over", "a"))
	d.publishUntil(workers, "sent", "notify.shop", cloudEvent("/shop/eu", "7", "stock is low"))
	before := workers.sum("notifier_events_total", "outcome", "sent")
	d.publish("notify.alerts", alertGroup("group-1", "Disk"))
	workers.awaitEvents(before+2, "outcome", "sent")
	for i := range 2 { // else any of the three may be the one that waits
		d.publishUntil(workers, "sent", "notify.waits", eventBody(fmt.Sprint("wait-", i)))
	}
	d.publish("notify.waits", eventBody("wait-2"))
	d.awaitInRoom("notify-room.slot.>", 1)

	d.wantWhy("sent", "sent at", "--seq", "1")
	d.wantWhy("dropped", "by category 2/30m", "refund-2")
	d.wantWhy("dropped", "by category 2/30m", "refund-3", "--category", "payments.refunds")
	d.wantWhy("dead", "rejected: invalid_blocks", "rejected-1")
	d.wantWhy("dead", "notifier dlq replay 1 sends it again", "rejected-1")
	d.wantWhy("dead", "bad_json", "broken-1")
	d.wantWhy("dropped", "it resolves what nobody was told of", "over")
	d.wantWhy("sent", "sent at", "/shop/eu/7")
	d.wantWhy("sent", "sent at", "group-1/f2")
	d.wantWhy("waiting", "for a slot", "wait-2")
	d.wantWhy("waiting", "for a slot", "--seq", "13")
	testkit.EqualSlices(t, d.states("refund-0"), []string{"sent", "duplicate"}, "states of the messages with one ID")
	testkit.Equal(t, len(d.why("group-1").Events) >= 2, true, "alerts of a group are told of")
	d.awaitTold(defaultChannel, 3)
	testkit.Eventually(t, "the journal knows of the digest", func() bool {
		return strings.Contains(strings.Join(d.why("refund-2").Events[0].Sentences, "\n"), "was told in the digest of")
	})
	run(t, d.settings("CATEGORY_LIMIT", "2/30m"), "why", "refund-2").want(0, "refund-2  payments.refunds  \"event refund-2\"  stored ",
		"an event of payments.refunds would be denied now by category 2/30m: 2 of 2 used")
	// The limits and delays are those of the workers, whatever the settings of the command say.
	run(t, d.settings("DELAY", "payments=3h"), "why", "wait-2").want(0, "denied now by category 2/30m: 2 of 2 used",
		"by NOTIFIER_DELAY it would wait for a slot, 1h at most")
	run(t, d.settings(), "why", "payments", "--since", "1h").want(0, "2 dropped by category", "2 sent", "1 duplicate")
	run(t, d.settings(), "why", "--title", "REFUND-3").want(0, "refund-3")
	run(t, d.settings(), "why", "refund-9").want(1, "not known")
}

// TestWhyOfARecreatedStream deletes the producers' stream, so the next event gets the number of an earlier event. Each is an event of its own.
func TestWhyOfARecreatedStream(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(2)
	d.publishUntil(workers, "sent", "notify.payments", `{"title":"before"}`)
	testkit.NoError(t, d.js.DeleteStream(t.Context(), streamName))
	d.publishUntil(workers, "sent", "notify.payments", `{"title":"after"}`)
	testkit.Await(t, "both events are in the journal", func() error {
		answer := d.why("--seq", "1")
		if len(answer.Events) != 2 {
			return fmt.Errorf("got %d events, want 2", len(answer.Events))
		}
		for _, e := range answer.Events {
			if e.State != "sent" || len(e.Entries) != 1 {
				return fmt.Errorf("%s is %s by %d entries, want sent by one", e.ID, e.State, len(e.Entries))
			}
		}
		return nil
	})
}

// producersIDs are IDs that workers replace by a hash, or nearly.
var producersIDs = map[string]string{
	"an ARN":                             "arn:aws:lambda:eu-central-1:123456789012:function:payments-refunds-prod:42",
	"a tab":                              "order\t1",
	"a line feed":                        "order\n2",
	"outer blanks":                       " order 3 ",
	"double blanks":                      "order  4",
	"a character that ends at the bound": strings.Repeat("x", 62) + "é",
	"a character across the bound":       strings.Repeat("x", 63) + "é",
	"a mark that nobody sees":            "order\u200b5",
	"a hash":                             "#7",
}

// TestWhyProducersIDs asks about events by the IDs that their producers gave: the command, the page, and the command for dead letters.
func TestWhyProducersIDs(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	address := freeAddress(t)
	workers := d.startReady("worker", "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "none", "PAGE_ADDR", address).alone()
	_, events := d.startIngest()
	source, id := "/clusters/eu-central-1/namespaces/payments/deployments/refunds", strings.Repeat("7f3a", 8)
	d.publishUntil(workers, "sent", "notify.ids", cloudEvent(source, id, "stock is low"))
	want := map[string]string{"a CloudEvent": source + "/" + id}
	for name, id := range producersIDs {
		want[name] = id
		d.publishUntil(workers, "sent", "notify.ids", string(testkit.Must(json.Marshal(map[string]string{"id": id, "title": name}))(t)))
	}
	d.publishUntil(workers, "sent", "notify.ids", "an event", "Nats-Msg-Id", "order-8")
	want["a header that drops outer blanks"] = " order-8 "
	overHTTP := strings.Repeat("k", 60)
	status, _ := post(events+"ids", "", overHTTP, `{"title": "over HTTP"}`)
	testkit.Equal(t, status, http.StatusAccepted, "status of an event over HTTP")
	want["a key of a request"] = overHTTP
	workers.awaitEvents(len(want), "outcome", "sent")
	for name, id := range want {
		d.wantWhy("sent", "sent at", id)
		d.wantWhy("sent", "sent at", d.why(id).Events[0].ID) // as it is shown
		shown := fetch(t, "http://"+address+"/why?"+url.Values{"q": {id}}.Encode())
		testkit.Contains(t, name+": page", shown, "sent at")
	}
	long := strings.Repeat("l", 80)
	d.publishUntil(workers, "dead", "notify.ids", fmt.Sprintf(`{"id": %q, "title": "x", "severity": 5}`, long))
	d.wantWhy("dead", "bad_field", long)
	run(t, d.settings(), "dlq", "show", long).want(0, "bad_field")
}

// TestWhySince asks since a time at which the event waited already. It still waits.
func TestWhySince(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	workers := d.startFleet(1, delaying("1/1h", "payments=1h")...)
	d.publishUntil(workers, "sent", "notify.payments", eventBody("first"))
	d.publish("notify.payments", eventBody("second"))
	d.awaitInRoom("notify-room.slot.>", 1)
	d.awaitNoted(map[string]string{"first": "sent", "second": "waiting slot"})
	time.Sleep(2 * time.Second) // the journal's entry becomes older than the time that is asked about
	d.wantWhy("waiting", "is in the room now and waits for a slot", "second", "--since", "1s")
	d.wantWhy("waiting", "is in the room now and waits for a slot", "--category", "payments", "--since", "1s")
	d.wantWhy("waiting", "for a slot", "2")
	d.wantWhy("sent", "sent at", "#1")
	run(t, d.settings(), "why", "payments").want(0, "1 began to wait, denied by category 1/1h", "began to wait for a slot, denied by category 1/1h; ")
	run(t, d.settings(), "why", "paymets").want(1, "paymets: not known", "the nearest category is payments")
	run(t, d.settings(), "dlq", "drop", "--all").want(2, "standard input is no terminal: confirm with --yes")
}

// TestWhyNamesTheDigest has drops all the time, while digests are posted. The drops that are said to be told in a digest are as many as the
// digest counts.
func TestWhyNamesTheDigest(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	d.startFleet(2, "GLOBAL_LIMIT", "none", "CATEGORY_LIMIT", "0/1h", "SUMMARY_INTERVAL", "2s")
	const categories = 10
	published := 0
	for len(d.digests(defaultChannel)) < 4 {
		d.publish(fmt.Sprintf("notify.c%d", published%categories), eventBody(fmt.Sprint("evt-", published)))
		published++
		time.Sleep(10 * time.Millisecond) // events of a flood are counted, not told singly
	}
	d.awaitTold(defaultChannel, published)
	testkit.Await(t, "the journal knows of all digests", func() error {
		entries, err := d.entries(journal.Query{Result: journal.Told})
		if digests := len(d.digests(defaultChannel)); err == nil && len(entries) != digests {
			err = fmt.Errorf("it knows of %d of %d", len(entries), digests)
		}
		return err
	})
	var sequences []string
	for i := range published {
		sequences = append(sequences, fmt.Sprint(i+1))
	}
	said := make(map[string]int) // by what is said of the digest
	for _, answer := range d.whyAll("--seq", strings.Join(sequences, ",")) {
		testkit.Equal(t, len(answer.Events), 1, "events of a message")
		said[answer.Events[0].Sentences[1]]++
	}
	for sentence, n := range said {
		if !strings.Contains(sentence, "was told in the digest of ") || !strings.HasSuffix(sentence, fmt.Sprintf(" (%d suppressed)", n)) {
			t.Errorf("said of %d drops: %s", n, sentence)
		}
	}
}

// fetch returns the body of a page.
func fetch(t testing.TB, address string) string {
	t.Helper()
	response, err := client.Get(address)
	testkit.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	return string(testkit.Must(io.ReadAll(response.Body))(t))
}

// states returns the states of the messages with an ID, in the order of the stream.
func (d *deployment) states(id string) (states []string) {
	d.t.Helper()
	for _, e := range d.why(id).Events {
		states = append(states, e.State)
	}
	return states
}
