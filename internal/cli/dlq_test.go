package cli

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/deadletters"
	"github.com/seed-4578ace9/notifier/internal/room"
	"github.com/seed-4578ace9/notifier/internal/screen"
	"github.com/seed-4578ace9/notifier/internal/setup"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// dlqServer starts a server with the streams of the room and the dead letters, and sets the settings to it.
func dlqServer(t *testing.T) jetstream.JetStream {
	t.Helper()
	natsServer := servertest.StartNATS(t)
	testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL})
	js := servertest.JetStream(t, natsServer.URL)
	createDeadLetters(t, js)
	return js
}

// createDeadLetters creates both streams as a worker does.
func createDeadLetters(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	settings := loadSettings(t)
	for _, stream := range []jetstream.StreamConfig{setup.Names(settings).RoomConfig(), setup.Names(settings).DeadLetterConfig()} {
		testkit.Must(js.CreateStream(t.Context(), stream))(t)
	}
}

// putLetter stores a dead letter as a worker does. headers are more headers: name, value, …
func putLetter(t *testing.T, js jetstream.JetStream, reason, id, body, why string, headers ...string) {
	t.Helper()
	letter := &nats.Msg{Subject: "notify-dlq." + reason + ".payments", Data: []byte(body), Header: nats.Header{
		"Notifier-Reason": {reason}, "Notifier-Error": {why}, "Notifier-Subject": {"notify.payments"},
		"Notifier-Sequence": {"1"}, "Notifier-Deliveries": {"2"}, room.HeaderID: {id},
		"Notifier-Origin": {room.Origin{Stream: "NOTIFICATIONS", Sequence: 1, Stored: time.Now()}.String()},
	}}
	trusted.Mark(letter.Header)
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
		testkit.Equal(t, stream.CachedInfo().State.Msgs, want, "messages of the stream %s", name)
	}
}

var seconds = regexp.MustCompile(`\b\d+s\b`)

// dlq runs a command line and returns its outputs. Each age is replaced by "now".
func dlq(t *testing.T, arguments ...string) (output, problems string, err error) {
	t.Helper()
	output, problems, err = execute(t.Context(), "", append([]string{"dlq"}, arguments...)...)
	return seconds.ReplaceAllString(fields(output), "now"), problems, err
}

// requireDLQ runs a command line without an error and compares its output.
func requireDLQ(t *testing.T, line string, want ...string) {
	t.Helper()
	output, problems, err := dlq(t, strings.Fields(line)...)
	if got := strings.TrimSpace(output); err != nil || problems != "" || got != strings.Join(want, "\n") {
		t.Errorf("dlq %s prints\n%s\n%s%v, want\n%s", line, got, problems, err, strings.Join(want, "\n"))
	}
}

const dlqHeading = "NUMBER AGE REASON CATEGORY DELIVERED TITLE WHY"

func TestDLQ(t *testing.T) {
	js := dlqServer(t)
	requireDLQ(t, "list", "no dead letters")
	putLetter(t, js, "rejected", "order-1", `{"title": "card\u001b[2J declined"}`, "no_text")
	putLetter(t, js, "bad_json", "order-2", "{broken", "not JSON: "+strings.Repeat("ü", 100))
	putLetter(t, js, "rejected", "order-3", "text", "msg_too_long")
	first := "1 now rejected payments 2 card[2J declined no_text"
	second := "2 now bad_json payments 2 {broken not JSON: " + strings.Repeat("ü", 49) + "…"
	third := "3 now rejected payments 2 text msg_too_long"
	requireDLQ(t, "list", dlqHeading, third, second, first)
	requireDLQ(t, "list --limit 1", dlqHeading, third, "(2 more)")
	requireDLQ(t, "list --limit 0 --since 7d", dlqHeading, third, second, first)
	requireDLQ(t, "list --reason bad_json", dlqHeading, second)
	requireDLQ(t, "list --since 1ms", "no dead letters")
	requireDLQ(t, "list --category payments.cards", "no dead letters")

	requireDLQ(t, "replay --reason rejected --dry-run", "would replay 2 letters", dlqHeading, first, third)
	requireDLQ(t, "drop --all --dry-run", "would drop 3 letters", dlqHeading, first, second, third)
	requireHeld(t, js, 0, 3)
	requireDLQ(t, "replay order-3", "replayed 1 letter")
	requireHeld(t, js, 1, 2)
	requireDLQ(t, "drop --reason bad_json,empty --yes", "dropped 1 letter")
	requireHeld(t, js, 1, 1)
	requireDLQ(t, "replay --all", "replayed 1 letter")
	requireHeld(t, js, 2, 0)
	requireDLQ(t, "replay --all", "replayed 0 letters")
	requireDLQ(t, "drop --all --yes", "dropped 0 letters")
}

