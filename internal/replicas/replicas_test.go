package replicas_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-4578ace9/notifier/internal/replicas"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// One replica is the answer to a cluster that is too small, and to nothing else.
func TestCreate(t *testing.T) {
	t.Parallel()
	refusal := func(code jetstream.ErrorCode, text string) error {
		return fmt.Errorf("creating it: %w", &jetstream.APIError{ErrorCode: code, Description: text})
	}
	for name, test := range map[string]struct {
		wanted int
		err    error // of more than one replica
		tried  []int
	}{
		"as wanted":                 {wanted: 1, tried: []int{1}},
		"more than there are":       {wanted: 5, err: refusal(10005, "no suitable peers for placement"), tried: []int{5}},
		"a cluster":                 {tried: []int{3}},
		"no cluster":                {err: refusal(10074, "replicas > 1 not supported in non-clustered mode"), tried: []int{3, 1}},
		"a cluster of two":          {err: refusal(10005, "no suitable peers for placement"), tried: []int{3, 3, 3, 1}},
		"one server is unavailable": {err: refusal(10005, "no suitable peers for placement, peer offline"), tried: []int{3}},
		"the servers are full":      {err: refusal(10005, "no suitable peers for placement, insufficient storage"), tried: []int{3}},
		"another refusal":           {err: refusal(10058, "stream name already in use"), tried: []int{3}},
		"no answer from anyone":     {err: errors.New("timeout"), tried: []int{3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var (
				tried []int
				err   error
			)
			synctest.Test(t, func(t *testing.T) {
				err = replicas.Create(t.Context(), test.wanted, func(n int) error {
					tried = append(tried, n)
					if n > 1 {
						return test.err
					}
					return nil
				})
			})
			testkit.EqualSlices(t, tried, test.tried, "tried replicas")
			want := tried[len(tried)-1] > 1
			testkit.Check(t, (err != nil) == (want && test.err != nil), "the error is %v", err)
		})
	}
}

// A server that has just joined a cluster is not missed.
func TestCreateInYoungCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tried []int
		err := replicas.Create(t.Context(), replicas.Auto, func(n int) error {
			if tried = append(tried, n); len(tried) == 1 {
				return &jetstream.APIError{ErrorCode: 10005, Description: "no suitable peers for placement"}
			}
			return nil
		})
		testkit.Check(t, err == nil && slices.Equal(tried, []int{3, 3}), "tried %v replicas, %v, want three again", tried, err)
	})
}

// late is a JetStream that finds no stream at first: another instance creates the stream meanwhile.
type late struct {
	jetstream.JetStream
	asked bool
}

func (l *late) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if !l.asked {
		l.asked = true
		return nil, jetstream.ErrStreamNotFound
	}
	return l.JetStream.Stream(ctx, name)
}

// A stream is created once, and never changed.
func TestEnsureStream(t *testing.T) {
	t.Parallel()
	js := servertest.JetStream(t, servertest.StartNATS(t).URL)
	config := jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events"}, Description: "first"}
	for _, test := range []struct {
		js   jetstream.JetStream
		want int
	}{{js, 1}, {js, 0}, {&late{JetStream: js}, 0}} {
		stream, created, err := replicas.EnsureStream(t.Context(), test.js, config, replicas.Auto)
		testkit.NoError(t, err)
		testkit.Equal(t, created, test.want, "replicas that were created")
		testkit.Equal(t, stream.CachedInfo().Config.Description, "first", "description")
		config.Description = "later"
	}
	config.Name = "OTHERS"
	_, _, err := replicas.EnsureStream(t.Context(), js, config, 1)
	testkit.Fails(t, "error of a stream with subjects of another one", err, nil, `creating stream "OTHERS"`)
}
