package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
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
	"no lines": {arguments: []string{"--stdin"}},
}

func TestPublish(t *testing.T) {
	running := servertest.StartNATS(t)
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
			if !strings.Contains(problems, test.problems) || (test.problems == "") != (problems == "") {
				t.Errorf("it complains: %q, want %q", problems, test.problems)
			}
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
