package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/consume"
	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/event"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/slacktest"
	"github.com/seed-4578ace9/notifier/internal/telemetry"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// dlqServer sets the settings to a server with the room and the dead letters.
func dlqServer(t *testing.T) jetstream.JetStream {
	t.Helper()
	natsServer := servertest.StartNATS(t)
	setenv(t, map[string]string{"NATS_URL": natsServer.URL})
	js := servertest.JetStream(t, natsServer.URL)
	settings, _, err := config.Load(config.Options{Sink: config.SinkConsole})
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []jetstream.StreamConfig{names(settings).RoomConfig(), names(settings).DeadLetterConfig()} {
		testkit.Must(js.CreateStream(t.Context(), stream))(t)
	}
	return js
}

// putLetter stores a dead letter as a worker does. The headers are name, value, … beside the usual ones.
func putLetter(t *testing.T, js jetstream.JetStream, reason, id, body, why string, headers ...string) {
	t.Helper()
	letter := &nats.Msg{Subject: "notify-dlq." + reason + ".payments", Data: []byte(body), Header: nats.Header{
		"Notifier-Reason": {reason}, "Notifier-Error": {why}, "Notifier-Subject": {"notify.payments"},
		"Notifier-Sequence": {"1"}, "Notifier-Deliveries": {"2"}, event.HeaderID: {id},
		"Notifier-Origin": {room.Origin{Stream: "NOTIFICATIONS", Sequence: 1, Stored: time.Now()}.String()},
	}}
	for i := 0; i < len(headers); i += 2 {
		letter.Header.Set(headers[i], headers[i+1])
	}
	testkit.Must(js.PublishMsg(t.Context(), letter))(t)
}

// requireHeld compares the numbers of messages in both streams.
func requireHeld(t *testing.T, js jetstream.JetStream, replays, letters uint64) {
	t.Helper()
	for name, want := range map[string]uint64{"NOTIFICATIONS_ROOM": replays, "NOTIFICATIONS_DLQ": letters} {
		stream := testkit.Must(js.Stream(t.Context(), name))(t)
		if got := stream.CachedInfo().State.Msgs; got != want {
			t.Errorf("the stream %s holds %d messages, want %d", name, got, want)
		}
	}
}

var seconds = regexp.MustCompile(`\b\d+s\b`)

// dlq runs a command line and returns the words of what it prints, whatever the ages.
func dlq(t *testing.T, arguments ...string) (output, problems string, err error) {
	t.Helper()
	output, problems, err = execute(t.Context(), "", append([]string{"dlq"}, arguments...)...)
	return seconds.ReplaceAllString(fields(output), "now"), problems, err
}

// requireDLQ compares what a command line that has to work prints.
func requireDLQ(t *testing.T, arguments []string, want ...string) {
	t.Helper()
	output, problems, err := dlq(t, arguments...)
	if got := strings.TrimSpace(output); err != nil || problems != "" || got != strings.Join(want, "\n") {
		t.Errorf("dlq %q prints\n%s\n%s%v, want\n%s", arguments, got, problems, err, strings.Join(want, "\n"))
	}
}

const dlqHeading = "NUMBER AGE REASON CATEGORY DELIVERED TITLE WHY"