// The list counts the letters that were pushed out, also if it does not show the letters that did so. A letter with a cut body is
// not replayed.
func TestDLQPushedOut(t *testing.T) {
	js := dlqServer(t)
	putLetter(t, js, "bad_json", "order-1", "{", "not JSON", deadletters.HeaderPushedOut, "3")
	putLetter(t, js, "bad_json", "order-2", "{", "not JSON", deadletters.HeaderPushedOut, "1")
	putLetter(t, js, "too_large", "order-3", "begin", "too large", deadletters.HeaderBodyLength, "4711", deadletters.HeaderBodySHA256, "abc")
	requireDLQ(t, "list --reason too_large", dlqHeading, "3 now too_large payments 2 begin too large",
		"(older ones are gone: these have pushed out 4 letters)")
	if list := decoded[letterList](t, "dlq list --json --limit 1"); list.PushedOut != 4 || list.Letters[0].BodyLength != 4711 {
		t.Errorf("got the list %+v, want 4 letters pushed out and a body of 4711 bytes", list)
	}
	testkit.Contains(t, "dlq show", fields(mustRun(t, "", "dlq", "show", "3")), "Body: the first 5 of 4711 bytes")
	for _, replay := range [][]string{{"would replay 2 letters", "--dry-run"}, {"replayed 2 letters"}} {
		output, problems, err := dlq(t, append([]string{"replay", "--all"}, replay[1:]...)...)
		if err == nil || !strings.HasPrefix(output, replay[0]) || !strings.Contains(problems, "letter 3: it cannot be replayed: its body had 4711 bytes") {
			t.Errorf("got %v, %s and %s, want %s and a problem with the third", err, output, problems, replay[0])
		}
	}
	requireHeld(t, js, 2, 1)
}

// show prints the headers and each byte of the body.
func TestDLQShow(t *testing.T) {
	js := dlqServer(t)
	putLetter(t, js, "rejected", "order-1", "{\"title\": \"t\"}\r\n", "no_text")
	putLetter(t, js, "bad_utf8", "order-1", "\xff\x00", "not UTF-8")
	for _, id := range []string{"1", "order-1"} {
		output := mustRun(t, "", "dlq", "show", id)
		testkit.Contains(t, "dlq show "+id, output,
			"Number:", "Stored:", "Event:                order-1\n", "Notifier-Reason:      rejected\n", "\n\n{\"title\": \"t\"}\r\n")
		testkit.Equal(t, strings.HasSuffix(output, "\n\n\xff\x00"), id == "order-1", "dlq show %s shows the second body", id)
	}
	got := decoded[contentList](t, "dlq show order-1 --json")
	testkit.Require(t, len(got.Letters) == 2, "got %+v, want two letters", got)
	text, bytes := got.Letters[0], got.Letters[1]
	if text.Body == nil || *text.Body != "{\"title\": \"t\"}\r\n" || text.BodyBase64 != nil || text.Headers["Notifier-Deliveries"][0] != "2" || text.Number != 1 {
		t.Errorf("got the first letter %+v, want its body as text", text)
	}
	testkit.Check(t, bytes.Body == nil && string(bytes.BodyBase64) == "\xff\x00" && bytes.Reason == "bad_utf8",
		"got the second letter %+v, want its body as base64", bytes)
}

