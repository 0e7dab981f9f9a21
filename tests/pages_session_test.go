package tests

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/testing/doctest"
	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/slacktest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// pageToken is the Slack token of the pages.
const pageToken = "xoxb-your-token"

// session is a shell for the commands of a page. Folder, variables and background programs stay from block to block.
type session struct {
	t      *testing.T
	file   string
	folder string

	script   string            // the commands of a block
	printed  string            // what they print
	ports    *strings.Replacer // from the usual addresses to those of the page's servers
	usual    *strings.Replacer // and back
	commands io.Writer
	statuses chan string // one for each line of commands; closed with the shell
}

// startSession starts a shell with its own NATS, Redis and Slack, and kills its process group at the end of the test.
func startSession(t *testing.T, file, folder string) *session {
	t.Helper()
	private := t.TempDir()
	s := &session{
		t: t, file: file, folder: folder, statuses: make(chan string),
		script: filepath.Join(private, "commands"), printed: filepath.Join(private, "printed"),
	}
	slack := slacktest.New(t, slacktest.WithToken(pageToken), slacktest.WithChannels(
		slacktest.Channel{ID: "C0000000001", Name: "alerts", Member: true}, slacktest.Channel{ID: "C0000000002", Name: "payments", Member: true},
		slacktest.Channel{ID: "C0000000003", Name: "deploys"}))
	addresses := map[string]string{
		"4222": strings.TrimPrefix(servertest.StartNATS(t).URL, "nats://"), "6379": servertest.StartRedis(t, "--appendonly", "yes").Addr,
		"8080": freeAddress(t), "8081": freeAddress(t), "8082": freeAddress(t), "8083": freeAddress(t), "8085": freeAddress(t),
	}
	var there, back []string
	for port, address := range addresses {
		there = append(there, "127.0.0.1:"+port, address)
		back = append(back, address, "127.0.0.1:"+port)
	}
	s.ports, s.usual = strings.NewReplacer(there...), strings.NewReplacer(back...)
	shell := exec.Command("sh")
	shell.Dir = folder
	shell.Env = append(settings{
		"NATS_URL": "nats://" + addresses["4222"], "REDIS_URL": "redis://" + addresses["6379"] + "/0", "HTTP_ADDR": addresses["8080"],
		"SLACK_API_URL": slack.APIURL(),
	}.environment(), "PATH="+filepath.Dir(program)+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+private)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.start(shell)
	return s
}

func (s *session) start(shell *exec.Cmd) {
	s.t.Helper()
	s.commands = testkit.Must(shell.StdinPipe())(s.t)
	lines := testkit.Must(shell.StdoutPipe())(s.t)
	testkit.NoError(s.t, shell.Start())
	go func() {
		defer close(s.statuses)
		for scanner := bufio.NewScanner(lines); scanner.Scan(); {
			s.statuses <- scanner.Text()
		}
	}()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		for range s.statuses { // until the shell has gone
			continue
		}
		_ = shell.Wait()
	})
}

// enter runs the commands of a block, and compares the output with the page.
func (s *session) enter(block, output doctest.Block) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		printed, status := s.run(block, output.Status == 0 && !output.Eventually)
		err := doctest.Compare(output.Text, s.usual.Replace(printed))
		if err == nil && status != output.Status {
			err = fmt.Errorf("the status is %d, the page wants %d:\n%s", status, output.Status, printed)
		}
		if err == nil {
			return
		}
		testkit.Require(s.t, output.Eventually && !time.Now().After(deadline), "%s:%d:\n%s%v", s.file, block.Line, block.Text, err)
		time.Sleep(20 * time.Millisecond) // between two looks, as testkit.Await does
	}
}

// run runs the commands in the shell. With allSucceed the first failure ends the shell.
func (s *session) run(block doctest.Block, allSucceed bool) (printed string, status int) {
	s.t.Helper()
	testkit.NoError(s.t, os.WriteFile(s.script, []byte(s.ports.Replace(block.Text)), 0o600))
	option := "+e"
	if allSucceed {
		option = "-e"
	}
	_, err := fmt.Fprintf(s.commands, "set %s; . '%s' >'%s' 2>&1 </dev/null; status=$?; set +e; echo $status\n", option, s.script, s.printed)
	testkit.NoError(s.t, err)
	var line string
	var alive bool
	select {
	case line, alive = <-s.statuses:
	case <-time.After(patience):
		s.t.Fatalf("%s:%d: the commands still run after %v:\n%s", s.file, block.Line, patience, block.Text)
	}
	text := string(testkit.Must(os.ReadFile(s.printed))(s.t))
	testkit.Require(s.t, alive, "%s:%d: a command has failed:\n%s\nThis is printed:\n%s", s.file, block.Line, block.Text, text)
	return text, testkit.Must(strconv.Atoi(line))(s.t)
}
