package configs_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

const chart = samples + "helm"

// object is an object of Kubernetes, decoded from YAML.
type object map[string]any

// objects adds the objects of a text to a map, by kind and name.
func objects(t *testing.T, into map[string]object, text string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if testkit.NoError(t, yaml.Unmarshal([]byte(document), &o)); o != nil {
			into[fmt.Sprint(o["kind"], " ", o.at("metadata")["name"])] = o
		}
	}
}

// at returns the object at a path below this one.
func (o object) at(path ...string) object {
	for _, name := range path {
		o, _ = o[name].(object)
	}
	return o
}

// first returns the first object of a list.
func (o object) first(list string) object {
	objects, _ := o[list].([]any)
	first, _ := objects[0].(object)
	return first
}

// text returns a value of type string.
func (o object) text(name string) string {
	text, _ := o[name].(string)
	return text
}

// kustomized builds configs/kubernetes.
func kustomized(t *testing.T) resmap.ResMap {
	t.Helper()
	return testkit.Must(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), manifests))(t)
}

// render renders the chart with values, given as a file of `helm --values`.
func render(t *testing.T, release, changed string) (map[string]object, error) {
	t.Helper()
	loaded := testkit.Must(loader.LoadDir(chart))(t)
	values := testkit.Must(loader.LoadValues(strings.NewReader(changed)))(t)
	rendering, err := util.ToRenderValues(loaded, values, common.ReleaseOptions{Name: release, Namespace: "notifications", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	rendered := make(map[string]object)
	texts, err := engine.Render(loaded, rendering)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		objects(t, rendered, text)
	}
	return rendered, nil
}

// built returns what Kustomize builds of the manifests, and the manifests named in beside. Kustomize keeps global state, so tests that
// build do not run in parallel.
func built(t *testing.T, beside ...string) map[string]object {
	t.Helper()
	all := make(map[string]object)
	objects(t, all, string(testkit.Must(kustomized(t).AsYaml())(t)))
	for _, file := range beside {
		objects(t, all, string(read(t, manifests+file)))
	}
	for _, o := range all { // Kustomize sets these labels on its own resources
		if o.at("metadata", "labels") == nil {
			o.at("metadata")["labels"] = object{}
		}
		for _, name := range []string{"name", "instance", "part-of"} {
			o.at("metadata", "labels")["app.kubernetes.io/"+name] = "notifier"
		}
	}
	return all
}

// TestChartIsTheManifests renders the chart and compares it with the manifests. With default values the chart has what Kustomize builds,
// and with a switch on it has the manifest that Kustomize leaves out.
func TestChartIsTheManifests(t *testing.T) {
	for name, test := range map[string]struct {
		values string
		beside []string
		change func(manifests map[string]object)
	}{
		"defaults": {},
		"KEDA": {values: "keda: {enabled: true}", beside: []string{"scaled-object.yaml"}, change: func(manifests map[string]object) {
			delete(manifests["Deployment notifier"].at("spec"), "replicas")
		}},
		"no network policy": {values: "networkPolicy: {enabled: false}", change: func(manifests map[string]object) {
			maps.DeleteFunc(manifests, func(id string, _ object) bool { return strings.HasPrefix(id, "NetworkPolicy ") })
		}},
		"streams of others": {values: "provision: {enabled: false}", change: func(manifests map[string]object) {
			maps.DeleteFunc(manifests, func(id string, _ object) bool { return strings.HasSuffix(id, " notifier-provision") })
		}},
		"without events over HTTP": {values: "ingest: {enabled: false}", change: func(manifests map[string]object) {
			maps.DeleteFunc(manifests, func(id string, _ object) bool { return strings.Contains(id, " notifier-ingest") })
		}},
		"an image, a secret, a setting less": {
			values: "{image: {repository: a.example/b, digest: 'sha256:" + strings.Repeat("0", 64) + "'}, existingSecret: mine, settings: {NOTIFIER_GLOBAL_LIMIT: null, NOTIFIER_CONCURRENCY: '2'}}",
			change: func(manifests map[string]object) {
				for _, id := range []string{"Deployment notifier", "Deployment notifier-ingest", "Job notifier-provision"} {
					manifests[id].at("spec", "template", "spec").first("containers")["image"] = "a.example/b@sha256:" + strings.Repeat("0", 64)
				}
				manifests["Deployment notifier"].at("spec", "template", "spec").first("volumes").at("secret")["secretName"] = "mine"
				settings := manifests["ConfigMap notifier"].at("data")
				delete(settings, "NOTIFIER_GLOBAL_LIMIT")
				settings["NOTIFIER_CONCURRENCY"] = "2"
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := built(t, test.beside...)
			if test.change != nil {
				test.change(want)
			}
			got := testkit.Must(render(t, "notifier", test.values))(t)
			for _, o := range got {
				withoutHelm(o)
			}
			testkit.EqualSlices(t, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)), "rendered objects")
			for id, o := range got {
				testkit.EqualDeeply(t, o, want[id], "%s", id)
			}
		})
	}
}

