package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// stored returns the subject and the body of each message of a stream.
func stored(t *testing.T, stream jetstream.Stream) []string {
	t.Helper()
	info := testkit.Must(stream.Info(t.Context()))(t)
	var messages []string
	for sequence := info.State.FirstSeq; sequence <= info.State.LastSeq && sequence > 0; sequence++ {
		m := testkit.Must(stream.GetMsg(t.Context(), sequence))(t)
		messages = append(messages, m.Subject+" "+string(m.Data))
	}
	return messages
}

// publishCases are command lines and inputs, with the stored messages and the printed problems.
var publishCases = map[string]struct {
	input     string
	arguments []string
	problems  string
	err       string
	want      []string
}{
	"a text": {arguments: []string{"payments", "card declined"}, want: []string{`notify.payments {"text":"card declined"}`}},
	"an ID":  {arguments: []string{"Payments", "text", "--id", "i", "--count", "1"}, want: []string{`notify.payments {"id":"i","text":"text"}`}},
	"everything": {
		arguments: []string{"payments.refunds", "text", "--title", "T", "--severity", "error", "--source", "s", "--link", "https://example.com",
			"--id", "i", "--cost", "3", "--field", "order=4711", "--field", `sql=name="bob",id=7`, "--status", "firing", "--key", "k"},
		want: []string{`notify.payments.refunds {"id":"i","title":"T","text":"text","severity":"error","source":"s",` +
			`"link":"https://example.com","status":"firing","key":"k","cost":3,"fields":{"order":"4711","sql":"name=\"bob\",id=7"}}`},
	},
	"more than are on their way at once": {
		arguments: []string{"payments", "text", "--count", fmt.Sprint(maxPending + 1)},
		want:      slices.Repeat([]string{`notify.payments {"text":"text"}`}, maxPending+1),
	},
	"lines": {
		arguments: []string{"--stdin"},
		input:     "{\"title\": \"a\", \"category\": \"errors\"}\n\n {\"text\": \"b\", \"category\": \"Default\"}\r\n",
		want:      []string{`notify {"title": "a", "category": "errors"}`, `notify {"text": "b", "category": "Default"}`},
	},
	"a line without a category": {
		arguments: []string{"--stdin"}, input: "{\"text\": \"a\", \"category\": \"errors\"}\n{\"text\": \"b\"}\n",
		problems: "line 2: no category", err: "1 line was not published", want: []string{`notify {"text": "a", "category": "errors"}`},
	},
	"lines that are no objects": {
		arguments: []string{"--stdin"}, input: "plain text\n[1]\n", problems: "line 2: not a JSON object", err: "2 lines were not published",
	},
	"lines of a category, some of them bad": {
		arguments: []string{"--stdin", "errors"}, input: "{broken\n{\"title\": \"a\"}\n{}\n",
		problems: "line 1: bad_json", err: "2 lines were not published", want: []string{`notify.errors {"title": "a"}`},
	},
	"a group whose first alert is bad": {
		arguments: []string{"--stdin", "errors"}, input: "{}\n" + badAndGood + "\n",
		problems: "line 2: bad_field: alerts[0].", err: "1 line was not published; 1 line has alerts that workers would reject", want: []string{"notify.errors " + badAndGood},
	},
	"a group whose second alert is bad": {
		arguments: []string{"--stdin", "errors"}, input: goodAndBad, problems: "line 1: bad_field: alerts[1].", err: "1 line has alerts", want: []string{"notify.errors " + goodAndBad},
	},
	"alerts without a category": {
		arguments: []string{"--stdin"}, input: aloneInDefault + "\n" + twoInDefault, want: []string{"notify " + aloneInDefault, "notify " + twoInDefault},
	},
	"a line that NATS does not take": {
		arguments: []string{"--stdin", "errors"}, input: fmt.Sprintf("{\"title\": %q}\n{\"title\": \"a\"}\n", strings.Repeat("a", mostPayload)),
		problems: "line 1: it has 8205 bytes, and NATS takes 8192 at most", err: "1 line was not published", want: []string{`notify.errors {"title": "a"}`},
	},
	"a byte order mark of an editor": {
		arguments: []string{"--stdin"}, input: "\ufeff{\"title\": \"a\", \"category\": \"default\"}\n", want: []string{`notify {"title": "a", "category": "default"}`},
	},
	"no lines": {arguments: []string{"--stdin"}},
}