func TestDLQ(t *testing.T) {
	js := dlqServer(t)
	requireDLQ(t, []string{"list"}, "no dead letters")
	putLetter(t, js, "slack_rejected", "order-1", `{"title": "card\u001b[2J declined"}`, "no_text")
	putLetter(t, js, "bad_json", "order-2", "{broken", "not JSON: "+strings.Repeat("x", 100))
	putLetter(t, js, "slack_rejected", "order-3", "text", "msg_too_long")
	first := "1 now slack_rejected payments 2 card[2J declined no_text"
	second := "2 now bad_json payments 2 {broken not JSON: " + strings.Repeat("x", 49) + "…"
	third := "3 now slack_rejected payments 2 text msg_too_long"
	requireDLQ(t, []string{"list"}, dlqHeading, third, second, first)
	requireDLQ(t, []string{"list", "--limit", "1"}, dlqHeading, third, "(2 more)")
	requireDLQ(t, []string{"list", "--limit", "0", "--since", "7d"}, dlqHeading, third, second, first)
	requireDLQ(t, []string{"list", "--reason", "bad_json"}, dlqHeading, second)
	requireDLQ(t, []string{"list", "--since", "1ms"}, "no dead letters")
	requireDLQ(t, []string{"list", "--category", "payments"}, dlqHeading, third, second, first)
	requireDLQ(t, []string{"list", "--category", "payments.cards"}, "no dead letters")

	requireDLQ(t, []string{"replay", "--reason", "slack_rejected", "--dry-run"}, "would replay 2 letters", dlqHeading, first, third)
	requireDLQ(t, []string{"drop", "--all", "--dry-run"}, "would drop 3 letters", dlqHeading, first, second, third)
	requireHeld(t, js, 0, 3)
	requireDLQ(t, []string{"replay", "order-3"}, "replayed 1 letter")
	requireHeld(t, js, 1, 2)
	requireDLQ(t, []string{"drop", "--reason", "bad_json,empty", "--yes"}, "dropped 1 letter")
	requireHeld(t, js, 1, 1)
	requireDLQ(t, []string{"replay", "--all"}, "replayed 1 letter")
	requireHeld(t, js, 2, 0)
	requireDLQ(t, []string{"replay", "--all"}, "replayed 0 letters")
	requireDLQ(t, []string{"drop", "--all", "--yes"}, "dropped 0 letters")
}

// The list says that older letters are gone, also where it leaves out those that pushed them out. A letter whose body was cut
// says so, and is not replayed.
func TestDLQPushedOut(t *testing.T) {
	js := dlqServer(t)
	putLetter(t, js, "bad_json", "order-1", "{", "not JSON", consume.HeaderPushedOut, "3")
	putLetter(t, js, "bad_json", "order-2", "{", "not JSON", consume.HeaderPushedOut, "1")
	putLetter(t, js, "too_large", "order-3", "begin", "too large", consume.HeaderBodyLength, "4711", consume.HeaderBodySHA256, "abc")
	requireDLQ(t, []string{"list", "--reason", "too_large"}, dlqHeading, "3 now too_large payments 2 begin too large",
		"(older ones are gone: these have pushed out 4 letters)")
	output, _, err := execute(t.Context(), "", "dlq", "list", "--json", "--limit", "1")
	var list letterList
	if jsonErr := json.Unmarshal([]byte(output), &list); err != nil || jsonErr != nil || list.PushedOut != 4 || list.Letters[0].BodyLength != 4711 {
		t.Errorf("%v, %v: %s", err, jsonErr, output)
	}
	if output, _, err = execute(t.Context(), "", "dlq", "show", "3"); err != nil || !strings.Contains(fields(output), "Body: the first 5 of 4711 bytes") {
		t.Errorf("%v: %s", err, output)
	}
	output, problems, err := dlq(t, "replay", "--all")
	if err == nil || strings.TrimSpace(output) != "replayed 2 letters" || !strings.Contains(problems, "letter 3: it cannot be replayed: its body had 4711 bytes") {
		t.Errorf("%v: %s%s", err, output, problems)
	}
	requireHeld(t, js, 2, 1)
}

// A letter is shown with all that it holds, its body to the byte.
func TestDLQShow(t *testing.T) {
	js := dlqServer(t)
	putLetter(t, js, "slack_rejected", "order-1", "{\"title\": \"t\"}\r\n", "no_text")
	putLetter(t, js, "bad_utf8", "order-1", "\xff\x00", "not UTF-8")
	for _, id := range []string{"1", "order-1"} {
		output, problems, err := execute(t.Context(), "", "dlq", "show", id)
		if err != nil || problems != "" {
			t.Errorf("%v, %q", err, problems)
		}
		for _, want := range []string{"Number:", "Stored:", "Event:                order-1\n", "Notifier-Reason:      slack_rejected\n", "\n\n{\"title\": \"t\"}\r\n"} {
			if !strings.Contains(output, want) {
				t.Errorf("show %s lacks %q:\n%s", id, want, output)
			}
		}
		if both := strings.HasSuffix(output, "\n\n\xff\x00"); both != (id == "order-1") {
			t.Errorf("show %s prints\n%q", id, output)
		}
	}
	output, _, err := execute(t.Context(), "", "dlq", "show", "order-1", "--json")
	var got contentList
	if jsonErr := json.Unmarshal([]byte(output), &got); err != nil || jsonErr != nil || len(got.Letters) != 2 {
		t.Fatalf("%v, %v: %s", err, jsonErr, output)
	}
	text, bytes := got.Letters[0], got.Letters[1]
	if text.Body == nil || *text.Body != "{\"title\": \"t\"}\r\n" || text.BodyBase64 != nil || text.Headers["Notifier-Deliveries"][0] != "2" || text.Number != 1 {
		t.Errorf("the first one is %+v", text)
	}
	if bytes.Body != nil || string(bytes.BodyBase64) != "\xff\x00" || bytes.Reason != "bad_utf8" {
		t.Errorf("the second one is %+v", bytes)
	}
}

