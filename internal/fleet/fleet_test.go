package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/goleak"

	"github.com/seed-4578ace9/notifier/internal/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for, and is no expectation of how long it takes.
const patience = 30 * time.Second

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// logBuffer is a log that can be searched.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logBuffer) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

type member struct {
	*Fleet
	conn *nats.Conn
	log  *logBuffer
}

func join(t *testing.T, url, version string) member {
	t.Helper()
	m := member{conn: connect(t, url), log: &logBuffer{}}
	f, err := Join(m.conn, "of a test", version, slog.New(slog.NewTextHandler(m.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.conn.FlushTimeout(patience); err != nil { // the server knows of it
		t.Fatal(err)
	}
	m.Fleet = f
	return m
}

// requireCount counts until the number is right, since an answer that is slow is counted the next time.
func (m member) requireCount(t *testing.T, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		m.count(t.Context())
		switch got := m.Alive(); {
		case got == want:
			return
		case time.Now().After(deadline):
			t.Fatalf("%d instances are alive, want %d", got, want)
		}
	}
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
		if said := m.log.count("number of instances has changed"); said != 1 {
			t.Errorf("the log says %d times that the number has changed, want once", said)
		}
	}
	third.Leave()
	if err := third.conn.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	first.requireCount(t, 2)
	second.conn.Close() // as by a crash
	first.requireCount(t, 1)
}

// Instances of another deployment in the same account do not count.
func TestOtherDeployment(t *testing.T) {
	t.Parallel()
	n := servertest.StartNATS(t)
	mine := join(t, n.URL, "1.2.3")
	conn := connect(t, n.URL)
	if _, err := Join(conn, "another", "1.2.3", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if err := conn.FlushTimeout(patience); err != nil {
		t.Fatal(err)
	}
	mine.requireCount(t, 1)
	mine.count(t.Context())
	if alive := mine.Alive(); alive != 1 {
		t.Errorf("%d instances are alive, want 1", alive)
	}
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
			subject, err := micro.ControlSubject(micro.InfoVerb, Name, "")
			if err != nil {
				t.Fatal(err)
			}
			answer, err := connect(t, n.URL).Request(subject, nil, patience)
			if err != nil {
				t.Fatal(err)
			}
			var info micro.Info
			if err := json.Unmarshal(answer.Data, &info); err != nil {
				t.Fatal(err)
			}
			if info.Name != "notifier" || info.Version != want || info.Metadata[groupKey] != "of a test" {
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
	for deadline := time.Now().Add(patience); first.conn.IsConnected() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	first.count(t.Context())
	if alive := first.Alive(); alive != 2 {
		t.Errorf("without a server %d instances are alive, want the last number, 2", alive)
	}
	n.Restart()
	for deadline := time.Now().Add(patience); !first.conn.IsConnected() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
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
		if err := m.conn.FlushTimeout(patience); err != nil {
			t.Fatal(err)
		}
	}
	first.count(t.Context())
	if alive := first.Alive(); alive != 2 {
		t.Errorf("%d instances are alive, want the last number, 2", alive)
	}
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
	for deadline := time.Now().Add(patience); first.Alive() != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d instances are alive, want 2", first.Alive())
		}
	}
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
	conn := connect(t, n.URL)
	conn.Close()
	if _, err := Join(conn, "", "1.0.0", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("there is no error")
	}
}