// Groups of alerts.
const (
	aloneInDefault = `{"alerts":[{"labels":{"alertname":"a","category":"default"}}]}`
	twoInDefault   = `{"alerts":[{"labels":{"alertname":"a","category":"payments"}},{"labels":{"alertname":"b"}}]}`

	// One alert is one that a worker refuses.
	goodAndBad = `{"alerts":[{"labels":{"alertname":"disk"}},{"labels":{"alertname":"cpu"},"startsAt":"today"}]}`
	badAndGood = `{"alerts":[{"labels":{"alertname":"cpu"},"startsAt":"today"},{"labels":{"alertname":"disk"}}]}`
)

// mostPayload is the largest message that the server takes.
const mostPayload = 8192

func TestPublish(t *testing.T) {
	running := servertest.StartNATS(t, func(o *server.Options) { o.MaxPayload = mostPayload })
	js := servertest.JetStream(t, running.URL)
	testkit.SetSettings(t, map[string]string{"NATS_URL": running.URL})
	requireFailure(t, Failure, "publish payments text", "run notifier provision")
	plain := servertest.StartNATS(t, func(o *server.Options) { o.JetStream = false })
	testkit.SetSettings(t, map[string]string{"NATS_URL": plain.URL})
	requireFailure(t, Failure, "publish payments text", "the NATS server runs without JetStream")
	testkit.SetSettings(t, map[string]string{"NATS_URL": running.URL})
	config := jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify", "notify.>"}}
	stream := testkit.Must(js.CreateStream(t.Context(), config))(t)
	for name, test := range publishCases {
		t.Run(name, func(t *testing.T) {
			testkit.NoError(t, stream.Purge(t.Context()))
			output, problems, err := execute(t.Context(), test.input, append([]string{"publish"}, test.arguments...)...)
			testkit.Equal(t, output, fmt.Sprintf("published %d\n", len(test.want)), "it prints")
			testkit.Check(t, strings.Contains(problems, test.problems) && (test.problems == "") == (problems == ""),
				"it complains: %q, want %q", problems, test.problems)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("the error is %v, want %q", err, test.err)
			}
			testkit.EqualSlices(t, stored(t, stream), test.want, "stored messages")
		})
	}
	_, _, err := execute(testkit.Ended(t), "", "publish", "payments", "text")
	testkit.Fails(t, "an interrupted publish", err, nil)
	silent, input := io.Pipe()
	defer func() { _ = input.Close() }()
	ctx, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, interrupt)
	if output, _, err := executeReading(ctx, silent, "publish", "--stdin"); !errors.Is(err, context.Canceled) || output != "published 0\n" {
		t.Errorf("interrupted while it reads: got %q, %v", output, err)
	}
}

// A preview of lines goes on after a group with a bad alert, and shows its good one.
func TestPreviewOfLines(t *testing.T) {
	testkit.SetSettings(t, nil)
	output, problems, err := execute(t.Context(), badAndGood+"\n"+`{"title": "third"}`, "publish", "--stdin", "errors", "--preview")
	testkit.Fails(t, "the preview", err, nil, "1 line has alerts that workers would reject")
	testkit.Contains(t, "the preview", output, "disk", "third")
	testkit.Contains(t, "its problems", problems, "line 1: bad_field: alerts[0].")
}

// late is an event that the server confirms a second after it was published.
type late struct {
	jetstream.PubAckFuture
	confirmed chan *jetstream.PubAck
}

func (l late) Ok() <-chan *jetstream.PubAck { return l.confirmed }
func (l late) Err() <-chan error            { return nil }

// An interrupted publish counts the events that are on their way, so that nobody publishes them again.
func TestPublishInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := publishing{}
		for range 3 {
			future := late{confirmed: make(chan *jetstream.PubAck, 1)}
			time.AfterFunc(time.Second, func() { future.confirmed <- nil })
			p.pending = append(p.pending, future)
		}
		stored, err := p.await(testkit.Ended(t))
		testkit.NoError(t, err)
		testkit.Equal(t, stored, 3, "stored events")
	})
}