func TestDLQJSON(t *testing.T) {
	js := dlqServer(t)
	requireDLQ(t, []string{"list", "--json"}, `{"stream":"NOTIFICATIONS_DLQ","total":0,"pushed_out":0,"letters":[]}`)
	putLetter(t, js, "slack_rejected", "order-1", "text", "no_text")
	putLetter(t, js, "slack_rejected", "order-2", "text", "no_text")
	output, _, err := execute(t.Context(), "", "dlq", "list", "--json", "--limit", "1")
	var list letterList
	if jsonErr := json.Unmarshal([]byte(output), &list); err != nil || jsonErr != nil || list.Total != 2 || len(list.Letters) != 1 ||
		list.Letters[0].ID != "order-2" || list.Letters[0].Deliveries != 2 || time.Since(list.Letters[0].Stored) > patience {
		t.Errorf("%v, %v: %s", err, jsonErr, output)
	}
	requireDLQ(t, []string{"replay", "1", "--json", "--dry-run"},
		`{"action":"replay","dry_run":true,"missing":0,"letters":[{"number":1,"id":"order-1"}]}`)
	requireDLQ(t, []string{"replay", "1", "--json"},
		`{"action":"replay","dry_run":false,"missing":0,"letters":[{"number":1,"id":"order-1","outcome":"replayed"}]}`)
	requireDLQ(t, []string{"drop", "--all", "--json", "--yes"},
		`{"action":"drop","dry_run":false,"missing":0,"letters":[{"number":2,"id":"order-2","outcome":"dropped"}]}`)
}

// What does not work is said, the rest is done, and the status is 1.
func TestDLQProblems(t *testing.T) {
	js := dlqServer(t)
	testkit.Must(js.Publish(t.Context(), "notify-dlq.too_large._", []byte("text")))(t)
	putLetter(t, js, "slack_rejected", "order-2", "text", "no_text")
	putLetter(t, js, "slack_rejected", "2", "text", "no_text")
	requireFailure := func(arguments []string, output string, says ...string) {
		t.Helper()
		got, problems, err := dlq(t, arguments...)
		problems += fmt.Sprint(err)
		if err == nil || strings.TrimSpace(got) != output {
			t.Errorf("dlq %q prints %q, %v, want %q", arguments, got, err, output)
		}
		for _, want := range says {
			if !strings.Contains(problems, want) {
				t.Errorf("dlq %q says %q, want %q", arguments, problems, want)
			}
		}
	}
	requireFailure([]string{"replay", "2"}, "", "is the number of one dead letter and the event's ID of another one, 3")
	requireFailure([]string{"replay", "1", "order-2", "nothing\x1b"}, "replayed 1 letter",
		"letter 1: it cannot be replayed: it does not say on which subject", "nothing: no such dead letter\n")
	requireHeld(t, js, 1, 2)
	requireFailure([]string{"drop", "4", "--yes"}, "dropped 0 letters", "4: no such dead letter")
	requireFailure([]string{"drop", "4", "--dry-run"}, "would drop 0 letters\nno dead letters", "4: no such dead letter")
	requireFailure([]string{"show", "4"}, "", "4: no such dead letter")
	requireFailure([]string{"replay", "1", "--json"},
		`{"action":"replay","dry_run":false,"missing":0,"letters":[{"number":1,"id":"","outcome":"unfit","error":"it cannot be replayed: it does not say on which subject it was published"}]}`,
		"letter 1: it cannot be replayed")

	testkit.NoError(t, js.DeleteStream(t.Context(), "NOTIFICATIONS_ROOM"))
	requireFailure([]string{"replay", "3"}, "replayed 0 letters", "letter 3: publishing to notify-room.replay.payments", "NOTIFIER_ROOM_STREAM", "1 letter left")
	testkit.NoError(t, js.DeleteStream(t.Context(), "NOTIFICATIONS_DLQ"))
	for _, arguments := range [][]string{{"list"}, {"show", "1"}, {"replay", "--all"}, {"drop", "--all", "--yes"}} {
		requireFailure(arguments, "", `looking for the stream of dead letters "NOTIFICATIONS_DLQ"`, "NOTIFIER_DLQ_STREAM")
		testkit.Equal(t, silenced(t, append([]string{"dlq"}, arguments...)...), exitFailure, "the exit status of %q", arguments)
	}
	setenv(t, map[string]string{"NATS_URL": "nats://" + unused(t)})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := execute(ended, "", "dlq", "list"); err == nil || !strings.Contains(err.Error(), "nats: connecting to nats") {
		t.Errorf("without NATS: %v", err)
	}
}

