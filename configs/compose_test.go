package configs_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-4578ace9/notifier/internal/config"
)

const composeFile = "../compose.yaml"

type compose struct {
	Name     string
	Hardened any `yaml:"x-hardened"`
	Services map[string]struct {
		Image string
		Build struct {
			Context string
			Args    map[string]string
		}
		Deploy          struct{ Replicas int }
		StopGracePeriod string                                `yaml:"stop_grace_period"`
		DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
		EnvFile         string                                `yaml:"env_file"`
		Environment     map[string]string
		User            string
		Command         []string
		Ports           []string
		Volumes         []string
		Tmpfs           []string
		Healthcheck     struct {
			Test              []string
			Interval, Timeout string
			Retries           int
		}
		ReadOnly    bool     `yaml:"read_only"`
		CapDrop     []string `yaml:"cap_drop"`
		SecurityOpt []string `yaml:"security_opt"`
		Restart     string
	}
	Volumes map[string]any
}

var substitution = regexp.MustCompile(`\$\{([A-Z_]+):([-+])([^}]*)\}`)

// substitute expands ${NAME:-default} and ${NAME:+text} as Compose does.
func substitute(text string, environment map[string]string) string {
	return substitution.ReplaceAllStringFunc(text, func(found string) string {
		part := substitution.FindStringSubmatch(found)
		value := environment[part[1]]
		switch {
		case part[2] == "+" && value != "", part[2] == "-" && value == "":
			return part[3]
		case part[2] == "-":
			return value
		}
		return ""
	})
}

// workerSettings are those of a worker of compose.yaml, started from an environment.
func workerSettings(t *testing.T, environment map[string]string) map[string]string {
	t.Helper()
	worker := decodeYAML[compose](t, composeFile).Services["worker"]
	settings, _ := assignments(t, filepath.Join("..", substitute(worker.EnvFile, environment)))
	for name, value := range worker.Environment {
		settings[name] = substitute(value, environment)
	}
	return settings
}

func TestComposeSinks(t *testing.T) {
	for name, test := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"nothing": {nil, config.SinkConsole},
		"token": {
			map[string]string{"NOTIFIER_SLACK_TOKEN": "xoxb-change-me", "NOTIFIER_SLACK_CHANNEL": "#alerts"},
			config.SinkSlack,
		},
		"webhook": {
			map[string]string{"NOTIFIER_SLACK_WEBHOOK_URL": "https://hooks.slack.com/services/T0/B0/change-me"},
			config.SinkSlack,
		},
	} {
		t.Run(name, func(t *testing.T) {
			settings := load(t, workerSettings(t, test.environment))
			if settings.Sink != test.want {
				t.Errorf("sink = %q, want %q", settings.Sink, test.want)
			}
			requireServiceURL(t, settings.NATS.URL.Reveal())
			requireServiceURL(t, settings.Redis.URL.Reveal())
		})
	}
}

func loadComposeEnvironment(t *testing.T, file string) {
	given, _ := assignments(t, file)
	sink := given["NOTIFIER_SINK"]
	if len(given) != 1 || (filepath.Base(file) == "sink.env") != (sink == config.SinkConsole) {
		t.Errorf("settings = %v, want the sink that the name says", given)
	}
}

func TestCompose(t *testing.T) {
	file := decodeYAML[compose](t, composeFile)
	if got := file.Services["worker"].Deploy.Replicas; got != 3 {
		t.Errorf("workers = %d, want 3", got)
	}
	for name, service := range file.Services {
		if _, tag, _ := strings.Cut(service.Image, ":"); tag == "" || tag == "latest" {
			t.Errorf("%s: the image %s is not pinned", name, service.Image)
		}
		if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") || len(service.SecurityOpt) == 0 {
			t.Errorf("%s: not hardened", name)
		}
		if len(service.Healthcheck.Test) == 0 && service.Build.Context == "" {
			t.Errorf("%s: no health check, and no Dockerfile that has one", name)
		}
		for _, port := range service.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s: port %s is open to everyone", name, port)
			}
		}
		for _, mount := range service.Volumes {
			source, _, _ := strings.Cut(mount, ":")
			if _, isVolume := file.Volumes[source]; isVolume {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", source)); err != nil {
				t.Errorf("%s: mount %s: %v", name, mount, err)
			}
		}
		for other := range service.DependsOn {
			if _, exists := file.Services[other]; !exists {
				t.Errorf("%s: depends on %q, which does not exist", name, other)
			}
		}
	}
	redis := strings.Join(file.Services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction", "--lazyfree-lazy-expire yes"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis: %q lacks %q", redis, want)
		}
	}
}

// requireServiceURL checks that the host of a URL is a service of compose.yaml.
func requireServiceURL(t *testing.T, text string) {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, exists := decodeYAML[compose](t, composeFile).Services[parsed.Hostname()]; !exists {
		t.Errorf("%s has no service %q", composeFile, parsed.Hostname())
	}
}
