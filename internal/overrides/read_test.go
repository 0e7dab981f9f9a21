package overrides

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// What comes to a reading is what the server promised, or ends it.
func TestMessages(t *testing.T) {
	t.Parallel()
	const acknowledgement = "$JS.ACK.KV_limits.consumer.1."
	for name, test := range map[string]struct {
		reply   string
		header  nats.Header
		want    record
		wantErr error
		says    string
	}{
		"set": {reply: acknowledgement + "7.3.1000000000.0", want: record{value: "1/1m", revision: 7}},
		"deletion": {reply: acknowledgement + "7.3.1000000000.0", header: nats.Header{"KV-Operation": {"DEL"}},
			want: record{value: "1/1m", revision: 7, deleted: true}},
		"purge": {reply: acknowledgement + "7.3.1000000000.0", header: nats.Header{"KV-Operation": {"PURGE"}},
			want: record{value: "1/1m", revision: 7, deleted: true, purged: true}},
		"expiry": {reply: acknowledgement + "7.3.1000000000.0", header: nats.Header{"Nats-Marker-Reason": {"MaxAge"}},
			want: record{value: "1/1m", revision: 7, deleted: true, purged: true}},
		"one is missing":       {reply: acknowledgement + "7.4.1000000000.0", wantErr: errGap},
		"one comes again":      {reply: acknowledgement + "7.2.1000000000.0", wantErr: errGap},
		"no message of theirs": {reply: "_INBOX.x", says: "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := reading{prefix: "$KV.limits.", received: 2}
			message := &nats.Msg{
				Subject: "$KV.limits.a.=", Reply: test.reply, Header: test.header, Data: []byte("1/1m"), Sub: &nats.Subscription{},
			}
			got, err := r.record(message)
			if test.wantErr != nil || test.says != "" {
				if err == nil || test.wantErr != nil && !errors.Is(err, test.wantErr) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("error = %v, want %v %s", err, test.wantErr, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.changed.Unix() != 1 {
				t.Errorf("changed at %v, want a second after the epoch", got.changed)
			}
			test.want.key, test.want.changed = "a.=", got.changed
			if *got != test.want {
				t.Errorf("record = %+v, want %+v", *got, test.want)
			}
			if r.received != 3 || r.newest != 7 {
				t.Errorf("received %d, newest %d; want 3, 7", r.received, r.newest)
			}
		})
	}
}

// A word of the server that is no message is understood, or ends the reading.
func TestServerSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header  nats.Header
		wantErr error
		says    string
	}{
		"all has arrived":     {header: nats.Header{"Status": {"100"}, "Nats-Last-Consumer": {"2"}}},
		"it does not count":   {header: nats.Header{"Status": {"100"}}},
		"one has not arrived": {header: nats.Header{"Status": {"100"}, "Nats-Last-Consumer": {"3"}}, wantErr: errGap},
		"the end":             {header: nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}, says: "409 Consumer Deleted"},
		"nothing":             {says: "the server says"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := reading{received: 2}
			err := r.idle(&nats.Msg{Header: test.header})
			switch {
			case test.wantErr != nil && !errors.Is(err, test.wantErr):
				t.Errorf("error = %v, want %v", err, test.wantErr)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("error = %v, want %s", err, test.says)
			case test.wantErr == nil && test.says == "" && err != nil:
				t.Errorf("error = %v", err)
			}
		})
	}
}
