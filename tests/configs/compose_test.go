package configs_test

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/prometheus/common/model"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// project reads compose.yaml as Compose does, with some variables in its environment.
func project(t *testing.T, environment ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{samples + "../compose.yaml"}, cli.WithEnv(environment))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func TestComposeServices(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	if worker := services["worker"]; worker.GetScale() != 3 {
		t.Errorf("workers = %d, want 3", worker.GetScale())
	}
	for name, service := range services {
		if _, tag, _ := strings.Cut(service.Image, ":"); tag == "" || tag == "latest" {
			t.Errorf("%s: the image %s is not pinned", name, service.Image)
		}
		if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			t.Errorf("%s: not hardened", name)
		}
		if service.HealthCheck == nil && service.Build == nil {
			t.Errorf("%s: no health check, and no Dockerfile that has one", name)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is open to everyone", name, port.Published)
			}
		}
		for _, mount := range service.Volumes {
			if _, err := os.Stat(mount.Source); mount.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s: mount %s: %v", name, mount, err)
			}
		}
	}
	redis := strings.Join(services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction", "--lazyfree-lazy-expire yes"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis: %q lacks %q", redis, want)
		}
	}
}

// A token or a webhook in the environment makes the workers post; without one they print.
func TestComposeSinks(t *testing.T) {
	for want, environments := range map[string][][]string{
		config.SinkConsole: {nil},
		config.SinkSlack: {
			{"NOTIFIER_SLACK_TOKEN=xoxb-change-me", "NOTIFIER_SLACK_CHANNEL=#alerts"},
			{"NOTIFIER_SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/change-me"},
		},
	} {
		for _, environment := range environments {
			loaded := project(t, environment...)
			variables := make(map[string]string)
			for name, value := range loaded.Services["worker"].Environment {
				variables[name] = *value
				if !slices.ContainsFunc(config.Table(), func(s config.Setting) bool { return s.Variable == name }) {
					t.Errorf("%s is no setting", name)
				}
			}
			settings := load(t, variables)
			if settings.Sink != want {
				t.Errorf("with %v: sink = %q, want %q", environment, settings.Sink, want)
			}
			requireService(t, loaded, settings.NATS.URL.Reveal())
			requireService(t, loaded, settings.Redis.URL.Reveal())
		}
	}
}

// requireService checks that the host of a URL is a service of compose.yaml.
func requireService(t *testing.T, loaded *types.Project, text string) {
	t.Helper()
	server, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loaded.GetService(server.Hostname()); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

// What Grafana and Prometheus read is where compose.yaml mounts it, and names the services of compose.yaml.
func TestComposeMonitoring(t *testing.T) {
	t.Parallel()
	loaded := project(t)

	sources := decode[struct {
		APIVersion  int `yaml:"apiVersion"`
		DataSources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `yaml:"isDefault"`
		}
	}](t, samples+"grafana/provisioning/datasources/prometheus.yml").DataSources
	if len(sources) != 1 || sources[0].Type != "prometheus" || !sources[0].IsDefault {
		t.Fatalf("data sources = %+v, want Prometheus as the default", sources)
	}
	requireService(t, loaded, sources[0].URL)

	dashboards, err := filepath.Abs(samples + "grafana/dashboards")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range decode[struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type      string
			DisableDeletion bool `yaml:"disableDeletion"`
			Options         struct{ Path string }
		}
	}](t, samples+"grafana/provisioning/dashboards/notifier.yml").Providers {
		if p.Type != "file" || !slices.ContainsFunc(loaded.Services["grafana"].Volumes, func(mount types.ServiceVolumeConfig) bool {
			return mount.Source == dashboards && mount.Target == p.Options.Path && mount.ReadOnly
		}) {
			t.Errorf("provider %+v: no dashboards are mounted there", p)
		}
	}

	prometheus := decode[struct {
		Global struct {
			ScrapeInterval     model.Duration `yaml:"scrape_interval"`
			EvaluationInterval model.Duration `yaml:"evaluation_interval"`
		}
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			JobName      string `yaml:"job_name"`
			DNSSDConfigs []struct {
				Names           []string
				Type            string
				Port            int
				RefreshInterval model.Duration `yaml:"refresh_interval"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}](t, samples+"prometheus/prometheus.yml")
	for _, pattern := range prometheus.RuleFiles {
		glob(t, samples+"prometheus/"+pattern)
	}
	if jobs := prometheus.ScrapeConfigs; len(jobs) != 1 || jobs[0].JobName != "notifier" || len(jobs[0].DNSSDConfigs) != 1 {
		t.Fatalf("jobs = %+v, want the one called notifier, which the alerts name", jobs)
	}
	discovery := prometheus.ScrapeConfigs[0].DNSSDConfigs[0]
	if !slices.Equal(discovery.Names, []string{"worker"}) || discovery.Port != httpPort(t) {
		t.Errorf("discovery = %+v, want worker at %d", discovery, httpPort(t))
	}
}
