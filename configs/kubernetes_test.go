package configs_test

import (
	"maps"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-4578ace9/notifier/internal/config"
)

// The types have what the manifests use, spelled as Kubernetes does; anything else in a file is a fault.
type (
	header struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
	}

	metadata struct {
		Name                string
		Labels, Annotations map[string]string
	}

	labelSelector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}

	probe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		TimeoutSeconds   int                         `yaml:"timeoutSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
)

type kustomization struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Labels     []struct {
		Pairs            map[string]string
		IncludeSelectors bool `yaml:"includeSelectors"`
	}
	Resources []string
	Images    []struct {
		Name    string
		NewName string `yaml:"newName"`
		NewTag  string `yaml:"newTag"`
	}
}

type serviceAccount struct {
	header                       `yaml:",inline"`
	AutomountServiceAccountToken *bool `yaml:"automountServiceAccountToken"`
}

type configMap struct {
	header `yaml:",inline"`
	Data   map[string]string
}

type secret struct {
	header     `yaml:",inline"`
	Type       string
	StringData map[string]string `yaml:"stringData"`
}

type service struct {
	header `yaml:",inline"`
	Spec   struct {
		ClusterIP                string `yaml:"clusterIP"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Selector                 map[string]string
		Ports                    []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type podDisruptionBudget struct {
	header `yaml:",inline"`
	Spec   struct {
		MaxUnavailable             int    `yaml:"maxUnavailable"`
		UnhealthyPodEvictionPolicy string `yaml:"unhealthyPodEvictionPolicy"`
		Selector                   labelSelector
	}
}

type peer struct {
	NamespaceSelector labelSelector `yaml:"namespaceSelector"`
	PodSelector       labelSelector `yaml:"podSelector"`
	IPBlock           struct {
		CIDR   string
		Except []string
	} `yaml:"ipBlock"`
}

type networkPolicy struct {
	header `yaml:",inline"`
	Spec   struct {
		PodSelector labelSelector `yaml:"podSelector"`
		PolicyTypes []string      `yaml:"policyTypes"`
		Ingress     []struct {
			From  []peer
			Ports []struct{ Protocol, Port string }
		}
		Egress []struct {
			To    []peer
			Ports []struct{ Protocol, Port string }
		}
	}
}

type scaledObject struct {
	header `yaml:",inline"`
	Spec   struct {
		ScaleTargetRef  struct{ Name string } `yaml:"scaleTargetRef"`
		MinReplicaCount int                   `yaml:"minReplicaCount"`
		MaxReplicaCount int                   `yaml:"maxReplicaCount"`
		PollingInterval int                   `yaml:"pollingInterval"`
		CooldownPeriod  int                   `yaml:"cooldownPeriod"`
		Triggers        []struct {
			Type     string
			Metadata struct {
				NATSServerMonitoringEndpoint string `yaml:"natsServerMonitoringEndpoint"`
				Account, Stream, Consumer    string
				LagThreshold                 string `yaml:"lagThreshold"`
			}
		}
	}
}

