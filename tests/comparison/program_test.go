//go:build comparison

package comparison

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/testing/servertest"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// program is a command of another project.
type program struct {
	module, version, command string
	missing                  string // a file that its sources embed and its module lacks
}

// build returns the path of the compiled command.
func (p program) build(t *testing.T) string {
	t.Helper()
	var module struct{ Dir string }
	testkit.NoError(t, json.Unmarshal(output(t, ".", "go", "mod", "download", "-json", p.module+"@"+p.version), &module))
	sources, binary := filepath.Join(t.TempDir(), "sources"), filepath.Join(t.TempDir(), "program")
	testkit.NoError(t, os.CopyFS(sources, os.DirFS(module.Dir)))
	if p.missing != "" {
		file := filepath.Join(sources, p.missing)
		testkit.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		testkit.NoError(t, os.WriteFile(file, nil, 0o600))
	}
	output(t, sources, "go", "build", "-o", binary, p.command)
	return binary
}

// output runs a command in a folder and returns what it prints.
func output(t *testing.T, folder, name string, arguments ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir, command.Stderr = folder, os.Stderr
	return testkit.Must(command.Output())(t)
}

// start runs a server until the test ends, and returns once url answers with status 200.
func start(t *testing.T, command *exec.Cmd, url string) {
	t.Helper()
	log := testkit.Must(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	command.Stdout, command.Stderr = log, log
	exited, err := servertest.StartChild(command)
	testkit.NoError(t, err)
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-exited
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s", text)
		}
		_ = log.Close()
	})
	testkit.Eventually(t, url+" answers", func() bool {
		response, err := http.Get(url)
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		return response.StatusCode == http.StatusOK
	})
}
