package configs_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// assignments reads the lines NAME=value of a settings file, and those that are commented out. Values have no quotes and no blanks around
// them, since readers differ in both.
func assignments(t *testing.T, file string) (given, commented map[string]string) {
	t.Helper()
	text := read(t, file)
	good := regexp.MustCompile(`^(# .*|#|#?NOTIFIER_[A-Z_]+=([^\s"']|[^\s"'][^"']*[^\s"'])?|)$`)
	for line := range bytes.Lines(text) {
		testkit.Check(t, good.Match(bytes.TrimSuffix(line, []byte("\n"))), "%s: %q is neither NAME=value nor a comment", file, line)
	}
	given = testkit.Must(dotenv.UnmarshalBytesWithLookup(text, nil))(t)
	commented = testkit.Must(dotenv.UnmarshalBytesWithLookup(bytes.ReplaceAll(text, []byte("\n#NOTIFIER_"), []byte("\nNOTIFIER_")), nil))(t)
	maps.DeleteFunc(commented, func(name, _ string) bool { _, isGiven := given[name]; return isGiven })
	return given, commented
}

// sourced reads a settings file with a shell. A bad value, such as a>b, would write a file.
func sourced(t *testing.T, file string) map[string]string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", "-euc", `set -a; . "$1"; env`, "sh", testkit.Must(filepath.Abs(file))(t))
	command.Dir, command.Env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH")}
	variables := make(map[string]string)
	for line := range strings.Lines(string(testkit.Must(command.Output())(t))) {
		if name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "="); strings.HasPrefix(name, "NOTIFIER_") {
			variables[name] = value
		}
	}
	for _, entry := range testkit.Must(os.ReadDir(command.Dir))(t) {
		t.Errorf("in a shell %s writes the file %s", file, entry.Name())
	}
	return variables
}

// withFiles writes a file for each variable that names one, and sets the variable to its path.
func withFiles(t *testing.T, variables map[string]string) map[string]string {
	t.Helper()
	variables = maps.Clone(variables)
	for name, value := range variables {
		if !strings.HasSuffix(name, "_FILE") || value == "" {
			continue
		}
		content := "change-me"
		switch {
		case strings.Contains(name, "_TLS_"):
			content = certificateAndKey(t)
		case name == "NOTIFIER_SLACK_WEBHOOK_URL_FILE":
			content = "https://hooks.slack.com/services/T0/B0/change-me"
		}
		variables[name] = filepath.Join(t.TempDir(), filepath.Base(value))
		testkit.NoError(t, os.WriteFile(variables[name], []byte(content+"\n"), 0o600))
	}
	return variables
}

// certificateAndKey returns PEM that serves as a certificate, as an authority and as a key.
func certificateAndKey(t *testing.T) string {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	key := testkit.Must(x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})) +
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

// TestExamples loads each example, which comments nothing out.
func TestExamples(t *testing.T) {
	for _, file := range append(glob(t, "examples/*.env"), samples+"notifier.env") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			given, commented := assignments(t, file)
			if len(given) == 0 || filepath.Base(file) != "notifier.env" && len(commented) > 0 {
				t.Errorf("got settings %v and commented ones %v, want some settings, and comments in notifier.env alone", given, commented)
			}
			load(t, withFiles(t, given))
			testkit.EqualMaps(t, sourced(t, file), given, "in a shell the settings")
		})
	}
}

// TestAnnotatedSettings wants notifier.env to have every setting once, and the default of each that is commented out.
func TestAnnotatedSettings(t *testing.T) {
	given, commented := assignments(t, samples+"notifier.env")
	left := maps.Clone(given)
	maps.Copy(left, commented)
	for _, setting := range config.Table() {
		file := setting.Variable + "_FILE"
		_, isGiven := given[setting.Variable]
		_, fromFile := given[file]
		shown, isCommented := commented[setting.Variable]
		switch {
		case isCommented == (isGiven || fromFile):
			t.Errorf("%s is missing or listed twice", setting.Variable)
		case isCommented && shown != setting.Default:
			t.Errorf("%s is shown with %q, and its default is %q", setting.Variable, shown, setting.Default)
		}
		delete(left, setting.Variable)
		if setting.Secret {
			delete(left, file)
		}
	}
	testkit.EqualMaps(t, left, map[string]string{}, "variables that are no settings")

	plain := withFiles(t, given)
	all := maps.Clone(commented)
	maps.Copy(all, plain)
	for _, name := range []string{"NOTIFIER_GLOBAL_LIMIT", "NOTIFIER_CATEGORY_LIMIT"} {
		plain[name] = commented[name] // the settings show whether a limit was given
	}
	want, got := load(t, plain), load(t, all)
	want.NATS.URLSet, want.Redis.URLSet, want.HTTP.AddrSet, want.Ingest.AddrSet = true, true, true, true
	testkit.EqualDeeply(t, got, want, "settings without the comment signs")
}