func TestDLQUsage(t *testing.T) {
	setenv(t, map[string]string{"NATS_URL": "nats://127.0.0.1:1"})
	for name, test := range map[string]struct {
		arguments []string
		says      string
	}{
		"an unknown command":        {[]string{"bogus"}, "bogus"},
		"an argument of list":       {[]string{"list", "1"}, "1"},
		"a reason that is none":     {[]string{"list", "--reason", "bogus"}, "bad_json, bad_utf8"},
		"a category that is none":   {[]string{"list", "--category", "a..b"}, "--category: category"},
		"an age that is none":       {[]string{"list", "--since", "soon"}, "not a valid duration"},
		"an age of half days":       {[]string{"list", "--since", "1.5d"}, "unknown unit"},
		"no age":                    {[]string{"list", "--since", "0s"}, "such as 30m, 24h or 7d"},
		"a negative age":            {[]string{"list", "--since", "-1h"}, "not a valid duration"},
		"a negative limit":          {[]string{"list", "--limit", "-1"}, "--limit is below 0"},
		"nothing to show":           {[]string{"show"}, "expected: notifier dlq show ID"},
		"nothing to replay":         {[]string{"replay"}, "--all"},
		"nothing to drop":           {[]string{"drop", "--yes"}, "--all"},
		"all and some":              {[]string{"replay", "--all", "1"}, "--all goes with nothing"},
		"all and those of a reason": {[]string{"drop", "--all", "--reason", "empty", "--yes"}, "--all goes with nothing"},
		"nobody to ask":             {[]string{"drop", "--all"}, "use --yes"},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := append([]string{"dlq"}, test.arguments...)
			testkit.Equal(t, silenced(t, arguments...), exitUsage, "the exit status")
			if _, _, err := execute(t.Context(), "", arguments...); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v, want %q", err, test.says)
			}
		})
	}
	setenv(t, map[string]string{"GLOBAL_LIMIT": "lots"})
	testkit.Equal(t, silenced(t, "dlq", "list"), exitUsage, "with bad settings the exit status")
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", time.Hour: "1h", 47 * time.Hour: "47h", 50 * time.Hour: "2d", 61 * time.Minute: "1h", 3 * time.Minute: "3m"} {
		testkit.Equal(t, ageOf(d), want, "%v is shown as", d)
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	testkit.Equal(t, shorten(strings.Repeat("ä", 61)), strings.Repeat("ä", 59)+"…", "a long text")
}

// An interrupt ends a replay after the letter in hand.
func TestDLQInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	d := &dlqCommand{bar: newProgressBar(io.Discard)}
	var results changes
	replay := action{do: func(inner context.Context, _ *deadletters.Store, _ deadletters.Letter) (deadletters.Outcome, error) {
		cancel()
		return deadletters.Replayed, inner.Err()
	}}
	err := d.each(ctx, &results, replay, make([]deadletters.Letter, 3))
	if err == nil || err.Error() != "interrupted: 2 letters left" || len(results.Letters) != 1 {
		t.Errorf("%v, %+v", err, results)
	}
}

// outcomes tells of each event that a worker settles.
type outcomes struct {
	*telemetry.Metrics
	settled chan string
}

func (o outcomes) Event(category, outcome string, n int) {
	o.Metrics.Event(category, outcome, n)
	for range n {
		o.settled <- outcome
	}
}

