package configs_test

import (
	"bytes"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/seed-4578ace9/notifier/internal/config"
)

const manifests = samples + "kubernetes/"

// scaledObject has what the manifest uses of KEDA's type.
type scaledObject struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
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

// parse reads one object as the Kubernetes API does when it validates fields strictly.
func parse(t *testing.T, text []byte) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return object
}

func manifest[T any](t *testing.T, name string) T {
	t.Helper()
	text := read(t, manifests+name)
	if bytes.Contains(text, []byte("\n---")) {
		t.Fatalf("%s: a second document, which no test would see", name)
	}
	object, isOne := parse(t, text).(T)
	if !isOne {
		t.Fatalf("%s holds another kind of object", name)
	}
	return object
}

// objects are the manifests, each of which is read.
type objects struct {
	account    *corev1.ServiceAccount
	variables  *corev1.ConfigMap
	secret     *corev1.Secret
	service    *corev1.Service
	deployment *appsv1.Deployment
	budget     *policyv1.PodDisruptionBudget
	network    *networkingv1.NetworkPolicy
	scaler     scaledObject

	pod    corev1.PodSpec
	worker corev1.Container
}

func readManifests(t *testing.T) objects {
	t.Helper()
	o := objects{
		account:    manifest[*corev1.ServiceAccount](t, "service-account.yaml"),
		variables:  manifest[*corev1.ConfigMap](t, "config-map.yaml"),
		secret:     manifest[*corev1.Secret](t, "secret.yaml"),
		service:    manifest[*corev1.Service](t, "service.yaml"),
		deployment: manifest[*appsv1.Deployment](t, "deployment.yaml"),
		budget:     manifest[*policyv1.PodDisruptionBudget](t, "pod-disruption-budget.yaml"),
		network:    manifest[*networkingv1.NetworkPolicy](t, "network-policy.yaml"),
		scaler:     decode[scaledObject](t, manifests+"scaled-object.yaml"),
	}
	o.pod = o.deployment.Spec.Template.Spec
	if len(o.pod.Containers) != 1 || len(o.pod.Containers[0].VolumeMounts) != 1 || len(o.pod.Volumes) != 1 || o.pod.Volumes[0].Secret == nil {
		t.Fatalf("pod = %+v, want one container with the secret", o.pod)
	}
	o.worker = o.pod.Containers[0]
	return o
}

// Kustomize builds the folder. Every manifest is a resource, or is named in a comment that says when to take it.
func TestKustomization(t *testing.T) {
	t.Parallel()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), manifests)
	if err != nil {
		t.Fatal(err)
	}
	var images []string
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		if d, is := parse(t, text).(*appsv1.Deployment); is {
			images = append(images, d.Spec.Template.Spec.Containers[0].Image)
		}
	}
	if len(images) != 1 || !strings.Contains(images[0], "/notifier:") {
		t.Errorf("images = %q, want one with a registry and a tag", images)
	}
	text := string(read(t, manifests+"kustomization.yaml"))
	for _, file := range glob(t, manifests+"*.yaml") {
		if name := filepath.Base(file); name != "kustomization.yaml" && !strings.Contains(text, "- "+name+"\n") {
			t.Errorf("%s is mentioned nowhere", name)
		}
	}
}

func TestManifestsSelectTheirPods(t *testing.T) {
	t.Parallel()
	o := readManifests(t)
	selectors := map[string]*metav1.LabelSelector{
		"deployment":            o.deployment.Spec.Selector,
		"service":               {MatchLabels: o.service.Spec.Selector},
		"pod disruption budget": o.budget.Spec.Selector,
		"network policy":        &o.network.Spec.PodSelector,
	}
	for _, spread := range o.pod.TopologySpreadConstraints {
		selectors["spread over "+spread.TopologyKey] = spread.LabelSelector
	}
	pods := labels.Set(o.deployment.Spec.Template.Labels)
	for name, of := range selectors {
		if selector, err := metav1.LabelSelectorAsSelector(of); err != nil || selector.Empty() || !selector.Matches(pods) {
			t.Errorf("%s: selects %v, %v, and the pods have %v", name, selector, err, pods)
		}
	}
}

