package consume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/event"
)

func TestOwnHeader(t *testing.T) {
	t.Parallel()
	own := nats.Header{HeaderReason: {"bad_json"}, HeaderError: {"not JSON"}}
	for name, test := range map[string]struct{ producer, want nats.Header }{
		"none":                        {nil, nats.Header{}},
		"a producer's are kept":       {nats.Header{"X-Trace": {"1", "2"}, "lower": {"x"}}, nats.Header{"X-Trace": {"1", "2"}, "lower": {"x"}}},
		"commands are kept out":       {nats.Header{"Nats-Rollup": {"all"}, "nats-expected-stream": {"EVENTS"}, "NATS-TTL": {"1s"}}, nats.Header{}},
		"the message ID is kept":      {nats.Header{"Nats-Msg-Id": {"id"}}, nats.Header{HeaderMessageID: {"id"}}},
		"in any letter case":          {nats.Header{"nats-msg-id": {"id"}}, nats.Header{HeaderMessageID: {"id"}}},
		"without a value":             {nats.Header{"Nats-Msg-Id": {}}, nats.Header{}},
		"ours win":                    {nats.Header{HeaderReason: {"forged"}, "notifier-error": {"forged"}}, nats.Header{}},
		"the message ID is not taken": {nats.Header{HeaderMessageID: {"forged"}, "Nats-Msg-Id": {"id"}}, nats.Header{HeaderMessageID: {"id"}}},
		"nor forged":                  {nats.Header{"notifier-msg-id": {"forged"}}, nats.Header{}},
		"others of ours' look":        {nats.Header{"Notifier-Trace": {"1"}}, nats.Header{"Notifier-Trace": {"1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := maps.Clone(own)
			maps.Copy(want, test.want)
			if got := ownHeader(test.producer, own); !maps.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                  "",
		"plain text, äöü":                   "plain text, äöü",
		"a\r\nNats-Rollup: all\r\n\r\nb":    "a Nats-Rollup: all b",
		"\x00a\tb\x7f\n":                    "a b",
		"\n\n\n":                            "",
		"many   blanks are the text's own ": "many   blanks are the text's own ",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("oneLine(%q) = %q, want %q", text, got, want)
		}
	}
}

// A dead letter has the untouched body and the producer's headers, and says where it comes from and why.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	const maxPayload = 1 << 20 // the server's default
	large := strings.Repeat("v", 1500)
	headers := []string{"X-Large", large}
	headerSize := len("NATS/1.0\r\nX-Large: \r\n\r\n") + len(large)
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprintf("X-%d", i), fmt.Sprint(i))
	}
	body := func(size int) string { return "{" + strings.Repeat("x", size-1) }
	for name, test := range map[string]struct {
		subject, body string
		headers       []string
		reason        event.Reason
		has           map[string]string
		hasNot        []string
		bare          bool // without any header
	}{
		"small": {body: "{broken", headers: []string{"X-Trace", "7", "Nats-Msg-Id", "id", "Nats-Expected-Stream", testNames.Stream, HeaderReason, "forged"},
			reason: event.ReasonBadJSON, has: map[string]string{"X-Trace": "7", HeaderMessageID: "id", event.HeaderID: "id"}, hasNot: []string{"Nats-Expected-Stream"}},
		"empty":                                  {body: "", reason: event.ReasonEmpty},
		"no UTF-8":                               {body: "\xff\x00\r\n", reason: event.ReasonBadUTF8},
		"bad category":                           {subject: "notify.ä😀.B", body: "text", reason: event.ReasonBadCategory},
		"a thousand headers":                     {body: "{broken", headers: many, reason: event.ReasonBadJSON, has: map[string]string{"X-0": "0", "X-999": "999"}},
		"no room for the producer's headers":     {body: body(maxPayload - headerSize), headers: headers, reason: event.ReasonBadJSON, has: map[string]string{event.HeaderID: "EVENTS:1"}, hasNot: []string{"X-Large"}},
		"no room for any header":                 {body: body(maxPayload), reason: event.ReasonBadJSON, bare: true},
		"too large, with no room for any header": {body: body(maxPayload), reason: event.ReasonTooLarge, bare: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.provision(patience)
			subject := "notify.payments"
			if test.subject != "" {
				subject = test.subject
			}
			sequence := f.publish(subject, test.body, test.headers...)
			f.start(func(o *Options) {
				if test.reason == event.ReasonTooLarge {
					o.Decoder.MaxBytes = 1000
				}
			})
			f.awaitSettled(1)
			f.requireSaid(sequence, "+TERM "+string(test.reason)+": …")
			if n := f.metrics.get("letter " + string(test.reason)); n != 1 {
				t.Errorf("%d dead letters were counted for the reason, want 1", n)
			}
			letters := f.deadLetters()
			if len(letters) != 1 {
				t.Fatalf("%d dead letters are stored, want 1", len(letters))
			}
			letter := letters[0]
			if string(letter.Data) != test.body || letter.Subject != "notify-dlq."+string(test.reason) {
				t.Errorf("it is on %s, with %d bytes; want the untouched body of %d bytes on notify-dlq.%s", letter.Subject, len(letter.Data), len(test.body), test.reason)
			}
			if test.bare {
				if len(letter.Header) > 0 {
					t.Errorf("it has headers: %v", letter.Header)
				}
				return
			}
			want := map[string]string{
				HeaderReason: string(test.reason), HeaderSubject: subject, HeaderSequence: "1", HeaderDeliveries: "1",
			}
			if id := letter.Header.Get(nats.MsgIdHdr); !strings.HasPrefix(id, "dlq-EVENTS-1-") {
				t.Errorf("its message ID is %q, want one that names stream, sequence and time", id)
			}
			maps.Copy(want, test.has)
			for name, value := range want {
				if got := letter.Header.Values(name); !slices.Equal(got, []string{value}) {
					t.Errorf("its header %s is %q, want %q", name, got, value)
				}
			}
			if letter.Header.Get(HeaderError) == "" {
				t.Error("it does not say in words what is wrong")
			}
			for _, name := range test.hasNot {
				if got := letter.Header.Values(name); len(got) > 0 {
					t.Errorf("its header %s is %q, want none", name, got)
				}
			}
		})
	}
}

