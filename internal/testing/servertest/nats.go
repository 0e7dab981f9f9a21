package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// The environment of a test binary that is to serve NATS: the configuration file, the port, and the store.
const (
	serveConfig = "SERVERTEST_NATS"
	servePort   = "SERVERTEST_NATS_PORT"
	serveStore  = "SERVERTEST_NATS_STORE"
	serveReady  = "servertest: NATS is ready"
)

// programVariable may name a NATS server program. It then runs wherever a test needs a server that a configuration file can describe;
// otherwise it is the library, in the version of go.mod.
const (
	programVariable = "NATS_SERVER"
	programReady    = "Server is ready"
)

// NATS is a real NATS server with JetStream, on its own port and folder.
type NATS struct {
	URL string // nats://127.0.0.1:port; it never changes
	Dir string // where JetStream stores

	t       testing.TB
	restart func()
	kill    func()
	process *process // nil for a server in this process
}

// StartNATS starts a server in this process, which takes a few milliseconds, and ends it with the test.
// The functions change its options before each start. Without any, a server that NATS_SERVER names is started instead.
func StartNATS(t testing.TB, options ...func(*server.Options)) *NATS {
	t.Helper()
	if os.Getenv(programVariable) != "" && len(options) == 0 {
		return StartNATSProcess(t, "")
	}
	port := ReservePort(t)
	n := newNATS(t, port)
	var running *server.Server
	n.kill = func() {
		running.Shutdown()
		running.WaitForShutdown()
		waitFree(t, fmt.Sprintf("127.0.0.1:%d", port))
	}
	n.restart = func() {
		n.t.Helper()
		o := &server.Options{JetStream: true, NoLog: true}
		for _, change := range options {
			change(o)
		}
		o.Host, o.Port, o.StoreDir, o.NoSigs = "127.0.0.1", port, n.Dir, true
		running = testkit.Must(serve(o))(n.t)
	}
	n.restart()
	t.Cleanup(n.Kill)
	return n
}

// Limited adds two users to a server: all, and limited, who may not publish on the denied subjects. Their password is "secret".
func Limited(denied ...string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "secret"},
			{Username: "limited", Password: "secret", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: denied}}},
		}
	}
}

// SampleUsers are the users of configs/nats/notifier.conf.
var SampleUsers = []string{"operator", "notifier", "limits", "replayer", "ingest", "producer", "provisioner"}

// StartSampleNATS starts a server with configs/nats/notifier.conf, read as the server does from the path of the file. The password of each
// user is "secret".
func StartSampleNATS(t *testing.T, file string) *NATS {
	t.Helper()
	for _, user := range SampleUsers {
		t.Setenv("NATS_"+strings.ToUpper(user)+"_PASSWORD", "secret")
	}
	sample := testkit.Must(server.ProcessConfigFile(file))(t)
	sample.HTTPPort = 0 // the sample's fixed port may be in use
	return StartNATS(t, func(o *server.Options) { *o = *sample.Clone() })
}

// StartNATSProcess starts a server in its own process, so that a test can kill and pause it. The server ends with the test. The program is
// NATS_SERVER, by default the test binary. config is a NATS configuration, often empty, without address, store and JetStream.
func StartNATSProcess(t testing.TB, config string) *NATS {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	testkit.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	port := ReservePort(t)
	n := newNATS(t, port)
	n.kill = func() { n.process.kill() }
	n.restart = func() {
		n.t.Helper()
		n.process = startNATS(n.t, file, strconv.Itoa(port), n.Dir)
	}
	n.restart()
	t.Cleanup(n.Kill)
	return n
}

// startNATS starts the program of NATS_SERVER. Without it, it starts the test binary as a NATS server.
func startNATS(t testing.TB, file, port, store string) *process {
	t.Helper()
	if program := os.Getenv(programVariable); program != "" {
		return startOnPort(t, func() *exec.Cmd {
			return exec.Command(program, "--config", file, "--addr", "127.0.0.1", "--port", port, "--jetstream", "--store_dir", store)
		}, programReady)
	}
	self := testkit.Must(os.Executable())(t)
	return startOnPort(t, func() *exec.Cmd {
		command := exec.Command(self)
		command.Env = append(os.Environ(), serveConfig+"="+file, servePort+"="+port, serveStore+"="+store)
		return command
	}, serveReady)
}

func newNATS(t testing.TB, port int) *NATS {
	return &NATS{URL: fmt.Sprintf("nats://127.0.0.1:%d", port), Dir: t.TempDir(), t: t}
}

// Kill ends the server, with SIGKILL if the server has its own process. Without one it shuts the server down. A second Kill does nothing.
func (n *NATS) Kill() { n.kill() }

// Restart kills the server if it runs, and starts it again with its address and store. It returns when the server accepts clients.
func (n *NATS) Restart() {
	n.t.Helper()
	n.kill()
	n.restart()
}

// Pause stops the server with SIGSTOP: connections stay open, and the server answers nothing. It needs a server of [StartNATSProcess].
func (n *NATS) Pause() {
	n.t.Helper()
	testkit.NoError(n.t, n.child().pause())
}

// Resume lets a paused server go on, with SIGCONT.
func (n *NATS) Resume() {
	n.t.Helper()
	testkit.NoError(n.t, n.child().resume())
}

func (n *NATS) child() *process {
	n.t.Helper()
	if n.process == nil {
		n.t.Fatal("pause a NATS server: it runs in this process; start it with StartNATSProcess")
	}
	return n.process
}

// serve starts a server and returns when it accepts clients.
func serve(o *server.Options) (*server.Server, error) {
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("set up a NATS server: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(startTimeout) {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("start a NATS server on port %d: it accepts no clients after %v", o.Port, startTimeout)
	}
	return s, nil
}

// A test binary started by StartNATSProcess never reaches its tests. This is an init function, so that no package
// has to call it from its TestMain.
func init() {
	file, found := os.LookupEnv(serveConfig)
	if !found {
		return
	}
	if err := serveUntilKilled(file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serveUntilKilled(file string) error {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		return fmt.Errorf("read the NATS configuration: %w", err)
	}
	if o.Port, err = strconv.Atoi(os.Getenv(servePort)); err != nil {
		return fmt.Errorf("read %s: %w", servePort, err)
	}
	o.Host, o.StoreDir, o.JetStream, o.NoSigs = "127.0.0.1", os.Getenv(serveStore), true, true
	s, err := serve(o)
	if err != nil {
		return err
	}
	fmt.Println(serveReady)
	s.WaitForShutdown()
	return errors.New("the NATS server ended by itself")
}