// httpPort is the port that a worker listens on unless it is told otherwise.
func httpPort(t *testing.T) int {
	t.Helper()
	table := config.Table()
	setting := table[slices.IndexFunc(table, func(s config.Setting) bool { return s.Variable == "NOTIFIER_HTTP_ADDR" })]
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

func TestManifestsAgree(t *testing.T) {
	t.Parallel()
	o := readManifests(t)
	no, port, root := new(bool), int32(httpPort(t)), o.worker.SecurityContext
	get := func(probe *corev1.Probe) string { return probe.HTTPGet.Path + " " + probe.HTTPGet.Port.String() }
	mount, secret := o.worker.VolumeMounts[0], o.pod.Volumes[0].Secret
	for what, values := range map[string][2]any{
		"target of the scaler":        {o.scaler.Spec.ScaleTargetRef.Name, o.deployment.Name},
		"kind of the scaler":          {o.scaler.APIVersion + " " + o.scaler.Kind, "keda.sh/v1alpha1 ScaledObject"},
		"account":                     {o.pod.ServiceAccountName, o.account.Name},
		"variables":                   {o.worker.EnvFrom[0].ConfigMapRef.Name, o.variables.Name},
		"secret":                      {secret.SecretName, o.secret.Name},
		"volume of the secret":        {mount.Name, o.pod.Volumes[0].Name},
		"port of the container":       {o.worker.Ports, []corev1.ContainerPort{{Name: "http", ContainerPort: port, Protocol: o.worker.Ports[0].Protocol}}},
		"port to scrape":              {o.deployment.Spec.Template.Annotations["prometheus.io/port"], strconv.Itoa(int(port))},
		"liveness":                    {get(o.worker.LivenessProbe), "/healthz http"},
		"readiness":                   {get(o.worker.ReadinessProbe), "/readyz http"},
		"port of the service":         {o.service.Spec.Ports[0].Port, port},
		"target of the service":       {o.service.Spec.Ports[0].TargetPort.String(), "http"},
		"port let in":                 {o.network.Spec.Ingress[0].Ports[0].Port.String(), "http"},
		"ports, and ways in":          {len(o.service.Spec.Ports) + len(o.network.Spec.Ingress) + len(o.network.Spec.Ingress[0].Ports), 3},
		"not root":                    {*o.pod.SecurityContext.RunAsNonRoot && *o.pod.SecurityContext.RunAsUser > 0, true},
		"seccomp profile":             {o.pod.SecurityContext.SeccompProfile.Type, corev1.SeccompProfileTypeRuntimeDefault},
		"token of Kubernetes":         {o.pod.AutomountServiceAccountToken, no},
		"token of the account":        {o.account.AutomountServiceAccountToken, no},
		"service links":               {o.pod.EnableServiceLinks, no},
		"escalation":                  {root.AllowPrivilegeEscalation, no},
		"read-only file system":       {*root.ReadOnlyRootFilesystem, true},
		"capabilities":                {root.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		"memory limit":                {o.worker.Resources.Limits.Memory().IsZero(), false},
		"secret cannot be altered":    {mount.ReadOnly, true},
		"mode of the secret":          {*secret.DefaultMode, int32(0o440)},
		"group that reads the secret": {*o.pod.SecurityContext.FSGroup > 0, true},
	} {
		if !reflect.DeepEqual(values[0], values[1]) {
			t.Errorf("%s = %+v, want %+v", what, values[0], values[1])
		}
	}
}

// The pod's environment is a valid configuration, and what it names is there.
func TestManifestSettings(t *testing.T) {
	o := readManifests(t)
	mounted := t.TempDir()
	for key, value := range o.secret.StringData {
		if err := os.WriteFile(filepath.Join(mounted, key), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	variables := maps.Clone(o.variables.Data)
	for name, value := range variables {
		variables[name] = strings.Replace(value, o.worker.VolumeMounts[0].MountPath, mounted, 1)
		if strings.HasSuffix(name, "_FILE") && variables[name] == value {
			t.Errorf("%s=%s is not in the volume", name, value)
		}
	}
	// Where service links are on, those of this service are no settings and do no harm.
	links := strings.ToUpper(strings.ReplaceAll(o.service.Name, "-", "_"))
	for name, value := range map[string]string{"_SERVICE_HOST": "10.0.0.1", "_SERVICE_PORT_HTTP": "8080", "_PORT": "tcp://10.0.0.1:8080"} {
		variables[links+name] = value
	}

	settings := load(t, variables)
	if grace := time.Duration(*o.pod.TerminationGracePeriodSeconds) * time.Second; grace <= settings.ShutdownTimeout {
		t.Errorf("grace period = %v, want more than the %v in which work is finished", grace, settings.ShutdownTimeout)
	}
	for _, trigger := range o.scaler.Spec.Triggers {
		if m := trigger.Metadata; m.Stream != settings.NATS.Stream || m.Consumer != settings.NATS.Consumer {
			t.Errorf("the scaler watches %s and %s, want %s and %s", m.Stream, m.Consumer, settings.NATS.Stream, settings.NATS.Consumer)
		}
	}

	// The network policy lets out what the settings connect to.
	open := make(map[string]bool)
	for _, rule := range o.network.Spec.Egress {
		for _, port := range rule.Ports {
			open[port.Port.String()] = true
		}
	}
	for _, text := range []string{settings.NATS.URL.Reveal(), settings.Redis.URL.Reveal(), "https://slack.com:443"} {
		if server, err := url.Parse(text); err != nil || !open[server.Port()] {
			t.Errorf("the network policy does not let out to %s, %v", text, err)
		}
	}
}