// withoutHelm removes what the chart alone has: the labels of a release, hooks, and an annotation that starts new pods for new settings.
func withoutHelm(o object) {
	for _, name := range []string{"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
		delete(o.at("metadata", "labels"), name)
	}
	annotations := o.at("metadata", "annotations")
	maps.DeleteFunc(annotations, func(name string, _ any) bool { return strings.HasPrefix(name, "helm.sh/hook") })
	if len(annotations) == 0 {
		delete(o.at("metadata"), "annotations")
	}
	delete(o.at("spec", "template", "metadata", "annotations"), "checksum/settings")
}

// TestChartUnderAnotherName wants a second release to share no object and no label with the first one.
func TestChartUnderAnotherName(t *testing.T) {
	t.Parallel()
	rendered := testkit.Must(render(t, "second", everything))(t)
	for id, o := range rendered {
		text := string(testkit.Must(yaml.Marshal(o))(t))
		labels := o.at("metadata", "labels")
		if _, name, _ := strings.Cut(id, " "); !strings.HasPrefix(name, "second") || strings.Contains(text, "instance: notifier\n") {
			t.Errorf("%s has the name of another release:\n%s", id, text)
		}
		testkit.EqualSlices(t, []any{labels["app.kubernetes.io/name"], labels["app.kubernetes.io/instance"], labels["app.kubernetes.io/managed-by"]},
			[]any{"notifier", "second", "Helm"}, "labels of %s", id)
	}
	pods := rendered["Deployment second"].at("spec", "template", "metadata", "labels")
	testkit.EqualDeeply(t, rendered["Deployment second"].at("spec", "selector", "matchLabels"), pods, "selector of the pods")
	testkit.EqualDeeply(t, rendered["Service second-metrics"].at("spec", "selector"), pods, "selector of the service")
}

func TestChartRestartsForSettings(t *testing.T) {
	t.Parallel()
	sum := func(changed string) any {
		rendered := testkit.Must(render(t, "notifier", changed))(t)
		return rendered["Deployment notifier"].at("spec", "template", "metadata", "annotations")["checksum/settings"]
	}
	a, b := sum(""), sum("settings: {NOTIFIER_GLOBAL_LIMIT: 5/1m}")
	testkit.Check(t, a != nil && a != b, "got the checksums %v and %v of two settings, want different ones", a, b)
}

func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for changed, says := range map[string]string{
		"env: [{name: NOTIFIER_CONCURRENCY, value: '2'}]": "not",
		"env: [{value: x}]":                                   "name",
		"podAnnotations: {a: 1}":                              "podAnnotations",
		"networkPolicy: {natsNamespace: nats}":                "natsNamespace",
		"ingest: {ingress: {enabled: true}}":                  "host",
		"ingest: {httpRoute: {enabled: true}}":                "parentRefs",
		"serviceMonitor: {interval: often}":                   "interval",
		"prometheusRule: {job: 'a\"b'}":                       "job",
		"settings: {NOTIFIER_NATS_URL: null}":                 "NOTIFIER_NATS_URL is not in the settings",
		"settings: {NOTIFIER_REDIS_URL: null}":                "NOTIFIER_REDIS_URL is not in the settings",
		"settings: {NOTIFIER_HTTP_ADDR: ':9090'}":             "settings: leave out NOTIFIER_HTTP_ADDR",
		"settings: {NOTIFIER_HTTP_ADDR: 'off'}":               "settings: leave out NOTIFIER_HTTP_ADDR",
		"settings: {NOTIFIER_INGEST_ADDR: ':9090'}":           "settings: leave out NOTIFIER_INGEST_ADDR",
		"ingest: {settings: {NOTIFIER_HTTP_ADDR: ':9090'}}":   "ingest.settings: leave out NOTIFIER_HTTP_ADDR",
		"ingest: {settings: {NOTIFIER_INGEST_ADDR: ':9090'}}": "ingest.settings: leave out NOTIFIER_INGEST_ADDR",
		"settings: {NOTIFIER_CONCURRENCY: 2}":                 "got number, want null or string",
		"settings: {GLOBAL_LIMIT: 5/1m}":                      "GLOBAL_LIMIT",
		"replica: 2":                                          "'replica' not allowed",
		"replicas: many":                                      "want integer",
		"image: {digest: latest}":                             "digest",
		"goMemoryLimit: 200Mi":                                "goMemoryLimit",
		"ingest: {resources: {memory: 64Mi}}":                 "'memory' not allowed",
		"keda: {prometheus: prometheus:9090}":                 "prometheus",
	} {
		_, err := render(t, "notifier", changed)
		testkit.Fails(t, changed, err, nil, says)
	}
}

// TestChartLint runs `helm lint`, whose level info says only that the chart has no icon.
func TestChartLint(t *testing.T) {
	t.Parallel()
	for _, message := range lint.RunAll(chart, nil, "notifications").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}
