package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type member struct {
	*Fleet
	conn *nats.Conn
	log  *testkit.Log
}

// join connects an instance of the deployment "of a test", unless the options name another one.
func join(t *testing.T, url string, o Options) member {
	t.Helper()
	m := member{conn: servertest.Connect(t, url), log: testkit.NewLog(t)}
	o.Deployment, o.Logger = cmp.Or(o.Deployment, "of a test"), m.log.Logger()
	if o.Compared == nil {
		o.Compared = func(context.Context, int, int) {}
	}
	m.Fleet = testkit.Must(Join(m.conn, o))(t)
	m.flush(t)
	return m
}

// flush waits until the server knows what the instance has sent.
func (m member) flush(t *testing.T) {
	t.Helper()
	testkit.NoError(t, m.conn.FlushTimeout(testkit.Patience))
}

// requireCount counts until the number is right, since an answer that is slow is counted the next time.
func (m member) requireCount(t *testing.T, want int) {
	t.Helper()
	testkit.Await(t, fmt.Sprintf("%d instances", want), func() error {
		m.count(t.Context())
		if got := m.Alive(); got != want {
			return fmt.Errorf("%d instances are alive", got)
		}
		return nil
	})
}

func TestInstancesCountEachOther(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first := join(t, n.URL, Options{Version: "v1.2.3"})
	testkit.Equal(t, first.Alive(), 1, "instances before the first count")
	first.requireCount(t, 1)
	second, third := join(t, n.URL, Options{Version: "1.2.4"}), join(t, n.URL, Options{Version: "(devel)"})
	for _, m := range []member{first, second, third} {
		m.requireCount(t, 3)
		m.log.WantCount(t, 1, "number of instances has changed")
	}
	third.Leave()
	for _, m := range []member{first, second} {
		testkit.Eventually(t, "the instance that has left is not counted", func() bool { return m.Alive() == 2 })
	}
	second.conn.Close() // as by a crash
	for range agreeing - 1 {
		first.count(t.Context())
		testkit.Equal(t, first.Alive(), 2, "instances until the counts agree")
	}
	first.requireCount(t, 1)
}

// An instance may answer a count and say goodbye before the count ends. A goodbye that another program forged holds for two counts.
func TestGoodbyeDuringACount(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first, second := join(t, n.URL, Options{}), join(t, n.URL, Options{})
	first.requireCount(t, 2)
	answering := []string{first.service.Info().ID, second.service.Info().ID}
	first.forget(answering[1])
	for range goodbyeHolds {
		first.note(slices.Clone(answering))
		testkit.Equal(t, first.Alive(), 1, "instances after a goodbye")
	}
	first.note(slices.Clone(answering))
	testkit.Equal(t, first.Alive(), 2, "instances after a goodbye of an instance that still answers")
	first.forget(answering[0])
	testkit.Equal(t, first.Alive(), 2, "instances after a goodbye in the own name")
}

func TestOtherDeployment(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	mine := join(t, n.URL, Options{})
	join(t, n.URL, Options{Deployment: "another"})
	mine.requireCount(t, 1)
	mine.count(t.Context())
	testkit.Equal(t, mine.Alive(), 1, "instances are alive")
}

// An instance announces its version if that is a semantic one.
func TestVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "v1.2.3": "1.2.3", "v1.2.3-rc.1+build.5": "1.2.3-rc.1+build.5",
		"v0.0.0-20260301120000-abcdef012345": "0.0.0-20260301120000-abcdef012345",
		"(devel)":                            "0.0.0", "": "0.0.0", "main": "0.0.0",
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n := servertest.StartNATS(t)
			join(t, n.URL, Options{Version: version})
			subject := testkit.Must(micro.ControlSubject(micro.InfoVerb, serviceName, ""))(t)
			answer := testkit.Must(servertest.Connect(t, n.URL).Request(subject, nil, testkit.Patience))(t)
			var info micro.Info
			testkit.NoError(t, json.Unmarshal(answer.Data, &info))
			testkit.Check(t, info.Name == "notifier" && info.Version == want && info.Metadata[deploymentKey] == "of a test",
				"%q: got %s %s of %v, want notifier %s", version, info.Name, info.Version, info.Metadata, want)
		})
	}
}

