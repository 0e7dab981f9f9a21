package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

type member struct {
	*Fleet
	conn *nats.Conn
	log  *testkit.Log
}

func join(t *testing.T, url, version string) member {
	t.Helper()
	m := member{conn: servertest.Connect(t, url), log: testkit.NewLog(t)}
	f := testkit.Must(Join(m.conn, Options{Deployment: "of a test", Version: version, Logger: m.log.Logger()}))(t)
	if err := m.conn.FlushTimeout(patience); err != nil { // the server knows of it
		t.Fatal(err)
	}
	m.Fleet = f
	return m
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
	first := join(t, n.URL, "v1.2.3")
	if alive := first.Alive(); alive != 1 {
		t.Errorf("before it has asked, %d instances are alive, want 1", alive)
	}
	first.requireCount(t, 1)
	second, third := join(t, n.URL, "1.2.4"), join(t, n.URL, "(devel)")
	for _, m := range []member{first, second, third} {
		m.requireCount(t, 3)
		m.log.WantCount(t, 1, "number of instances has changed")
	}
	third.Leave()
	testkit.NoError(t, third.conn.FlushTimeout(patience))
	first.requireCount(t, 2)
	second.conn.Close() // as by a crash
	first.requireCount(t, 1)
}

// Instances of another deployment in the same account do not count.
func TestOtherDeployment(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	mine := join(t, n.URL, "1.2.3")
	conn := servertest.Connect(t, n.URL)
	testkit.Must(Join(conn, Options{Deployment: "another", Version: "1.2.3", Logger: slog.New(slog.DiscardHandler)}))(t)
	testkit.NoError(t, conn.FlushTimeout(patience))
	mine.requireCount(t, 1)
	mine.count(t.Context())
	testkit.Equal(t, mine.Alive(), 1, "instances are alive")
}

// The version that is announced is the program's where it is a semantic one.
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
			join(t, n.URL, version)
			subject := testkit.Must(micro.ControlSubject(micro.InfoVerb, Name, ""))(t)
			answer := testkit.Must(servertest.Connect(t, n.URL).Request(subject, nil, patience))(t)
			var info micro.Info
			testkit.NoError(t, json.Unmarshal(answer.Data, &info))
			if info.Name != "notifier" || info.Version != want || info.Metadata[deploymentKey] != "of a test" {
				t.Errorf("%q is announced as %s %s of %v; want notifier %s", version, info.Name, info.Version, info.Metadata, want)
			}
		})
	}
}

// While NATS does not answer, or nobody does, the last number stands.
func TestLastNumberStands(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first, _ := join(t, n.URL, "1.0.0"), join(t, n.URL, "1.0.0")
	first.requireCount(t, 2)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	first.count(ended) // nobody answers in no time
	if alive := first.Alive(); alive != 2 {
		t.Errorf("without an answer %d instances are alive, want the last number, 2", alive)
	}
	n.Kill()
	testkit.Eventually(t, "the connection is lost", func() bool { return !first.conn.IsConnected() })
	first.count(t.Context())
	if alive := first.Alive(); alive != 2 {
		t.Errorf("without a server %d instances are alive, want the last number, 2", alive)
	}
	n.Restart()
	testkit.Eventually(t, "the connection is there again", first.conn.IsConnected)
	first.requireCount(t, 2)
}

// Whom nobody hears, itself included, counts nobody: that says nothing about the others.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first, second := join(t, n.URL, "1.0.0"), join(t, n.URL, "1.0.0")
	first.requireCount(t, 2)
	first.Leave()
	second.Leave()
	for _, m := range []member{first, second} {
		testkit.NoError(t, m.conn.FlushTimeout(patience))
	}
	first.count(t.Context())
	testkit.Equal(t, first.Alive(), 2, "instances are alive, want the last number, 2")
}

// Watching counts at once, and ends with its context. Leaving twice, or without a connection, is harmless.
func TestWatch(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	first, second := join(t, n.URL, "1.0.0"), join(t, n.URL, "1.0.0")
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

// A connection that is closed cannot announce anything.
func TestJoinWithoutConnection(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	conn := servertest.Connect(t, n.URL)
	conn.Close()
	if _, err := Join(conn, Options{Version: "1.0.0", Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("there is no error")
	}
}

// Each instance of the deployment answers with its report, and no instance of another one.
func TestReports(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	asker := servertest.Connect(t, n.URL)
	if reports := testkit.Must(Ask(t.Context(), asker, "of a test", 0))(t); len(reports) != 0 {
		t.Errorf("without an instance there are %d reports", len(reports))
	}
	for i, deployment := range []string{"of a test", "of a test", "another"} {
		conn := servertest.Connect(t, n.URL)
		report := func(instance string) any { return map[string]any{"number": i, "instance": instance} }
		testkit.Must(Join(conn, Options{Deployment: deployment, Version: "1.2.3", Report: report, Logger: slog.New(slog.DiscardHandler)}))(t)
		testkit.NoError(t, conn.FlushTimeout(patience))
	}
	testkit.Await(t, "both reports", func() error {
		seen := make(map[int]string)
		for _, report := range testkit.Must(Ask(t.Context(), asker, "of a test", 2))(t) {
			var told struct {
				Number   int
				Instance string
			}
			testkit.NoError(t, json.Unmarshal(report, &told))
			seen[told.Number] = told.Instance
		}
		if len(seen) != 2 || seen[0] == "" || seen[1] == "" || seen[0] == seen[1] {
			return fmt.Errorf("the reports are %v", seen)
		}
		return nil
	})
	asker.Close()
	if _, err := Ask(t.Context(), asker, "of a test", 0); err == nil {
		t.Error("without a connection there is no error")
	}
}

// Whoever counts learns whether the settings of another instance differ from its own.
func TestSettingsDiffer(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	var differ bool
	announce := func(settings string) *Fleet {
		conn := servertest.Connect(t, n.URL)
		f := testkit.Must(Join(conn, Options{
			Deployment: "of a test", Version: "1.0.0", Settings: settings, Logger: slog.New(slog.DiscardHandler),
			Compared: func(_ context.Context, now bool) { differ = now },
		}))(t)
		testkit.NoError(t, conn.FlushTimeout(patience))
		return f
	}
	await := func(f *Fleet, alive int, want bool) {
		t.Helper()
		testkit.Await(t, fmt.Sprintf("%d instances, differing: %v", alive, want), func() error {
			f.count(t.Context())
			if f.Alive() != alive || differ != want {
				return fmt.Errorf("%d instances, differing: %v", f.Alive(), differ)
			}
			return nil
		})
	}
	first := announce("hash of some settings")
	announce("hash of some settings")
	announce("") // of a version that announces none
	await(first, 3, false)
	other := announce("hash of other settings")
	await(first, 4, true)
	other.Leave()
	await(first, 3, false)
}
