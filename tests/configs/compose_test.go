package configs_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// project reads compose.yaml as Compose does, with variables in its environment.
func project(t *testing.T, environment ...string) *types.Project {
	t.Helper()
	options := testkit.Must(cli.NewProjectOptions([]string{samples + "../compose.yaml"}, cli.WithEnv(environment)))(t)
	return testkit.Must(options.LoadProject(t.Context()))(t)
}

func TestComposeServices(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	worker := services["worker"]
	testkit.Equal(t, worker.GetScale(), 3, "workers")
	for name, service := range services {
		if service.Build == nil && !pinned.MatchString(service.Image) {
			t.Errorf("%s: got the image %s, want one with a version and a digest", name, service.Image)
		}
		testkit.Check(t, service.ReadOnly && slices.Contains(service.CapDrop, "ALL") && slices.Contains(service.SecurityOpt, "no-new-privileges:true"),
			"%s: not hardened", name)
		if service.HealthCheck == nil && service.Build == nil {
			t.Errorf("%s: no health check, and no Dockerfile that has one", name)
		}
		for _, port := range service.Ports {
			testkit.Equal(t, port.HostIP, "127.0.0.1", "%s: port %s is open to", name, port.Published)
		}
		for _, mount := range service.Volumes {
			if _, err := os.Stat(mount.Source); mount.Type == types.VolumeTypeBind && err != nil {
				t.Errorf("%s: mount %s: %v", name, mount, err)
			}
		}
	}
	redis := strings.Join(services["redis"].Command, " ")
	testkit.Contains(t, "redis", redis, "--appendonly yes", "--appendfsync everysec", "--maxmemory-policy noeviction", "--lazyfree-lazy-expire yes")
}

// environment returns the variables of a service.
func environment(service types.ServiceConfig) map[string]string {
	variables := make(map[string]string)
	for name, value := range service.Environment {
		variables[name] = *value
	}
	return variables
}

// TestComposeSinks wants workers with a token or a webhook to post, and workers without to print.
func TestComposeSinks(t *testing.T) {
	for given, want := range map[string]string{
		"": config.SinkConsole,
		"NOTIFIER_SLACK_TOKEN=xoxb-change-me NOTIFIER_SLACK_CHANNEL=#alerts":          config.SinkSlack,
		"NOTIFIER_SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/change-me": config.SinkSlack,
	} {
		loaded := project(t, strings.Fields(given)...)
		settings := load(t, environment(loaded.Services["worker"]))
		testkit.Equal(t, settings.Sink, want, "sink with %q", given)
		testkit.Equal(t, time.Duration(*loaded.Services["worker"].StopGracePeriod) > workerStop(settings), true, "whether the grace period is long enough")
		requireService(t, loaded, settings.NATS.URL.Reveal())
		requireService(t, loaded, settings.Redis.URL.Reveal())
	}
}

// TestComposeIngest checks the settings of the service for events over HTTP, and looks for the hash of the sample's token in its file.
func TestComposeIngest(t *testing.T) {
	loaded := project(t)
	service := loaded.Services["ingest"]
	testkit.EqualSlices(t, service.Command, []string{"ingest"}, "command")
	variables := environment(service)
	mounted := service.Volumes[0]
	testkit.Equal(t, variables["NOTIFIER_INGEST_TOKENS_FILE"], mounted.Target, "file of tokens")
	variables["NOTIFIER_INGEST_TOKENS_FILE"] = mounted.Source
	variables["NOTIFIER_SINK"] = config.SinkConsole // ingest has no sink, and load wants one
	settings := load(t, variables)
	requireService(t, loaded, settings.NATS.URL.Reveal())
	testkit.Equal(t, time.Duration(*service.StopGracePeriod) > settings.Drain+settings.ShutdownTimeout, true, "whether the grace period is long enough")
	testkit.Equal(t, settings.Ingest.Addr, ":"+service.Ports[0].Published, "address")
	token := find(t, "../compose.yaml", `Bearer (\S+)'`)
	hash := sha256.Sum256([]byte(token))
	testkit.Contains(t, "tokens", string(read(t, mounted.Source)), "\ncompose sha256:"+hex.EncodeToString(hash[:])+" >\n")
}

// TestComposeAccounts wants workers and producers in accounts of their own: the users of the file that NATS reads.
func TestComposeAccounts(t *testing.T) {
	loaded := project(t)
	server := loaded.Services["nats"]
	mounted := server.Volumes[slices.IndexFunc(server.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Type == types.VolumeTypeBind })]
	testkit.EqualSlices(t, server.Command, []string{"--config", mounted.Target}, "command of NATS")
	text := string(read(t, mounted.Source))
	for service, account := range map[string]string{"worker": "WORKERS", "ingest": "PRODUCERS"} {
		variables := environment(loaded.Services[service])
		user := fmt.Sprintf("users: [{ user: %s, password: %s }]", variables["NOTIFIER_NATS_USER"], variables["NOTIFIER_NATS_PASSWORD"])
		_, of, _ := strings.Cut(text, "\n  "+account+" {")
		if of, _, _ = strings.Cut(of, "\n  }"); !strings.Contains(of, user) {
			t.Errorf("%s: account %s of NATS lacks %q", service, account, user)
		}
	}
}

// requireService checks that the host of a URL is a service of compose.yaml.
func requireService(t *testing.T, loaded *types.Project, text string) {
	t.Helper()
	server := testkit.Must(url.Parse(text))(t)
	testkit.Must(loaded.GetService(server.Hostname()))(t)
}

// TestComposeMonitoring checks that compose.yaml mounts what Grafana and Prometheus read, and that their files name its services.
func TestComposeMonitoring(t *testing.T) {
	t.Parallel()
	loaded := project(t)
	const (
		source   = "grafana/provisioning/datasources/prometheus.yml"
		provider = "grafana/provisioning/dashboards/notifier.yml"
		scraping = "prometheus/prometheus.yml"
	)
	testkit.Equal(t, find(t, source, `type: (\w+)`)+find(t, source, `isDefault: (\w+)`), "prometheustrue", "type and default of the data source")
	requireService(t, loaded, find(t, source, `url: (\S+)`))

	dashboards, path := testkit.Must(filepath.Abs(samples+"grafana/dashboards"))(t), find(t, provider, `path: (\S+)`)
	testkit.Equal(t, find(t, provider, `type: (\w+)`), "file", "type of the provider of dashboards")
	if !slices.ContainsFunc(loaded.Services["grafana"].Volumes, func(mount types.ServiceVolumeConfig) bool {
		return mount.Source == dashboards && mount.Target == path && mount.ReadOnly
	}) {
		t.Errorf("no dashboards are mounted at %s", path)
	}

	glob(t, "prometheus/"+find(t, scraping, `rule_files:\s+- (\S+)`))
	for job, service := range map[string]string{"notifier": "worker", "notifier-ingest": "ingest"} { // alerts name the job notifier
		names := find(t, scraping, `job_name: `+job+`\n\s+dns_sd_configs:\n\s+- names: \[(.*)\]`)
		port := find(t, scraping, `names: \[`+service+`\]\n.*\n\s+port: (\d+)`)
		testkit.Equal(t, names+":"+port, service+httpAddr, "address that the job %s scrapes", job)
	}
}
