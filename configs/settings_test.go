package configs_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/sink"
	"github.com/seed-4578ace9/notifier/internal/testkit"
)

// contents are stand-ins for what the files hold that settings name.
var contents = map[string]string{
	"NOTIFIER_NATS_PASSWORD_FILE":     "change-me",
	"NOTIFIER_REDIS_PASSWORD_FILE":    "change-me",
	"NOTIFIER_SLACK_TOKEN_FILE":       "xoxb-change-me",
	"NOTIFIER_SLACK_WEBHOOK_URL_FILE": "https://hooks.slack.com/services/T0/B0/change-me",
	"NOTIFIER_SLACK_TEMPLATE_FILE":    "{}",
}

// load reads settings as a worker does, with nothing else in its environment.
func load(t *testing.T, variables map[string]string) config.Config {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "NOTIFIER_") {
			t.Setenv(name, "") // counts as not set
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
	settings, warnings, err := config.Load(config.Options{CheckTemplate: func(text string) error {
		_, err := sink.ParseTemplate(text)
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		t.Errorf("a sample must not warn: %s", warning)
	}
	return settings
}

// withFiles puts files with proper content in the place of those that the variables name.
func withFiles(t *testing.T, variables map[string]string) map[string]string {
	t.Helper()
	variables = maps.Clone(variables)
	certificate, key := selfSigned(t)
	for name, value := range variables {
		if !strings.HasSuffix(name, "_FILE") || value == "" {
			continue
		}
		var content string
		switch {
		case strings.HasSuffix(name, "_CA_FILE"), strings.HasSuffix(name, "_CERT_FILE"):
			content = certificate
		case strings.HasSuffix(name, "_KEY_FILE"):
			content = key
		default:
			var known bool
			if content, known = contents[name]; !known {
				t.Fatalf("%s: the test has nothing to put into this file", name)
			}
		}
		file := filepath.Join(t.TempDir(), filepath.Base(value))
		testkit.NoError(t, os.WriteFile(file, []byte(content+"\n"), 0o600))
		variables[name] = file
	}
	return variables
}

func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true}
	signed := testkit.Must(x509.CreateCertificate(nil, template, template, public, private))(t)
	encoded := testkit.Must(x509.MarshalPKCS8PrivateKey(private))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

var assignment = regexp.MustCompile(`^(#?)(NOTIFIER_[A-Z_]+)=([^\s"']?|[^\s"'][^"']*[^\s"'])$`)

// assignments reads the lines NAME=value of a settings file, and those that are commented out. There are neither quotes nor
// blanks around a value, which not every reader takes.
func assignments(t *testing.T, file string) (given, commented map[string]string) {
	t.Helper()
	given, commented = make(map[string]string), make(map[string]string)
	for line := range strings.Lines(read(t, file)) {
		found := assignment.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if found == nil {
			if line != "\n" && (line[0] != '#' || strings.HasPrefix(line, "#NOTIFIER_")) {
				t.Fatalf("%s: %q is neither NAME=value nor a comment", file, line)
			}
			continue
		}
		target := given
		if found[1] != "" {
			target = commented
		}
		if _, twice := target[found[2]]; twice {
			t.Fatalf("%s: %s is there twice", file, found[2])
		}
		target[found[2]] = found[3]
	}
	return given, commented
}

// Each example is a valid configuration, and says what it sets and nothing else.
func TestExamples(t *testing.T) {
	for _, pattern := range []string{"notifier.env", "examples/*.env", "compose/*.env"} {
		files := testkit.Must(filepath.Glob(pattern))(t)
		for _, file := range files {
			t.Run(file, func(t *testing.T) {
				given, commented := assignments(t, file)
				if len(given) == 0 || file != "notifier.env" && len(commented) > 0 {
					t.Errorf("given are %v, commented %v", given, commented)
				}
				if pattern == "compose/*.env" { // the rest is in compose.yaml
					if sink := given["NOTIFIER_SINK"]; len(given) != 1 || (file == "compose/sink.env") != (sink == config.SinkConsole) {
						t.Errorf("settings = %v, want the sink that the name says", given)
					}
					return
				}
				settings := load(t, withFiles(t, given))
				for _, of := range []config.TLS{settings.NATS.TLS, settings.Redis.TLS} {
					if _, err := of.ClientConfig(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// The annotated file has every setting, and shows its default.
func TestAnnotatedSettings(t *testing.T) {
	given, commented := assignments(t, "notifier.env")
	known := make(map[string]bool)
	for _, setting := range config.Table() {
		known[setting.Variable] = true
		known[setting.Variable+"_FILE"] = setting.Secret
		_, isGiven := given[setting.Variable]
		_, fromFile := given[setting.Variable+"_FILE"]
		shown, isCommented := commented[setting.Variable]
		switch {
		case isCommented && (isGiven || fromFile):
			t.Errorf("%s is there twice", setting.Variable)
		case isCommented && shown != setting.Default:
			t.Errorf("%s is shown with %q, and its default is %q", setting.Variable, shown, setting.Default)
		case !isCommented && !isGiven && !fromFile:
			t.Errorf("%s is missing", setting.Variable)
		}
	}
	for _, lines := range []map[string]string{given, commented} {
		for name := range lines {
			if !known[name] {
				t.Errorf("%s is no setting", name)
			}
		}
	}

	plain := withFiles(t, given)
	all := maps.Clone(commented)
	maps.Copy(all, plain)
	for _, name := range []string{"NOTIFIER_GLOBAL_LIMIT", "NOTIFIER_CATEGORY_LIMIT"} {
		plain[name] = commented[name] // the settings know whether it was given
	}
	want, got := load(t, plain), load(t, all)
	want.NATS.URLSet, want.Redis.URLSet, want.HTTP.AddrSet = true, true, true
	if !reflect.DeepEqual(got, want) {
		t.Errorf("with the comment signs gone the settings are\n%+v\nand not the defaults\n%+v", got, want)
	}
}
