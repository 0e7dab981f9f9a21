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
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/seed-4578ace9/notifier/internal/testkit"
)

const chart = samples + "helm"

// object is one object of Kubernetes, as any reader of YAML sees it.
type object map[string]any

// objects adds those of a text to a map by kind and name.
func objects(t *testing.T, into map[string]object, text string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if testkit.NoError(t, yaml.Unmarshal([]byte(document), &o)); o != nil {
			into[fmt.Sprint(o["kind"], " ", o.at("metadata")["name"])] = o
		}
	}
}

// at is the object below another one.
func (o object) at(path ...string) object {
	for _, name := range path {
		o, _ = o[name].(object)
	}
	return o
}

// first is the first object of a list.
func (o object) first(list string) object {
	objects, _ := o[list].([]any)
	first, _ := objects[0].(object)
	return first
}

// text is a value that is one.
func (o object) text(name string) string {
	text, _ := o[name].(string)
	return text
}

// values are those of a text as `helm --values` reads it.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	return testkit.Must(loader.LoadValues(strings.NewReader(text)))(t)
}

// render returns what Helm makes of the chart.
func render(t *testing.T, release, changed string) (map[string]object, error) {
	t.Helper()
	loaded := testkit.Must(loader.LoadDir(chart))(t)
	rendering, err := util.ToRenderValues(loaded, values(t, changed), common.ReleaseOptions{Name: release, Namespace: "notifications", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	rendered := make(map[string]object)
	for _, text := range testkit.Must(engine.Render(loaded, rendering))(t) {
		objects(t, rendered, text)
	}
	return rendered, nil
}

// built is what Kustomize makes of the manifests, and those beside them that are named. Kustomize has state of its own, so that no two
// tests may use it at once.
func built(t *testing.T, beside ...string) map[string]object {
	t.Helper()
	all := make(map[string]object)
	kustomized := testkit.Must(krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), manifests))(t)
	objects(t, all, string(testkit.Must(kustomized.AsYaml())(t)))
	for _, file := range beside {
		objects(t, all, string(read(t, manifests+file)))
	}
	for _, o := range all { // as Kustomize does with its resources
		if o.at("metadata", "labels") == nil {
			o.at("metadata")["labels"] = object{}
		}
		o.at("metadata", "labels")["app.kubernetes.io/part-of"] = "notifier"
	}
	return all
}

// The chart has what configs/kubernetes has: with its own values what Kustomize builds, and behind a switch what is left out there.
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
			delete(manifests, "NetworkPolicy notifier")
			delete(manifests, "NetworkPolicy notifier-ingest")
		}},
		"without events over HTTP": {values: "ingest: {enabled: false}", change: func(manifests map[string]object) {
			maps.DeleteFunc(manifests, func(id string, _ object) bool { return strings.HasSuffix(id, " notifier-ingest") })
		}},
		"an image, a secret, a setting less": {
			values: "{image: {repository: a.example/b, digest: 'sha256:" + strings.Repeat("0", 64) + "'}, existingSecret: mine, settings: {NOTIFIER_GLOBAL_LIMIT: null, NOTIFIER_CONCURRENCY: '2'}}",
			change: func(manifests map[string]object) {
				for _, id := range []string{"Deployment notifier", "Deployment notifier-ingest"} {
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
			// Kustomize starts no new pods for new settings.
			for id, o := range got {
				if strings.HasPrefix(id, "Deployment ") {
					delete(o.at("spec", "template", "metadata", "annotations"), "checksum/settings")
				}
			}
			testkit.EqualSlices(t, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)), "what Helm renders")
			for id, o := range got {
				testkit.EqualDeeply(t, o, want[id], "%s", id)
			}
		})
	}
}

// A release of another name shares no object and no label with the first one.
func TestChartUnderAnotherName(t *testing.T) {
	t.Parallel()
	rendered := testkit.Must(render(t, "second", "keda: {enabled: true}"))(t)
	for id, o := range rendered {
		text := string(testkit.Must(yaml.Marshal(o))(t))
		if kind, name, _ := strings.Cut(id, " "); !strings.HasPrefix(name, "second") || strings.Contains(text, "name: notifier\n") && kind != "Deployment" {
			t.Errorf("%s has the name of another release:\n%s", id, text)
		}
	}
	pods := rendered["Deployment second"].at("spec", "template", "metadata", "labels")
	testkit.EqualDeeply(t, rendered["Deployment second"].at("spec", "selector", "matchLabels"), pods, "the selector of the pods")
	testkit.EqualDeeply(t, rendered["Service second-metrics"].at("spec", "selector"), pods, "the selector of the service")
}

// New settings change the pods, so that they start anew.
func TestChartRestartsForSettings(t *testing.T) {
	t.Parallel()
	sum := func(changed string) any {
		rendered := testkit.Must(render(t, "notifier", changed))(t)
		return rendered["Deployment notifier"].at("spec", "template", "metadata", "annotations")["checksum/settings"]
	}
	if a, b := sum(""), sum("settings: {NOTIFIER_GLOBAL_LIMIT: 5/1m}"); a == nil || a == b {
		t.Errorf("the sum of other settings is %v, as that of %v", b, a)
	}
}

// The schema refuses values that would be taken for something else.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for changed, says := range map[string]string{
		"settings: {NOTIFIER_CONCURRENCY: 2}": "got number, want null or string",
		"settings: {GLOBAL_LIMIT: 5/1m}":      "GLOBAL_LIMIT",
		"replica: 2":                          "'replica' not allowed",
		"replicas: many":                      "want integer",
		"image: {digest: latest}":             "digest",
		"goMemoryLimit: 200Mi":                "goMemoryLimit",
		"keda: {prometheus: prometheus:9090}": "prometheus",
	} {
		if _, err := render(t, "notifier", changed); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", changed, err, says)
		}
	}
}

// `helm lint` finds nothing, but that the chart has no icon.
func TestChartLint(t *testing.T) {
	t.Parallel()
	for _, message := range lint.RunAll(chart, nil, "notifications").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}