// startWorker runs a worker of the settings, and returns what becomes of its events.
func startWorker(t *testing.T) <-chan string {
	t.Helper()
	settings, _, err := config.Load(config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	settled, ended := make(chan string, 100), make(chan error, 1)
	w := worker{
		settings: settings, logger: telemetry.NewLogger(io.Discard, settings.Log.Level, settings.Log.Format), stdout: io.Discard,
		observe: func(metrics *telemetry.Metrics) consume.Metrics { return outcomes{metrics, settled} },
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- w.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return settled
}

func requireOutcome(t *testing.T, settled <-chan string, want string) {
	t.Helper()
	select {
	case outcome := <-settled:
		testkit.Equal(t, outcome, want, "the event")
	case <-time.After(patience):
		t.Fatalf("no event is settled, want one that is %s", want)
	}
}

// An event that Slack rejected is sent once by its replay, though that is interrupted and run again; one that was in fact
// delivered is not sent twice.
func TestReplayToWorker(t *testing.T) {
	const deletes = "$JS.API.STREAM.MSG.DELETE.>"
	natsServer := servertest.StartNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "secret"},
			{Username: "cut", Password: "secret", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{">"}, Deny: []string{deletes}}}},
		}
		o.NoAuthUser = "all"
	})
	slack := slacktest.New(t)
	settings := map[string]string{
		"NATS_URL": natsServer.URL, "REDIS_URL": servertest.StartRedis(t).URL(), "HTTP_ADDR": "off",
		"SLACK_TOKEN": slacktest.DefaultToken, "SLACK_CHANNEL": "#alerts", "SLACK_API_URL": slack.APIURL(),
	}
	setenv(t, settings)
	settled := startWorker(t)
	slack.Script(slacktest.Code("invalid_blocks"))
	js := servertest.JetStream(t, natsServer.URL)
	publishEvent(t, js, `{"id": "order-1", "title": "card declined"}`)
	requireOutcome(t, settled, "dead")
	output, _, err := dlq(t, "list", "--json")
	var list letterList
	if jsonErr := json.Unmarshal([]byte(output), &list); err != nil || jsonErr != nil || len(list.Letters) != 1 ||
		list.Letters[0].ID != "order-1" || list.Letters[0].Reason != "slack_rejected" || list.Letters[0].Error != "invalid_blocks" {
		t.Fatalf("%v, %v: %s", err, jsonErr, output)
	}

	cut := map[string]string{"NATS_USER": "cut", "NATS_PASSWORD": "secret"} // it can publish, and not delete
	for name, value := range cut {
		t.Setenv("NOTIFIER_"+name, value)
	}
	output, _, err = dlq(t, "replay", "--all")
	if err == nil || !strings.Contains(err.Error(), deletes[:len(deletes)-1]) || !strings.Contains(err.Error(), "its event is on its way") {
		t.Errorf("a replay that may not delete: %s, %v", output, err)
	}
	requireOutcome(t, settled, "sent")
	for name := range cut {
		t.Setenv("NOTIFIER_"+name, "")
	}
	requireDLQ(t, []string{"list"}, dlqHeading, "1 now slack_rejected payments 1 card declined invalid_blocks")
	output, problems, err := dlq(t, "replay", "--all")
	if err != nil || strings.TrimSpace(output) != "replayed 0 letters" || problems != "letter 1: an interrupted replay had sent it on before; it is removed\n" {
		t.Errorf("the replay, run again: %q, %q, %v", output, problems, err)
	}

	putLetter(t, js, "slack_rejected", "order-1", `{"title": "card declined"}`, "invalid_blocks")
	requireDLQ(t, []string{"replay", "order-1"}, "replayed 1 letter")
	requireOutcome(t, settled, "duplicate")
	publishEvent(t, js, `{"id": "order-2", "title": "another"}`)
	requireOutcome(t, settled, "sent")
	if posts := slack.Accepted(); len(posts) != 2 {
		t.Errorf("%d messages were sent, want one for each event", len(posts))
	}
	requireHeld(t, js, 0, 0)
}

func publishEvent(t *testing.T, js jetstream.JetStream, body string) {
	t.Helper()
	untilStream := []jetstream.PublishOpt{jetstream.WithRetryAttempts(1000), jetstream.WithRetryWait(10 * time.Millisecond)} // the worker makes it
	testkit.Must(js.Publish(t.Context(), "notify.payments", []byte(body), untilStream...))(t)
}