func TestDLQJSON(t *testing.T) {
	js := dlqServer(t)
	requireDLQ(t, "list --json", `{"stream":"NOTIFICATIONS_DLQ","total":0,"pushed_out":0,"letters":[]}`)
	putLetter(t, js, "rejected", "order-1", "text", "no_text")
	putLetter(t, js, "rejected", "order-2", "text", "no_text")
	list := decoded[letterList](t, "dlq list --json --limit 1")
	if l := list.Letters[0]; list.Total != 2 || len(list.Letters) != 1 || l.ID != "order-2" || l.Deliveries != 2 || time.Since(l.Stored) > testkit.Patience {
		t.Errorf("got the list %+v, want the second of two letters", list)
	}
	requireDLQ(t, "replay 1 --json --dry-run",
		`{"action":"replay","dry_run":true,"missing":0,"letters":[{"number":1,"id":"order-1"}]}`)
	requireDLQ(t, "replay 1 --json",
		`{"action":"replay","dry_run":false,"missing":0,"letters":[{"number":1,"id":"order-1","outcome":"replayed"}]}`)
	requireDLQ(t, "drop --all --json --yes",
		`{"action":"drop","dry_run":false,"missing":0,"letters":[{"number":2,"id":"order-2","outcome":"dropped"}]}`)
}

// A fault with one letter does not stop the others. The status is 1.
func TestDLQProblems(t *testing.T) {
	js := dlqServer(t)
	bare := &nats.Msg{Subject: "notify-dlq.too_large._", Header: make(nats.Header), Data: []byte("text")}
	trusted.Mark(bare.Header)
	testkit.Must(js.PublishMsg(t.Context(), bare))(t)
	putLetter(t, js, "rejected", "order-2", "text", "no_text")
	putLetter(t, js, "rejected", "2", "text", "no_text")
	putLetter(t, js, "rejected", "9", "text", "no_text")
	requirePart := func(line, output, says string) {
		t.Helper()
		got, problems, err := dlq(t, strings.Fields(line)...)
		testkit.Check(t, err != nil && strings.TrimSpace(got) == output && strings.Contains(problems, says),
			"dlq %s prints %q and %q, %v, want %q and %q", line, got, problems, err, output, says)
	}
	requirePart("drop 9 --yes", "dropped 0 letters", "9: no such dead letter") // no event takes the place of a letter
	got, problems, err := dlq(t, "drop", "id:9", "--yes")
	testkit.Check(t, err == nil && strings.TrimSpace(got) == "dropped 1 letter", "dlq drop id:9 prints %q and %q, %v", got, problems, err)
	requirePart("replay 1 order-2 nothing\x1b", "replayed 1 letter",
		"nothing: no such dead letter\nletter 1: it cannot be replayed: it does not say on which subject")
	requireHeld(t, js, 1, 2)
	requirePart("drop 4 --yes", "dropped 0 letters", "4: no such dead letter")
	requirePart("drop 4 --dry-run", "would drop 0 letters\nno dead letters", "4: no such dead letter")
	requirePart("show 4", "", "4: no such dead letter")
	requirePart("show 0", "", "0: no such dead letter")
	requirePart("replay 1 --json --dry-run", `{"action":"replay","dry_run":true,"missing":0,"letters":[{"number":1,"id":"","outcome":"unfit",`+
		`"error":"it cannot be replayed: it does not say on which subject it was published"}]}`, "letter 1: it cannot be replayed")
	requirePart("replay 1 --json", `{"action":"replay","dry_run":false,"missing":0,"letters":[{"number":1,"id":"","outcome":"unfit",`+
		`"error":"it cannot be replayed: it does not say on which subject it was published"}]}`, "letter 1: it cannot be replayed")

	testkit.NoError(t, js.DeleteStream(t.Context(), "NOTIFICATIONS_ROOM"))
	requireFailure(t, Failure, "dlq replay 1 3 4", "letter 3: publishing to notify-room.replay.payments", "NOTIFIER_ROOM_STREAM", "1 letter left")
	testkit.NoError(t, js.DeleteStream(t.Context(), "NOTIFICATIONS_DLQ"))
	for _, line := range []string{"list", "show 1", "replay --all", "drop --all --yes"} {
		requireFailure(t, Failure, "dlq "+line, `looking for the stream of dead letters "NOTIFICATIONS_DLQ"`, "NOTIFIER_DLQ_STREAM")
	}
}

