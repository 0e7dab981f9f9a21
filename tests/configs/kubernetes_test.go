package configs_test

import (
	"bytes"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/seed-4578ace9/notifier/internal/config"
	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const (
	manifests = samples + "kubernetes/"
	scaler    = "kubernetes/scaled-object.yaml" // a type of KEDA
)

// parse reads one object as the Kubernetes API does with strict validation of fields.
func parse(t *testing.T, text []byte) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme} {
		testkit.NoError(t, add(scheme))
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode(text, nil, nil)
	testkit.Require(t, err == nil, "%v in\n%s", err, text)
	return object
}

func manifest[T any](t *testing.T, name string) T {
	t.Helper()
	text := read(t, manifests+name)
	object, isOne := parse(t, text).(T)
	testkit.Require(t, isOne && !bytes.Contains(text, []byte("\n---")), "%s holds another kind of object, or several", name)
	return object
}

// TestKustomization builds the folder. kustomization.yaml names every manifest as a resource or in a comment.
func TestKustomization(t *testing.T) {
	t.Parallel()
	for _, resource := range kustomized(t).Resources() {
		d, isDeployment := parse(t, testkit.Must(resource.AsYAML())(t)).(*appsv1.Deployment)
		if isDeployment && !strings.Contains(d.Spec.Template.Spec.Containers[0].Image, "/notifier:") {
			t.Errorf("the image is %q, want one with a registry and a tag", d.Spec.Template.Spec.Containers[0].Image)
		}
	}
	text := string(read(t, manifests+"kustomization.yaml"))
	for _, file := range glob(t, "kubernetes/*.yaml") {
		if name := filepath.Base(file); name != "kustomization.yaml" && !strings.Contains(text, "- "+name+"\n") {
			t.Errorf("kustomization.yaml does not name %s", name)
		}
	}
}

// mounted writes the files of a secret, and returns the settings of a config map with the folder of the files in place of the mount.
func mounted(t *testing.T, container corev1.Container, secret, configMap string) map[string]string {
	t.Helper()
	folder := t.TempDir()
	for key, value := range manifest[*corev1.Secret](t, secret).StringData {
		testkit.NoError(t, os.WriteFile(filepath.Join(folder, key), []byte(value), 0o600))
	}
	variables := maps.Clone(manifest[*corev1.ConfigMap](t, configMap).Data)
	for name, value := range variables {
		variables[name] = strings.Replace(value, container.VolumeMounts[0].MountPath, folder, 1)
	}
	return variables
}

// TestProvisionManifests checks that the job of notifier provision has settings that load, the user of its own inbox, the streams of the workers, and
// the security context of the workers. Its pods are not selected as others.
func TestProvisionManifests(t *testing.T) {
	job, network := manifest[*batchv1.Job](t, "provision-job.yaml"), manifest[*networkingv1.NetworkPolicy](t, "provision-network-policy.yaml")
	worker := manifest[*appsv1.Deployment](t, "deployment.yaml")
	pod, confined := job.Spec.Template.Spec, worker.Spec.Template.Spec.Containers[0]
	folder := t.TempDir()
	for key, value := range manifest[*corev1.Secret](t, "provision-secret.yaml").StringData {
		testkit.NoError(t, os.WriteFile(filepath.Join(folder, key), []byte(value), 0o600))
	}
	variables := map[string]string{"NOTIFIER_SINK": config.SinkConsole} // provision has no sink, and load wants one
	for _, variable := range pod.Containers[0].Env {
		variables[variable.Name] = strings.Replace(variable.Value, pod.Containers[0].VolumeMounts[0].MountPath, folder, 1)
	}
	settings := load(t, variables)
	others := load(t, mounted(t, confined, "secret.yaml", "config-map.yaml"))
	server := testkit.Must(url.Parse(settings.NATS.URL.Reveal()))(t)
	for what, values := range map[string][2]any{
		"command":                  {pod.Containers[0].Args, []string{"provision"}},
		"secret":                   {pod.Volumes[0].Secret.SecretName, manifest[*corev1.Secret](t, "provision-secret.yaml").Name},
		"the user's inbox prefix":  {settings.NATS.Inbox, "_INBOX_" + settings.NATS.User},
		"server":                   {settings.NATS.URL, others.NATS.URL},
		"streams":                  {[]any{settings.NATS.Stream, settings.Stream, settings.DLQ, settings.Journal}, []any{others.NATS.Stream, others.Stream, others.DLQ, others.Journal}},
		"port let out":             {network.Spec.Egress[1].Ports[0].Port.String(), server.Port()},
		"ways in":                  {len(network.Spec.Ingress), 0},
		"context of the pod":       {pod.SecurityContext, worker.Spec.Template.Spec.SecurityContext},
		"context of the container": {pod.Containers[0].SecurityContext, confined.SecurityContext},
		"token of Kubernetes":      {*pod.AutomountServiceAccountToken, false},
		"service links":            {*pod.EnableServiceLinks, false},
		"workers provision":        {others.NATS.Provision, false},
		"selected":                 {selects(t, &network.Spec.PodSelector, job.Spec.Template.Labels), true},
		"selected as a worker":     {selects(t, worker.Spec.Selector, job.Spec.Template.Labels), false},
	} {
		testkit.EqualDeeply(t, values[0], values[1], "%s", what)
	}
}