type deployment struct {
	header `yaml:",inline"`
	Spec   struct {
		Replicas int
		Selector labelSelector
		Strategy struct {
			RollingUpdate struct {
				MaxSurge       int `yaml:"maxSurge"`
				MaxUnavailable int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Template struct {
			Metadata metadata
			Spec     podSpec
		}
	}
}

type podSpec struct {
	ServiceAccountName            string `yaml:"serviceAccountName"`
	AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
	EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
	TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
	SecurityContext               struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      int64                 `yaml:"runAsUser"`
		RunAsGroup     int64                 `yaml:"runAsGroup"`
		FSGroup        int64                 `yaml:"fsGroup"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	TopologySpreadConstraints []struct {
		MaxSkew           int           `yaml:"maxSkew"`
		TopologyKey       string        `yaml:"topologyKey"`
		WhenUnsatisfiable string        `yaml:"whenUnsatisfiable"`
		LabelSelector     labelSelector `yaml:"labelSelector"`
	} `yaml:"topologySpreadConstraints"`
	Containers []container
	Volumes    []struct {
		Name   string
		Secret struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
		}
	}
}

type container struct {
	Name, Image string
	Args        []string
	EnvFrom     []struct {
		ConfigMapRef struct{ Name string } `yaml:"configMapRef"`
	} `yaml:"envFrom"`
	Env   []struct{ Name, Value string }
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	LivenessProbe   probe `yaml:"livenessProbe"`
	ReadinessProbe  probe `yaml:"readinessProbe"`
	Resources       struct{ Requests, Limits map[string]string }
	SecurityContext struct {
		AllowPrivilegeEscalation *bool                   `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool                    `yaml:"readOnlyRootFilesystem"`
		Capabilities             struct{ Drop []string } `yaml:"capabilities"`
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

const manifests = "kubernetes"

func loadManifest(t *testing.T, file string) {
	var (
		h          header
		apiVersion string
	)
	switch path.Base(file) {
	case "kustomization.yaml":
		checkKustomization(t, decodeYAML[kustomization](t, file))
		return
	case "service-account.yaml":
		h, apiVersion = decodeYAML[serviceAccount](t, file).header, "v1 ServiceAccount"
	case "config-map.yaml":
		h, apiVersion = decodeYAML[configMap](t, file).header, "v1 ConfigMap"
	case "secret.yaml":
		h, apiVersion = decodeYAML[secret](t, file).header, "v1 Secret"
	case "service.yaml":
		h, apiVersion = decodeYAML[service](t, file).header, "v1 Service"
	case "deployment.yaml":
		h, apiVersion = decodeYAML[deployment](t, file).header, "apps/v1 Deployment"
	case "pod-disruption-budget.yaml":
		h, apiVersion = decodeYAML[podDisruptionBudget](t, file).header, "policy/v1 PodDisruptionBudget"
	case "network-policy.yaml":
		h, apiVersion = decodeYAML[networkPolicy](t, file).header, "networking.k8s.io/v1 NetworkPolicy"
	case "scaled-object.yaml":
		h, apiVersion = decodeYAML[scaledObject](t, file).header, "keda.sh/v1alpha1 ScaledObject"
	default:
		t.Fatal("no type for this manifest")
	}
	if got := h.APIVersion + " " + h.Kind; got != apiVersion || h.Metadata.Name == "" {
		t.Errorf("manifest of %s %q, want a named %s", got, h.Metadata.Name, apiVersion)
	}
}

func manifest[T any](t *testing.T, name string) T {
	t.Helper()
	return decodeYAML[T](t, path.Join(manifests, name))
}

// Every manifest is a resource, or is named in a comment that says when to take it.
func checkKustomization(t *testing.T, k kustomization) {
	for _, resource := range k.Resources {
		if _, err := os.Stat(path.Join(manifests, resource)); err != nil {
			t.Error(err)
		}
	}
	text := read(t, path.Join(manifests, "kustomization.yaml"))
	files, err := filepath.Glob(path.Join(manifests, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := path.Base(file)
		if name != "kustomization.yaml" && !slices.Contains(k.Resources, name) && !strings.Contains(text, "# - "+name) {
			t.Errorf("%s is mentioned nowhere", name)
		}
	}
	if len(k.Images) != 1 || k.Images[0].Name != worker(t).Image || k.Images[0].NewTag == "" {
		t.Errorf("images = %+v, want a tag for %q", k.Images, worker(t).Image)
	}
}

func worker(t *testing.T) container {
	t.Helper()
	containers := manifest[deployment](t, "deployment.yaml").Spec.Template.Spec.Containers
	if len(containers) != 1 {
		t.Fatalf("containers = %d, want 1", len(containers))
	}
	return containers[0]
}

// httpPort is the port that a worker listens on unless it is told otherwise.
func httpPort(t *testing.T) int {
	t.Helper()
	for _, setting := range config.Table() {
		if setting.Variable == "NOTIFIER_HTTP_ADDR" {
			_, text, err := net.SplitHostPort(setting.Default)
			if err != nil {
				t.Fatal(err)
			}
			port, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			return port
		}
	}
	t.Fatal("no setting NOTIFIER_HTTP_ADDR")
	return 0
}

func TestManifestsSelectTheirPods(t *testing.T) {
	t.Parallel()
	d := manifest[deployment](t, "deployment.yaml")
	labels := d.Spec.Template.Metadata.Labels
	selectors := map[string]map[string]string{
		"deployment":            d.Spec.Selector.MatchLabels,
		"service":               manifest[service](t, "service.yaml").Spec.Selector,
		"pod disruption budget": manifest[podDisruptionBudget](t, "pod-disruption-budget.yaml").Spec.Selector.MatchLabels,
		"network policy":        manifest[networkPolicy](t, "network-policy.yaml").Spec.PodSelector.MatchLabels,
	}
	for _, spread := range d.Spec.Template.Spec.TopologySpreadConstraints {
		selectors["spread over "+spread.TopologyKey] = spread.LabelSelector.MatchLabels
	}
	for name, selector := range selectors {
		if len(selector) == 0 {
			t.Errorf("%s: no selector", name)
		}
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s: selects %s=%s, and the pods have %v", name, key, value, labels)
			}
		}
	}
	if target := manifest[scaledObject](t, "scaled-object.yaml").Spec.ScaleTargetRef.Name; target != d.Metadata.Name {
		t.Errorf("the scaler scales %q, want %q", target, d.Metadata.Name)
	}
}

func TestManifestsAgreeOnPorts(t *testing.T) {
	t.Parallel()
	d, c := manifest[deployment](t, "deployment.yaml"), worker(t)
	if len(c.Ports) != 1 || c.Ports[0].ContainerPort != httpPort(t) {
		t.Fatalf("ports of the container = %+v, want %d", c.Ports, httpPort(t))
	}
	name := c.Ports[0].Name
	if got, want := d.Spec.Template.Metadata.Annotations["prometheus.io/port"], strconv.Itoa(httpPort(t)); got != want {
		t.Errorf("port to scrape = %q, want %q", got, want)
	}
	for path, probe := range map[string]probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port != name {
			t.Errorf("probe = %+v, want %s on the port %q", probe.HTTPGet, path, name)
		}
	}
	for _, port := range manifest[service](t, "service.yaml").Spec.Ports {
		if port.TargetPort != name || port.Port != httpPort(t) {
			t.Errorf("port of the service = %+v, want %d on %q", port, httpPort(t), name)
		}
	}
	policy := manifest[networkPolicy](t, "network-policy.yaml").Spec
	for _, rule := range policy.Ingress {
		for _, port := range rule.Ports {
			if port.Port != name {
				t.Errorf("port let in = %q, want %q", port.Port, name)
			}
		}
	}
}

func TestManifestsHardenTheirPods(t *testing.T) {
	t.Parallel()
	pod, c := manifest[deployment](t, "deployment.yaml").Spec.Template.Spec, worker(t)
	no := func(setting *bool) bool { return setting != nil && !*setting }
	for what, holds := range map[string]bool{
		"not root":                       pod.SecurityContext.RunAsNonRoot && pod.SecurityContext.RunAsUser > 0,
		"default seccomp profile":        pod.SecurityContext.SeccompProfile.Type == "RuntimeDefault",
		"no token of Kubernetes":         no(pod.AutomountServiceAccountToken),
		"no token for the account":       no(manifest[serviceAccount](t, "service-account.yaml").AutomountServiceAccountToken),
		"no service links":               no(pod.EnableServiceLinks),
		"no escalation":                  no(c.SecurityContext.AllowPrivilegeEscalation),
		"read-only file system":          c.SecurityContext.ReadOnlyRootFilesystem,
		"no capabilities":                slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}),
		"memory limit":                   c.Resources.Limits["memory"] != "",
		"secrets that cannot be altered": len(c.VolumeMounts) == 1 && c.VolumeMounts[0].ReadOnly,
		"group that reads the secrets":   pod.SecurityContext.FSGroup > 0 && pod.Volumes[0].Secret.DefaultMode == 0o440,
		"name of the account":            pod.ServiceAccountName == manifest[serviceAccount](t, "service-account.yaml").Metadata.Name,
	} {
		if !holds {
			t.Errorf("missing: %s", what)
		}
	}
}