// The last number stands while NATS is unavailable, and while no instance answers.
func TestLastNumberStays(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	answering := -1
	compared := func(_ context.Context, n, _ int) { answering = n }
	first, second := join(t, n.URL, Options{Compared: compared}), join(t, n.URL, Options{})
	first.requireCount(t, 2)

	first.count(testkit.Ended(t))
	testkit.Equal(t, first.Alive(), 2, "instances without time for an answer")
	n.Kill()
	testkit.Eventually(t, "the connection is lost", func() bool { return !first.conn.IsConnected() })
	first.count(t.Context())
	testkit.Equal(t, first.Alive(), 2, "instances without a server")
	testkit.Equal(t, answering, 0, "answering instances without a server")
	n.Restart()
	testkit.Eventually(t, "the connection is there again", first.conn.IsConnected)
	first.requireCount(t, 2)

	for _, m := range []member{first, second} {
		m.Leave()
		m.flush(t)
	}
	first.count(t.Context())
	testkit.Equal(t, first.Alive(), 2, "instances where none answers, not even this one")
}

// Watch counts at once and ends with its context. Leave may be called twice, and without a connection.
func TestWatch(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first, second := join(t, n.URL, Options{}), join(t, n.URL, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		first.Watch(ctx)
	}()
	testkit.Eventually(t, "two instances are alive", func() bool { return first.Alive() == 2 })
	cancel()
	<-done
	first.Leave()
	first.Leave()
	second.conn.Close()
	second.Leave()
}

func TestJoinWithoutConnection(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	conn := servertest.Connect(t, n.URL)
	conn.Close()
	_, err := Join(conn, Options{Version: "1.0.0", Logger: slog.New(slog.DiscardHandler)})
	testkit.Fails(t, "a closed connection", err, nil)
}

// Only instances of the deployment answer with a report.
func TestReports(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	asker := servertest.Connect(t, n.URL)
	testkit.Equal(t, len(testkit.Must(Ask(t.Context(), asker, "of a test"))(t)), 0, "reports without an instance")
	for i, deployment := range []string{"of a test", "of a test", "another"} {
		report := func(instance string, _ int64) ([]byte, error) {
			return json.Marshal(map[string]any{"number": i, "instance": instance})
		}
		join(t, n.URL, Options{Deployment: deployment, Report: report})
	}
	testkit.Await(t, "both reports", func() error {
		seen := make(map[int]string)
		for _, report := range testkit.Must(Ask(t.Context(), asker, "of a test"))(t) {
			var got struct {
				Number   int
				Instance string
			}
			testkit.NoError(t, json.Unmarshal(report, &got))
			seen[got.Number] = got.Instance
		}
		if len(seen) != 2 || seen[0] == "" || seen[1] == "" || seen[0] == seen[1] {
			return fmt.Errorf("the reports are %v", seen)
		}
		return nil
	})
	asker.Close()
	_, err := Ask(t.Context(), asker, "of a test")
	testkit.Fails(t, "without a connection", err, nil)
}

// A report that takes longer than askFor is awaited if an instance has counted its sender. A report that does not come is an error.
func TestReportsThatAreLate(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	asker := servertest.Connect(t, n.URL)
	report := func(string, int64) ([]byte, error) { return []byte(`"report"`), nil }
	first := join(t, n.URL, Options{Report: report})
	second := join(t, n.URL, Options{Report: func(string, int64) ([]byte, error) {
		<-time.After(askFor + askFor/4)
		return []byte(`"late"`), nil
	}})
	first.requireCount(t, 2)
	testkit.Await(t, "both reports", func() error {
		reports, err := Ask(t.Context(), asker, "of a test")
		if err == nil && len(reports) != 2 {
			err = fmt.Errorf("got %d reports", len(reports))
		}
		return err
	})
	second.conn.Close()
	reports, err := Ask(t.Context(), asker, "of a test")
	testkit.Equal(t, len(reports), 1, "reports beside the one that is missing")
	testkit.Contains(t, "error", fmt.Sprint(err), "1 of the 2 workers that were alive a moment ago did not report in time")
}

