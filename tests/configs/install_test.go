package configs_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const root = "../../"

// sourceFile is the path of a file from the root of the module.
type sourceFile string

func (f sourceFile) Path() string                 { return string(f) }
func (f sourceFile) Lstat() (os.FileInfo, error)  { return os.Lstat(root + string(f)) }
func (f sourceFile) Open() (io.ReadCloser, error) { return os.Open(root + string(f)) }

func output(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	testkit.Require(t, err == nil, "%s: %v\n%s", command, err, &problems)
	return strings.TrimSpace(string(out))
}

// proxy makes a folder that serves the module as a module proxy does, from the files that git would commit.
func proxy(t *testing.T, version module.Version) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	var files []zip.File
	for name := range strings.SplitSeq(strings.TrimRight(output(t, list), "\x00"), "\x00") {
		// A deleted file is listed until the commit, and modules have no symbolic links.
		if info, err := os.Lstat(root + name); err == nil && info.Mode().IsRegular() {
			files = append(files, sourceFile(name))
		}
	}
	folder := t.TempDir()
	versions := filepath.Join(folder, version.Path, "@v")
	testkit.NoError(t, os.MkdirAll(versions, 0o750))
	archive := testkit.Must(os.Create(filepath.Join(versions, version.Version+".zip")))(t)
	testkit.NoError(t, zip.Create(archive, version, files))
	testkit.NoError(t, archive.Close())
	for name, text := range map[string]string{
		"list": version.Version + "\n", version.Version + ".info": `{"Version":"` + version.Version + `"}`, version.Version + ".mod": string(read(t, root+"go.mod")),
	} {
		testkit.NoError(t, os.WriteFile(filepath.Join(versions, name), []byte(text), 0o600))
	}
	return folder
}

// TestGoInstall runs `go install …@v1.2.3`. The module has every embedded file and no replacement, and the program knows its version.
func TestGoInstall(t *testing.T) {
	t.Parallel()
	version := module.Version{Path: "github.com/seed-4578ace9/notifier", Version: "v1.2.3"}
	programs := t.TempDir()
	cached := "file://" + output(t, exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE")) + "/cache/download"
	install := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "-modcacherw", version.Path+"/cmd/notifier@"+version.Version)
	install.Dir = programs
	install.Env = append(os.Environ(), "GOBIN="+programs, "GOFLAGS=", "GOSUMDB=off", "GOMODCACHE="+t.TempDir(),
		"GOPROXY=file://"+proxy(t, version)+","+cached+","+output(t, exec.CommandContext(t.Context(), "go", "env", "GOPROXY")))
	output(t, install)

	said := output(t, exec.CommandContext(t.Context(), filepath.Join(programs, "notifier"), "--version"))
	testkit.Equal(t, strings.HasPrefix(said, "notifier v1.2.3 (revision "), true, "it begins with its version: %s;", said)
}