// A message that becomes a dead letter again, because its termination was lost, is stored once.
func TestDeadLetterIsStoredOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	w := f.prepared(nil)
	f.publish("notify.payments", "{broken")
	m := f.taken(w, patience)
	fault := event.NewFault(event.ReasonBadJSON, "broken", nil)
	for range 2 {
		if err := w.storeDeadLetter(t.Context(), m, fault); err != nil {
			t.Fatal(err)
		}
	}
	if letters := f.deadLetters(); len(letters) != 1 {
		t.Errorf("%d dead letters are stored, want 1", len(letters))
	}
}

// A dead-letter stream that is deleted under a running worker is made anew, where that is wanted.
func TestDeadLetterStreamIsMadeAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start(nil)
	if err := f.js.DeleteStream(t.Context(), testNames.DeadLetterStream); err != nil {
		t.Fatal(err)
	}
	sequence := f.publish("notify.payments", "{broken")
	f.awaitSettled(1)
	f.requireSaid(sequence, "+TERM bad_json: …")
	if letters := f.deadLetters(); len(letters) != 1 {
		t.Errorf("%d dead letters are stored, want 1", len(letters))
	}
}

// A stream may bound its messages more tightly than the server does.
func TestTooMuch(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nats.ErrMaxPayload, &jetstream.APIError{ErrorCode: 10054}} {
		if !tooMuch(fmt.Errorf("wrapped: %w", err)) {
			t.Errorf("%v is not taken for too much", err)
		}
	}
	for _, err := range []error{nil, nats.ErrTimeout, &jetstream.APIError{ErrorCode: 10060}} {
		if tooMuch(err) {
			t.Errorf("%v is taken for too much", err)
		}
	}
}