// Nobody waits for the report of an instance that has left.
func TestReportsWithoutThoseThatLeft(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	asker := servertest.Connect(t, n.URL)
	report := func(string, int64) ([]byte, error) { return []byte(`"report"`), nil }
	first, second := join(t, n.URL, Options{Report: report}), join(t, n.URL, Options{Report: report})
	first.requireCount(t, 2)
	second.Leave()
	second.flush(t)
	testkit.Equal(t, len(testkit.Must(Ask(t.Context(), asker, "of a test"))(t)), 1, "reports")
}

// A report may have as many bytes as NATS takes with its headers. An instance that cannot report logs it once, and its answer is an error.
func TestReportThatFails(t *testing.T) {
	t.Parallel()
	const maxPayload = 16 << 10
	n := servertest.StartNATS(t, func(o *server.Options) { o.MaxPayload = maxPayload })
	asker := servertest.Connect(t, n.URL)
	var failure atomic.Pointer[error]
	failing := join(t, n.URL, Options{Report: func(_ string, most int64) ([]byte, error) {
		if err := failure.Load(); err != nil {
			return nil, *err
		}
		return []byte(`"` + strings.Repeat("x", int(most)-2) + `"`), nil
	}})
	join(t, n.URL, Options{Report: func(string, int64) ([]byte, error) { return []byte(`"sound"`), nil }})
	ask := func() ([]json.RawMessage, error) { return Ask(t.Context(), asker, "of a test") }

	reports := testkit.Must(ask())(t)
	longest := slices.MaxFunc(reports, func(a, b json.RawMessage) int { return cmp.Compare(len(a), len(b)) })
	testkit.Check(t, len(reports) == 2 && len(longest) == maxPayload-headersSize,
		"got %d reports, the longest of %d bytes; want 2, %d", len(reports), len(longest), maxPayload-headersSize)
	tooLong := errors.New("the report is too long")
	failure.Store(&tooLong)
	for range 2 {
		reports, err := ask()
		testkit.Equal(t, len(reports), 1, "reports beside the one that fails")
		testkit.Contains(t, "error", fmt.Sprint(err), "a worker cannot report: the report is too long")
	}
	failing.log.WantCount(t, 1, "cannot report the status")
	failure.Store(nil)
	testkit.Equal(t, len(testkit.Must(ask())(t)), 2, "reports after the failure")
	failing.log.WantCount(t, 1, "status is reported again")
}

// Counting reports whether the settings of another instance differ.
func TestSettingsDiffer(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	var differing int
	announce := func(settings string) member {
		return join(t, n.URL, Options{Settings: settings, Compared: func(_ context.Context, _, now int) { differing = now }})
	}
	await := func(f member, alive, want int) {
		t.Helper()
		testkit.Await(t, fmt.Sprintf("%d instances, differing: %d", alive, want), func() error {
			f.count(t.Context())
			if f.Alive() != alive || differing != want {
				return fmt.Errorf("%d instances, differing: %d", f.Alive(), differing)
			}
			return nil
		})
	}
	first := announce("hash of some settings")
	announce("hash of some settings")
	announce("") // as an older version does
	await(first, 3, 0)
	other := announce("hash of other settings")
	await(first, 4, 1)
	other.Leave()
	await(first, 3, 0)
}

// TestOtherLayout has instances of two layouts see each other. Each reports the other one once.
func TestOtherLayout(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	const line = "an instance of another layout is running, stop it"
	old := join(t, n.URL, Options{Version: "1.0.0", Layout: 1})
	old.requireCount(t, 1)
	old.log.WantCount(t, 0, line)
	next := join(t, n.URL, Options{Version: "2.0.0", Layout: 2})
	for range 2 {
		old.requireCount(t, 2)
		next.requireCount(t, 2)
	}
	old.log.WantCount(t, 1, line)
	next.log.WantCount(t, 1, line)
	members := testkit.Must(Members(t.Context(), old.conn, "of a test"))(t)
	layouts := make(map[string]int)
	for _, m := range members {
		layouts[m.Version] = m.Layout
	}
	testkit.EqualMaps(t, layouts, map[string]int{"1.0.0": 1, "2.0.0": 2}, "layouts by version")
}
