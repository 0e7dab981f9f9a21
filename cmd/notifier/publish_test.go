package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestCheckArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arguments []string
		p         publisher
		fault     string // "" for none
	}{
		"category and text":               {[]string{"payments", "text"}, publisher{count: 1}, ""},
		"a path":                          {[]string{"payments.refunds", "text"}, publisher{count: 1}, ""},
		"many times":                      {[]string{"payments", "text"}, publisher{count: 1000}, ""},
		"once, with an ID":                {[]string{"payments", "text"}, publisher{count: 1, body: publishedEvent{ID: "id"}}, ""},
		"lines":                           {nil, publisher{stdin: true, count: 1}, ""},
		"lines of a category":             {[]string{"payments"}, publisher{stdin: true, count: 1}, ""},
		"nothing":                         {nil, publisher{count: 1}, "a category and a text"},
		"a category alone":                {[]string{"payments"}, publisher{count: 1}, "a category and a text"},
		"a text that is not quoted":       {[]string{"payments", "card", "declined"}, publisher{count: 1}, "a category and a text"},
		"lines, and a text":               {[]string{"payments", "text"}, publisher{stdin: true, count: 1}, "at most a category"},
		"never":                           {[]string{"payments", "text"}, publisher{count: 0}, "--count is below 1"},
		"duplicates":                      {[]string{"payments", "text"}, publisher{count: 2, body: publishedEvent{ID: "id"}}, "duplicates"},
		"a category in upper case":        {[]string{"Payments", "text"}, publisher{count: 1}, ""},
		"an empty category":               {[]string{"", "text"}, publisher{count: 1}, "empty"},
		"a pattern":                       {[]string{"payments.*", "text"}, publisher{count: 1}, "payments.*"},
		"lines of a category that is bad": {[]string{"pay ments"}, publisher{stdin: true, count: 1}, "pay ments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := test.p.checkArguments(newPublishCommand(), test.arguments)
			var usage *usageError
			switch {
			case test.fault == "" && err != nil:
				t.Error(err)
			case test.fault != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), test.fault) || !strings.Contains(err.Error(), "--help")):
				t.Errorf("the error is %v, want one of usage that says %q", err, test.fault)
			}
		})
	}
}

// stored reads all messages of a stream, as subjects and bodies.
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

func TestPublish(t *testing.T) {
	server := servertest.StartNATS(t)
	js := servertest.JetStream(t, server.URL)
	setenv(t, map[string]string{"NATS_URL": server.URL})

	if _, _, err := execute(t.Context(), "", "publish", "payments", "text"); err == nil || !strings.Contains(err.Error(), "start one first") {
		t.Errorf("without a stream: %v, want what to do about it", err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "NOTIFICATIONS", Subjects: []string{"notify", "notify.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		input     string
		arguments []string
		output    string
		problems  string
		err       string
		want      []string
	}{
		"a text": {arguments: []string{"payments", "card declined"}, output: "published 1\n",
			want: []string{`notify.payments {"text":"card declined"}`}},
		"everything": {
			arguments: []string{"payments.refunds", "text", "--title", "T", "--severity", "error", "--source", "s", "--link", "https://example.com", "--id", "i", "--cost", "3", "--field", "order=4711"},
			output:    "published 1\n",
			want:      []string{`notify.payments.refunds {"id":"i","title":"T","text":"text","severity":"error","source":"s","link":"https://example.com","cost":3,"fields":{"order":"4711"}}`},
		},
		"more than are on their way at once": {arguments: []string{"payments", "text", "--count", fmt.Sprint(maxPending + 1)}, output: fmt.Sprintf("published %d\n", maxPending+1),
			want: strings.Split(strings.TrimSpace(strings.Repeat("notify.payments {\"text\":\"text\"}\n", maxPending+1)), "\n")},
		"lines": {arguments: []string{"--stdin"}, output: "published 2\n",
			input: "{\"title\": \"a\", \"category\": \"errors\"}\n\n {\"text\": \"b\"}\r\n",
			want:  []string{`notify {"title": "a", "category": "errors"}`, `notify {"text": "b"}`}},
		"lines that are no objects": {arguments: []string{"--stdin"}, output: "published 0\n", input: "plain text\n[1]\n",
			problems: "line 2: not a JSON object", err: "2 lines were not published"},
		"lines of a category, some of them bad": {arguments: []string{"--stdin", "errors"}, output: "published 1\n",
			input:    "{broken\n{\"title\": \"a\"}\n{}\n",
			problems: "line 1: bad_json", err: "2 lines were not published",
			want: []string{`notify.errors {"title": "a"}`}},
		"no lines": {arguments: []string{"--stdin"}, output: "published 0\n"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoError(t, stream.Purge(t.Context()))
			output, problems, err := execute(t.Context(), test.input, append([]string{"publish"}, test.arguments...)...)
			if output != test.output || !strings.Contains(problems, test.problems) || (test.problems == "") != (problems == "") {
				t.Errorf("it prints %q and %q, want %q and %q", output, problems, test.output, test.problems)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("the error is %v, want %q", err, test.err)
			}
			got := stored(t, stream)
			if len(got) != len(test.want) {
				t.Fatalf("%d messages are stored, want %d", len(got), len(test.want))
			}
			for i := range got {
				testkit.Equal(t, got[i], test.want[i], "message %d", i)
			}
		})
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := execute(ended, "", "publish", "payments", "text"); err == nil {
		t.Error("what is interrupted gives no error")
	}
}