func TestWithoutNATS(t *testing.T) {
	address := unused(t)
	testkit.SetSettings(t, map[string]string{"NATS_URL": "nats://user:canary@" + address})
	tooLate, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for line, want := range map[string]string{
		"dlq list": "nats: connecting to nats at " + address + ": ", "limits set payments 1/1h": "(check NOTIFIER_NATS_URL)",
		"publish payments text": "(check NOTIFIER_NATS_URL)", "simulate --from-stream": "(check NOTIFIER_NATS_URL)",
	} {
		_, _, err := execute(tooLate, "", strings.Fields(line)...)
		if status := ExitStatus(err, io.Discard); status != Failure || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: status %d, %v, want %q and no password", line, status, err, want)
		}
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 3 * time.Minute: "3m", 61 * time.Minute: "1h", 47 * time.Hour: "47h", 50 * time.Hour: "2d",
	} {
		testkit.Equal(t, screen.Age(d), want, "%v is shown as", d)
	}
}

// An interrupt ends a replay after the current letter.
func TestDLQInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	bar := screen.NewProgress(io.Discard)
	done := 0
	err := changeEach(ctx, make([]deadletters.Letter, 3), bar, "", count, func(inner context.Context, _ deadletters.Letter) error {
		cancel()
		done++
		return inner.Err()
	})
	testkit.Check(t, err != nil && err.Error() == "interrupted: 2 letters left" && done == 1,
		"got %v and %d letters done, want one letter done and two left", err, done)
}

// A replay without the right to delete sends the event and keeps its letter. The next replay removes the letter and does not send
// the event again.
func TestDLQReplayRunAgain(t *testing.T) {
	const deletes = "$JS.API.STREAM.MSG.DELETE."
	natsServer := servertest.StartNATS(t, func(o *server.Options) {
		withoutDeletes := server.SubjectPermission{Allow: []string{">"}, Deny: []string{deletes + ">"}}
		o.Users = []*server.User{
			{Username: "all", Password: "secret"},
			{Username: "cut", Password: "secret", Permissions: &server.Permissions{Publish: &withoutDeletes}},
		}
		o.NoAuthUser = "all"
	})
	testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL, "NATS_USER": "cut", "NATS_PASSWORD": "secret"})
	js := servertest.JetStream(t, natsServer.URL)
	createDeadLetters(t, js)
	putLetter(t, js, "rejected", "order-1", `{"title": "card declined"}`, "invalid_blocks")
	requireFailure(t, Failure, "dlq replay --all", deletes, "its event is on its way")
	requireHeld(t, js, 1, 1)
	testkit.SetSettings(t, map[string]string{"NATS_URL": natsServer.URL})
	output, problems, err := dlq(t, "replay", "--all")
	if err != nil || strings.TrimSpace(output) != "replayed 0 letters" || problems != "letter 1: an earlier replay has sent it on; it is removed\n" {
		t.Errorf("the second replay: got %q, %q and %v, want the letter removed", output, problems, err)
	}
	requireHeld(t, js, 1, 0)
}
