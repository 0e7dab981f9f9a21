package configs_test

import (
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"go.yaml.in/yaml/v3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// foreign are the kinds of KEDA, the Prometheus operator and the Gateway API.
var foreign = map[string]struct{}{"ScaledObject": {}, "ServiceMonitor": {}, "PrometheusRule": {}, "HTTPRoute": {}}

// conform returns a validator of types with the schemas of Kubernetes 1.21 that Kustomize embeds. [parse] checks newer fields.
func conform(t *testing.T, types map[kyaml.TypeMeta]bool) validator.Validator {
	t.Helper()
	schemas := t.TempDir()
	for kind := range types {
		of := openapi.SchemaForResourceType(kind)
		testkit.Require(t, of != nil, "no schema for %v", kind)
		definitions := maps.Clone(openapi.Schema().Definitions)
		// The type of this definition lacks "integer", which its format allows.
		definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string", "integer"}}}
		text := testkit.Must(json.Marshal(map[string]any{"allOf": []any{of.Schema}, "definitions": definitions}))(t)
		testkit.NoError(t, os.WriteFile(filepath.Join(schemas, strings.ToLower(kind.Kind)+".json"), text, 0o600))
	}
	return testkit.Must(validator.New([]string{schemas + "/{{.ResourceKind}}.json"}, validator.Opts{
		SkipKinds: foreign,
	}))(t)
}

// TestKubeconform validates what Kustomize and Helm build, and a deployment with two faults.
func TestKubeconform(t *testing.T) {
	all := built(t, "scaled-object.yaml", "secret.yaml")
	maps.Copy(all, testkit.Must(render(t, "second", everything))(t))
	types := make(map[kyaml.TypeMeta]bool)
	for _, o := range all {
		if _, skipped := foreign[o.text("kind")]; !skipped {
			types[kyaml.TypeMeta{APIVersion: o.text("apiVersion"), Kind: o.text("kind")}] = true
		}
	}
	schemas := conform(t, types)
	faults := func(o object) (found []string) {
		text := testkit.Must(yaml.Marshal(o))(t)
		for _, result := range schemas.Validate("", io.NopCloser(strings.NewReader(string(text)))) {
			if result.Err != nil {
				found = append(found, result.Err.Error())
			}
		}
		return found
	}
	for id, o := range all {
		if found := faults(o); len(found) > 0 {
			t.Errorf("%s: %q", id, found)
		}
	}
	wrong := all["Deployment second"]
	wrong.at("spec")["selector"] = nil
	wrong.at("spec")["replicas"] = "many"
	if found := strings.Join(faults(wrong), ""); !strings.Contains(found, "replicas") || !strings.Contains(found, "selector") {
		t.Errorf("a deployment without a selector, and with replicas many: got the faults %q, want both", found)
	}
}