// The pod's environment is a valid configuration, and what it names is there.
func TestManifestSettings(t *testing.T) {
	pod, c := manifest[deployment](t, "deployment.yaml").Spec.Template.Spec, worker(t)
	variables := manifest[configMap](t, "config-map.yaml")
	if len(c.EnvFrom) != 1 || c.EnvFrom[0].ConfigMapRef.Name != variables.Metadata.Name {
		t.Errorf("the environment comes from %+v, want the config map %q", c.EnvFrom, variables.Metadata.Name)
	}
	files := manifest[secret](t, "secret.yaml")
	if len(pod.Volumes) != 1 || pod.Volumes[0].Secret.SecretName != files.Metadata.Name || pod.Volumes[0].Name != c.VolumeMounts[0].Name {
		t.Fatalf("volumes = %+v, want the secret %q", pod.Volumes, files.Metadata.Name)
	}
	for name, value := range variables.Data {
		if directory, key := path.Split(value); strings.HasSuffix(name, "_FILE") {
			if path.Clean(directory) != c.VolumeMounts[0].MountPath || files.StringData[key] == "" {
				t.Errorf("%s=%s: the secret at %s has no such key", name, value, c.VolumeMounts[0].MountPath)
			}
		}
	}

	settings := load(t, withFiles(t, variables.Data))
	if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace <= settings.ShutdownTimeout {
		t.Errorf("grace period = %v, want more than the %v in which work is finished", grace, settings.ShutdownTimeout)
	}
	for _, trigger := range manifest[scaledObject](t, "scaled-object.yaml").Spec.Triggers {
		if m := trigger.Metadata; m.Stream != settings.NATS.Stream || m.Consumer != settings.NATS.Consumer {
			t.Errorf("the scaler watches %s and %s, want %s and %s", m.Stream, m.Consumer, settings.NATS.Stream, settings.NATS.Consumer)
		}
	}

	// The network policy lets out what the settings connect to.
	open := make(map[string]bool)
	for _, rule := range manifest[networkPolicy](t, "network-policy.yaml").Spec.Egress {
		for _, port := range rule.Ports {
			open[port.Port] = true
		}
	}
	for _, text := range []string{settings.NATS.URL.Reveal(), settings.Redis.URL.Reveal(), "https://slack.com:443"} {
		server, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if !open[server.Port()] {
			t.Errorf("the network policy does not let out to port %s", server.Port())
		}
	}

	// Where service links are on, those of this service are no settings and do no harm.
	links := strings.ToUpper(strings.ReplaceAll(manifest[service](t, "service.yaml").Metadata.Name, "-", "_"))
	withLinks := maps.Clone(variables.Data)
	maps.Copy(withLinks, map[string]string{
		links + "_SERVICE_HOST":      "10.0.0.1",
		links + "_SERVICE_PORT":      "8080",
		links + "_SERVICE_PORT_HTTP": "8080",
		links + "_PORT":              "tcp://10.0.0.1:8080",
		links + "_PORT_8080_TCP":     "tcp://10.0.0.1:8080",
	})
	load(t, withFiles(t, withLinks))
}
