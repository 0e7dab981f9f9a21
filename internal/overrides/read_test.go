package overrides

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
	"github.com/seed-4578ace9/notifier/internal/trusted"
)

// delivery is a message with a sequence number of its consumer.
type delivery struct {
	jetstream.Msg
	number   uint64
	header   nats.Header
	metadata error
}

func (d delivery) Subject() string      { return "$KV.limits.a.=" }
func (d delivery) Data() []byte         { return []byte("1/1m") }
func (d delivery) Headers() nats.Header { return d.header }

func (d delivery) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{
		Sequence: jetstream.SequencePair{Stream: 7, Consumer: d.number}, Timestamp: time.Unix(1, 0),
	}, d.metadata
}

// marked are the headers of a message by a worker or an operator.
func marked() nats.Header {
	h := make(nats.Header)
	trusted.Mark(h)
	return h
}

func TestChangeOfMessage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		arrival arrival
		want    Change
		wantErr error
		says    string
	}{
		"set":    {arrival: arrival{message: delivery{number: 3, header: marked()}}, want: Change{Value: "1/1m", Revision: 7}},
		"forged": {arrival: arrival{message: delivery{number: 3}}, want: Change{Value: "1/1m", Revision: 7, stored: stored{forged: true}}},
		"purge": {arrival: arrival{message: delivery{number: 3, header: nats.Header{"KV-Operation": {"PURGE"}}}},
			want: Change{Value: "1/1m", Revision: 7, Deleted: true, stored: stored{purged: true}}},
		"expiry": {arrival: arrival{message: delivery{number: 3, header: nats.Header{"Nats-Marker-Reason": {"MaxAge"}}}},
			want: Change{Value: "1/1m", Revision: 7, Deleted: true, stored: stored{purged: true}}},
		"message 3 is missing":  {arrival: arrival{message: delivery{number: 4}}, wantErr: errGap},
		"message 2 comes again": {arrival: arrival{message: delivery{number: 2}}, wantErr: errGap},
		"no metadata": {arrival: arrival{message: delivery{metadata: jetstream.ErrNotJSMessage}},
			wantErr: jetstream.ErrNotJSMessage, says: "metadata"},
		"no heartbeat": {arrival: arrival{err: jetstream.ErrNoHeartbeat}, wantErr: jetstream.ErrNoHeartbeat, says: "waiting for changes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := reading{prefix: "$KV.limits.", received: 2}
			got, err := r.change(test.arrival)
			testkit.Require(t, errors.Is(err, test.wantErr), "error = %v, want %v", err, test.wantErr)
			if err != nil {
				testkit.Contains(t, "error", err.Error(), test.says)
				return
			}
			test.want.Name, test.want.stored.key, test.want.Changed = enforced("a.*"), "a.=", time.Unix(1, 0)
			testkit.Equal(t, got, test.want, "change")
			testkit.Equal(t, r.received, 3, "messages received")
			testkit.Equal(t, r.newest, 7, "newest revision")
		})
	}
}