// selects reports whether a selector selects pods.
func selects(t *testing.T, of *metav1.LabelSelector, pods labels.Set) bool {
	t.Helper()
	selector := testkit.Must(metav1.LabelSelectorAsSelector(of))(t)
	return !selector.Empty() && selector.Matches(pods)
}

// TestManifestsAgree checks that the manifests of the workers agree with each other, and that the pods have few rights.
func TestManifestsAgree(t *testing.T) {
	t.Parallel()
	deployment, service := manifest[*appsv1.Deployment](t, "deployment.yaml"), manifest[*corev1.Service](t, "service.yaml")
	account, network := manifest[*corev1.ServiceAccount](t, "service-account.yaml"), manifest[*networkingv1.NetworkPolicy](t, "network-policy.yaml")
	pod := deployment.Spec.Template.Spec
	worker, secret := pod.Containers[0], pod.Volumes[0].Secret
	for what, values := range map[string][2]any{
		"containers, volumes, mounts": {[]int{len(pod.Containers), len(pod.Volumes), len(worker.VolumeMounts)}, []int{1, 1, 1}},
		"target of the scaler":        {find(t, scaler, `scaleTargetRef:\s+name: (\S+)`), deployment.Name},
		"account":                     {pod.ServiceAccountName, account.Name},
		"variables":                   {worker.EnvFrom[0].ConfigMapRef.Name, manifest[*corev1.ConfigMap](t, "config-map.yaml").Name},
		"secret":                      {secret.SecretName, manifest[*corev1.Secret](t, "secret.yaml").Name},
		"volume of the secret":        {worker.VolumeMounts[0].Name, pod.Volumes[0].Name},
		"port of the container":       {fmt.Sprintf("%s:%d", worker.Ports[0].Name, worker.Ports[0].ContainerPort), "http" + httpAddr},
		"port to scrape":              {":" + deployment.Spec.Template.Annotations["prometheus.io/port"], httpAddr},
		"liveness":                    {worker.LivenessProbe.HTTPGet.Path + " " + worker.LivenessProbe.HTTPGet.Port.String(), "/healthz http"},
		"readiness":                   {worker.ReadinessProbe.HTTPGet.Path + " " + worker.ReadinessProbe.HTTPGet.Port.String(), "/readyz http"},
		"port of the service":         {fmt.Sprintf("%s:%d", service.Spec.Ports[0].TargetPort.String(), service.Spec.Ports[0].Port), "http" + httpAddr},
		"port let in":                 {network.Spec.Ingress[0].Ports[0].Port.String(), "http"},
		"ports, and ways in":          {len(service.Spec.Ports) + len(network.Spec.Ingress) + len(network.Spec.Ingress[0].Ports), 3},
		"not root":                    {*pod.SecurityContext.RunAsNonRoot && *pod.SecurityContext.RunAsUser > 0, true},
		"seccomp profile":             {pod.SecurityContext.SeccompProfile.Type, corev1.SeccompProfileTypeRuntimeDefault},
		"token of Kubernetes":         {*pod.AutomountServiceAccountToken || *account.AutomountServiceAccountToken, false},
		"service links":               {*pod.EnableServiceLinks, false},
		"escalation":                  {*worker.SecurityContext.AllowPrivilegeEscalation, false},
		"read-only file system":       {*worker.SecurityContext.ReadOnlyRootFilesystem, true},
		"capabilities":                {worker.SecurityContext.Capabilities, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		"no memory limit":             {worker.Resources.Limits.Memory().IsZero(), false},
		"secret cannot be altered":    {worker.VolumeMounts[0].ReadOnly, true},
		"mode of the secret":          {*secret.DefaultMode, int32(0o440)},
		"group that reads the secret": {*pod.SecurityContext.FSGroup > 0, true},
	} {
		testkit.EqualDeeply(t, values[0], values[1], "%s", what)
	}

	selectors := []*metav1.LabelSelector{
		deployment.Spec.Selector, {MatchLabels: service.Spec.Selector}, &network.Spec.PodSelector,
		manifest[*policyv1.PodDisruptionBudget](t, "pod-disruption-budget.yaml").Spec.Selector,
	}
	for _, spread := range pod.TopologySpreadConstraints {
		selectors = append(selectors, spread.LabelSelector)
	}
	pods := labels.Set(deployment.Spec.Template.Labels)
	for _, of := range selectors {
		testkit.Equal(t, selects(t, of, pods), true, "%v selects the pods with %v", of, pods)
	}
}

// workerStop is the longest time from SIGTERM to the end of a worker: newWorker in cmd/notifier gives its other parts seven seconds and two
// timeouts of Redis after the deliveries, whose last call to Redis may take a third one.
func workerStop(settings config.Config) time.Duration {
	return settings.ShutdownTimeout + 3*settings.Redis.Timeout + 7*time.Second
}

// TestManifestSettings loads the settings of the pods, and compares them with the manifests that depend on them.
func TestManifestSettings(t *testing.T) {
	pod := manifest[*appsv1.Deployment](t, "deployment.yaml").Spec.Template.Spec
	settings := load(t, mounted(t, pod.Containers[0], "secret.yaml", "config-map.yaml"))
	grace, stop := time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, workerStop(settings)
	testkit.Check(t, grace > stop, "got a grace period of %v, want more than the %v that a worker takes to stop", grace, stop)
	testkit.Equal(t, find(t, scaler, `stream_name="([^"]*)",consumer_name="notifier"`), settings.NATS.Stream, "stream that the scaler watches")
	testkit.Equal(t, find(t, scaler, `consumer_name="(notifier)"`), settings.NATS.Consumer, "consumer that the scaler watches")
	testkit.Equal(t, find(t, scaler, `stream_name="([^"]*)",consumer_name="notifier-room"`), settings.Room.Stream, "room that the scaler watches")

	open := make(map[string]bool)
	for _, rule := range manifest[*networkingv1.NetworkPolicy](t, "network-policy.yaml").Spec.Egress {
		for _, port := range rule.Ports {
			open[port.Port.String()] = true
		}
	}
	for _, text := range []string{settings.NATS.URL.Reveal(), settings.Redis.URL.Reveal(), "https://slack.com:443"} {
		server := testkit.Must(url.Parse(text))(t)
		testkit.Check(t, open[server.Port()], "the network policy opens the ports %v, want that of %s", open, text)
	}
}

// TestScaler wants the scaler to count undelivered events alone, and to have replicas to fall back on without a result.
func TestScaler(t *testing.T) {
	t.Parallel()
	scaled := make(map[string]object)
	objects(t, scaled, string(read(t, samples+scaler)))
	spec := scaled["ScaledObject notifier"].at("spec")
	trigger := spec.first("triggers").at("metadata")
	used := testkit.Must(inspect(known(t), trigger.text("query")))(t)
	testkit.EqualSlices(t, used, []string{"jetstream_consumer_num_pending", "jetstream_consumer_num_pending"}, "metrics")
	testkit.Equal(t, trigger["ignoreNullValues"], "false", "ignoreNullValues")
	replicas, fallback := manifest[*appsv1.Deployment](t, "deployment.yaml").Spec.Replicas, spec.at("fallback")
	testkit.Equal[any](t, fallback["replicas"], int(*replicas), "replicas without a result")
	testkit.Equal(t, fallback["behavior"], "currentReplicasIfHigher", "behavior without a result")
}

// TestIngestManifests checks that the manifests of ingest agree with each other and with its settings, and that its pods have the security
// context of the workers.
func TestIngestManifests(t *testing.T) {
	worker, deployment := manifest[*appsv1.Deployment](t, "deployment.yaml"), manifest[*appsv1.Deployment](t, "ingest-deployment.yaml")
	service, network := manifest[*corev1.Service](t, "ingest-service.yaml"), manifest[*networkingv1.NetworkPolicy](t, "ingest-network-policy.yaml")
	pod := deployment.Spec.Template.Spec
	container, confined := pod.Containers[0], worker.Spec.Template.Spec.Containers[0]
	variables := mounted(t, container, "ingest-secret.yaml", "ingest-config-map.yaml")
	variables["NOTIFIER_SINK"] = config.SinkConsole // ingest has no sink, and load wants one
	settings := load(t, variables)
	var in []string
	for _, rule := range network.Spec.Ingress {
		in = append(in, rule.Ports[0].Port.String())
	}
	for what, values := range map[string][2]any{
		"command":                  {container.Args, []string{"ingest"}},
		"variables":                {container.EnvFrom[0].ConfigMapRef.Name, manifest[*corev1.ConfigMap](t, "ingest-config-map.yaml").Name},
		"secret":                   {pod.Volumes[0].Secret.SecretName, manifest[*corev1.Secret](t, "ingest-secret.yaml").Name},
		"ports of the container":   {fmt.Sprintf("%s:%d %s:%d", container.Ports[0].Name, container.Ports[0].ContainerPort, container.Ports[1].Name, container.Ports[1].ContainerPort), "http" + settings.HTTP.Addr + " events" + settings.Ingest.Addr},
		"target of the service":    {service.Spec.Ports[0].TargetPort.String(), "events"},
		"ports let in":             {in, []string{"events", "http"}},
		"the user's inbox prefix":  {settings.NATS.Inbox, "_INBOX_" + settings.NATS.User},
		"context of the pod":       {pod.SecurityContext, worker.Spec.Template.Spec.SecurityContext},
		"context of the container": {container.SecurityContext, confined.SecurityContext},
		"token of Kubernetes":      {*pod.AutomountServiceAccountToken, false},
		"service links":            {*pod.EnableServiceLinks, false},
		"probes":                   {[]any{container.LivenessProbe, container.ReadinessProbe}, []any{confined.LivenessProbe, confined.ReadinessProbe}},
		"memory limit":             {container.Resources.Limits.Memory().IsZero(), false},
		"grace period":             {time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second > settings.Drain+settings.ShutdownTimeout, true},
	} {
		testkit.EqualDeeply(t, values[0], values[1], "%s", what)
	}
	pods, workers := labels.Set(deployment.Spec.Template.Labels), labels.Set(worker.Spec.Template.Labels)
	for _, of := range []*metav1.LabelSelector{
		deployment.Spec.Selector, {MatchLabels: service.Spec.Selector}, &network.Spec.PodSelector,
		manifest[*policyv1.PodDisruptionBudget](t, "ingest-pod-disruption-budget.yaml").Spec.Selector,
	} {
		testkit.Equal(t, selects(t, of, pods), true, "%v selects the pods with %v", of, pods)
		testkit.Equal(t, selects(t, of, workers), false, "%v selects the workers", of)
	}
}

// TestWorkerMemory wants the memory of the sizing table in the manifest, and the bound of the garbage collector below the limit.
func TestWorkerMemory(t *testing.T) {
	t.Parallel()
	worker := manifest[*appsv1.Deployment](t, "deployment.yaml").Spec.Template.Spec.Containers[0]
	row := regexp.MustCompile(`\| worker \| (\d+) MiB, and a limit of twice that;`).FindSubmatch(read(t, "../../docs/operations.md"))
	testkit.Require(t, row != nil, "docs/operations.md names no memory of a worker")
	requested, limit := worker.Resources.Requests.Memory(), worker.Resources.Limits.Memory()
	testkit.Equal(t, requested.String(), string(row[1])+"Mi", "requested memory")
	testkit.Equal(t, limit.Value(), 2*requested.Value(), "limit in bytes")
	collector := resource.MustParse(strings.TrimSuffix(worker.Env[0].Value, "B"))
	if worker.Env[0].Name != "GOMEMLIMIT" || collector.Cmp(*limit) >= 0 {
		t.Errorf("got %v, want GOMEMLIMIT below the limit of %v", worker.Env[0], limit)
	}
}
