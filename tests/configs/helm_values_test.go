package configs_test

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"

	"github.com/seed-4578ace9/notifier/internal/testing/testkit"
)

// everything switches on all that the chart can render.
const everything = `
keda: {enabled: true}
serviceMonitor: {enabled: true, labels: {release: prometheus}, interval: 30s}
prometheusRule: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true}
resources: {limits: {memory: 300Mi}}
provision: {resources: {limits: {memory: 100Mi}}}
ingest:
  resources: {limits: {memory: 200Mi}}
  serviceAnnotations: {balancer: internal}
  ingress: {enabled: true, className: nginx, annotations: {issuer: acme}, host: events.example.com, tlsSecret: events-tls}
  httpRoute: {enabled: true, annotations: {owner: ops}, parentRefs: [{name: public, namespace: gateways}], hostnames: [events.example.com]}
env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://collector.tracing.svc:4318'}, {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}]
extraVolumes: [{name: ca, configMap: {name: authorities}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/notifier/ca, readOnly: true}]
nodeSelector: {pool: tools}
tolerations: [{key: tools, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
priorityClassName: system-alerting
imagePullSecrets: [{name: registry}]
annotations: {owner: ops}
podAnnotations: {injected: 'false'}
serviceAccountAnnotations: {role: notifier}
`

// TestChartPods wants the values of pods in all of them: the workers', those of ingest, and that of the job.
func TestChartPods(t *testing.T) {
	t.Parallel()
	rendered := testkit.Must(render(t, "notifier", everything))(t)
	values := make(object)
	testkit.NoError(t, yaml.Unmarshal([]byte(everything), &values))
	for id, memory := range map[string]string{"Deployment notifier": "300Mi", "Deployment notifier-ingest": "200Mi", "Job notifier-provision": "100Mi"} {
		o := rendered[id]
		template := o.at("spec", "template")
		pod := template.at("spec")
		container := pod.first("containers")
		testkit.Equal(t, container.at("resources", "limits").text("memory"), memory, "memory limit of %s", id)
		for _, name := range []string{"nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"} {
			testkit.EqualDeeply(t, pod[name], values[name], "%s of %s", name, id)
		}
		for what, lists := range map[string][2]any{
			"variables": {container["env"], values["env"]}, "volumes": {pod["volumes"], values["extraVolumes"]}, "mounts": {container["volumeMounts"], values["extraVolumeMounts"]},
		} {
			all, isList := lists[0].([]any)
			added, isAdded := lists[1].([]any)
			if !isList || !isAdded || len(all) < len(added) {
				t.Fatalf("%s of %s: got %v, want %v at the end", what, id, lists[0], lists[1])
			}
			testkit.EqualDeeply(t, all[len(all)-len(added):], added, "last %s of %s", what, id)
		}
		testkit.Equal[any](t, o.at("metadata", "annotations")["owner"], "ops", "annotation of %s", id)
		annotations := template.at("metadata", "annotations")
		testkit.Equal[any](t, annotations["injected"], "false", "annotation of the pods of %s", id)
		if scraped := annotations["prometheus.io/scrape"]; scraped != nil {
			t.Errorf("%s has the annotation for scrapes beside a ServiceMonitor", id)
		}
	}
	testkit.Equal[any](t, rendered["ServiceAccount notifier"].at("metadata", "annotations")["role"], "notifier", "annotation of the account")
}

// egressCases are values, with what pods may reach of the network beside DNS: peer and port.
var egressCases = map[string]struct {
	values string
	want   []string // of the workers
	ingest string   // of ingest and the job; "" for that of the defaults
}{
	"defaults": {"", []string{"namespace nats 4222", "namespace redis 6379", "0.0.0.0/0 443"}, ""},
	"Redis on another port, NATS in the own namespace": {
		"{settings: {NOTIFIER_REDIS_URL: 'rediss://u:p@cache.data.svc:6380/0', NOTIFIER_NATS_URL: nats}, ingest: {settings: {NOTIFIER_NATS_URL: 'tls://nats:4223'}}, provision: {settings: {NOTIFIER_NATS_URL: 'tls://nats:4223'}}}",
		[]string{"own namespace 4222", "namespace data 6380", "0.0.0.0/0 443"}, "own namespace 4223",
	},
	"Redis Cluster": {
		"settings: {NOTIFIER_REDIS_URL: 'redis://a-0.a.data.svc.cluster.local:7000?addr=a-1.a.data.svc.cluster.local:7000&addr=10.0.0.9:7001'}",
		[]string{"namespace nats 4222", "namespace data 7000", "10.0.0.9/32 7001", "0.0.0.0/0 443"}, "",
	},
	"Sentinel, and the servers beside it": {
		"settings: {NOTIFIER_REDIS_URL: 'redis://s-0.s.data.svc?master_name=main&addr=s-1.s.data.svc%3A26380'}",
		[]string{"namespace nats 4222", "namespace data 26379", "namespace data 6379", "namespace data 26380", "0.0.0.0/0 443"}, "",
	},
	"three NATS servers elsewhere": {
		"settings: {NOTIFIER_NATS_URL: 'tls://n1.example.com:4222, tls://n2.example.com:4222,wss://[fd00::1]'}",
		[]string{"anywhere 4222", "fd00::1/128 443", "namespace redis 6379", "0.0.0.0/0 443"}, "namespace nats 4222",
	},
	"a collector and a proxy": {
		"env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: 'http://collector.tracing.svc:4318'}, {name: HTTPS_PROXY, value: 'http://proxy.example.com:3128'}]",
		[]string{"namespace nats 4222", "namespace redis 6379", "namespace tracing 4318", "anywhere 3128"}, "",
	},
	"another server in place of Slack": {
		"settings: {NOTIFIER_SLACK_API_URL: 'https://slack.tools.svc/api/'}", []string{"namespace nats 4222", "namespace redis 6379", "namespace tools 443"}, "",
	},
	"the console": {"settings: {NOTIFIER_SINK: console}", []string{"namespace nats 4222", "namespace redis 6379"}, ""},
	"URLs in secrets": {
		"{settings: {NOTIFIER_REDIS_URL: null, NOTIFIER_SINK: console}, networkPolicy: {egress: [{ports: [{port: 6379}]}]}}",
		[]string{"namespace nats 4222", "anywhere 6379"}, "namespace nats 4222, anywhere 6379",
	},
}

// TestNetworkPolicyFollowsTheSettings wants peers and ports of the servers that the settings and the environment name.
func TestNetworkPolicyFollowsTheSettings(t *testing.T) {
	t.Parallel()
	for name, test := range egressCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rendered := testkit.Must(render(t, "notifier", test.values))(t)
			testkit.EqualSlices(t, reachable(rendered["NetworkPolicy notifier"]), test.want, "what workers may reach")
			if test.ingest != "" {
				got := strings.Join(reachable(rendered["NetworkPolicy notifier-ingest"]), ", ")
				testkit.Equal(t, got, test.ingest, "what ingest may reach")
			}
		})
	}
	job := testkit.Must(render(t, "notifier", egressCases["three NATS servers elsewhere"].values))(t)["NetworkPolicy notifier-provision"]
	testkit.EqualSlices(t, reachable(job), []string{"anywhere 4222", "fd00::1/128 443"}, "what the job may reach, which has the workers' server")
}

// reachable lists peer and port of each egress rule but that for DNS.
func reachable(policy object) (all []string) {
	rules, _ := policy.at("spec")["egress"].([]any)
	for _, rule := range rules {
		rule, _ := rule.(object)
		port := fmt.Sprint(rule.first("ports")["port"])
		if port == "53" {
			continue
		}
		peer := "anywhere"
		if rule["to"] != nil {
			to := rule.first("to")
			switch block, namespace := to.at("ipBlock"), to.at("namespaceSelector", "matchLabels"); {
			case block != nil:
				peer = block.text("cidr")
			case namespace != nil:
				peer = "namespace " + namespace.text("kubernetes.io/metadata.name")
			case to["podSelector"] != nil:
				peer = "own namespace"
			}
		}
		all = append(all, peer+" "+port)
	}
	return all
}

// TestChartGracePeriods wants Kubernetes to wait as long as the settings let a process take to stop.
func TestChartGracePeriods(t *testing.T) {
	t.Parallel()
	for values, want := range map[string][2]int{
		"":                               {37, 40}, // workers, ingest
		"settings: {NOTIFIER_DRAIN: 1h}": {37, 40}, // only ingest drains
		"ingest: {settings: {NOTIFIER_DRAIN: 1m30s}}":                                     {37, 125},
		"settings: {NOTIFIER_SHUTDOWN_TIMEOUT: 2m, NOTIFIER_REDIS_TIMEOUT: 2500ms}":       {137, 40},
		"ingest: {settings: {NOTIFIER_DRAIN: '0', NOTIFIER_SHUTDOWN_TIMEOUT: 1h1s500ms}}": {37, 3612},
	} {
		rendered := testkit.Must(render(t, "notifier", values))(t)
		for i, id := range []string{"Deployment notifier", "Deployment notifier-ingest"} {
			testkit.Equal[any](t, rendered[id].at("spec", "template", "spec")["terminationGracePeriodSeconds"], want[i], "grace period of %s with %q", id, values)
		}
	}
}

// variables returns the literal variables of a container.
func variables(container object) map[string]string {
	all := make(map[string]string)
	list, _ := container["env"].([]any)
	for _, entry := range list {
		entry, _ := entry.(object)
		all[entry.text("name")] = entry.text("value")
	}
	return all
}

// TestProvisionJob wants a hook with the settings of the workers that decide what is created, and with a user and a secret of its own.
func TestProvisionJob(t *testing.T) {
	t.Parallel()
	rendered := testkit.Must(render(t, "notifier", `
settings: {NOTIFIER_NATS_STREAM: EVENTS, NOTIFIER_DLQ_MAX_AGE: 10d, NOTIFIER_LIMITS_BUCKET: limits, NOTIFIER_DELAY: security=6h, NOTIFIER_NATS_ACK_WAIT: 40s, NOTIFIER_NATS_CREDS_FILE: /creds}
provision: {existingSecret: admin, settings: {NOTIFIER_NATS_USER: null, NOTIFIER_NATS_PASSWORD_FILE: null, NOTIFIER_NATS_CREDS_FILE: /etc/notifier/secrets/admin.creds}}
`))(t)
	job := rendered["Job notifier-provision"]
	testkit.Equal[any](t, job.at("metadata", "annotations")["helm.sh/hook"], "pre-install,pre-upgrade", "hook")
	pod := job.at("spec", "template", "spec")
	testkit.Equal(t, pod.first("volumes").at("secret").text("secretName"), "admin", "secret")
	testkit.EqualMaps(t, variables(pod.first("containers")), map[string]string{
		"NOTIFIER_NATS_URL": "nats://nats.nats.svc.cluster.local:4222", "NOTIFIER_NATS_INBOX": "_INBOX_provisioner", "NOTIFIER_NATS_STREAM": "EVENTS",
		"NOTIFIER_DLQ_MAX_AGE": "10d", "NOTIFIER_LIMITS_BUCKET": "limits", "NOTIFIER_DELAY": "security=6h", "NOTIFIER_NATS_ACK_WAIT": "40s",
		"NOTIFIER_NATS_CREDS_FILE":    "/etc/notifier/secrets/admin.creds",
		"NOTIFIER_NATS_USER":          "notifier",
		"NOTIFIER_NATS_PASSWORD_FILE": "/etc/notifier/secrets/nats-password",
	}, "variables")
	testkit.Check(t, pod["serviceAccountName"] == nil && pod.first("containers")["envFrom"] == nil,
		"the job needs the account or the settings of the release, which are not there before the installation")
}

// TestChartMonitoring wants the rules for the jobs of the release, the dashboard as it is, and a monitor that selects the services of metrics.
func TestChartMonitoring(t *testing.T) {
	t.Parallel()
	for values, jobs := range map[string][2]string{
		everything: {"second-metrics", "second-ingest-metrics"},
		"prometheusRule: {enabled: true, job: kubernetes-pods, ingestJob: monitoring/ingest}": {"kubernetes-pods", "monitoring/ingest"},
	} {
		rendered := testkit.Must(render(t, "second", values))(t)
		text := string(testkit.Must(yaml.Marshal(rendered["PrometheusRule second"]["spec"]))(t))
		renamed := strings.NewReplacer(`job="`+jobs[0]+`"`, `job="notifier"`, `job="`+jobs[1]+`"`, `job="notifier-ingest"`)
		var got, want object
		testkit.NoError(t, yaml.Unmarshal([]byte(renamed.Replace(text)), &got))
		testkit.NoError(t, yaml.Unmarshal(read(t, samples+"prometheus/rules/notifier.yml"), &want))
		testkit.EqualDeeply(t, got, want, "rules with the jobs %v", jobs)
		for _, job := range jobs {
			testkit.Contains(t, "rules", text, `up{job="`+job+`"}`)
		}
		testkit.Lacks(t, "rules", text, `job="notifier`)
	}
	rendered := testkit.Must(render(t, "second", everything+"settings: {NOTIFIER_NATS_CONSUMER: team}"))(t)
	testkit.Contains(t, "alert for the backlog", fmt.Sprint(rendered["PrometheusRule second"]), `=~"team|team-room"`)
	testkit.Equal(t, rendered["ConfigMap second-dashboard"].at("data").text("notifier.json"),
		strings.TrimSpace(string(read(t, samples+"grafana/dashboards/notifier.json"))), "dashboard")
	testkit.Equal[any](t, rendered["ConfigMap second-dashboard"].at("metadata", "labels")["grafana_dashboard"], "1", "label of the dashboard")
	for _, id := range []string{"ServiceMonitor second", "PrometheusRule second"} {
		testkit.Equal[any](t, rendered[id].at("metadata", "labels")["release"], "prometheus", "label of %s", id)
	}
	monitor := rendered["ServiceMonitor second"].at("spec")
	testkit.EqualDeeply[any](t, monitor["endpoints"], []any{object{"port": "http", "interval": "30s"}}, "endpoints")
	for _, id := range []string{"Service second-metrics", "Service second-ingest-metrics"} {
		labels := rendered[id].at("metadata", "labels")
		for name, value := range monitor.at("selector", "matchLabels") {
			testkit.Equal(t, labels[name], value, "label %s of %s", name, id)
		}
		testkit.Equal(t, rendered[id].at("spec").first("ports").text("name"), "http", "port of %s", id)
	}
}

// TestChartRoutes wants the ways from outside to lead to the service of ingest.
func TestChartRoutes(t *testing.T) {
	t.Parallel()
	rendered := testkit.Must(render(t, "notifier", everything))(t)
	service := rendered["Service notifier-ingest"]
	testkit.Equal[any](t, service.at("metadata", "annotations")["balancer"], "internal", "annotation of the service")
	port := service.at("spec").first("ports")
	ingress, route := rendered["Ingress notifier-ingest"], rendered["HTTPRoute notifier-ingest"]
	rule := ingress.at("spec").first("rules")
	backend := rule.at("http").first("paths").at("backend", "service")
	target := route.at("spec").first("rules").first("backendRefs")
	for what, values := range map[string][2]any{
		"class":                     {ingress.at("spec")["ingressClassName"], "nginx"},
		"host":                      {rule["host"], "events.example.com"},
		"certificate":               {ingress.at("spec").first("tls")["secretName"], "events-tls"},
		"annotation":                {ingress.at("metadata", "annotations")["issuer"], "acme"},
		"service of the ingress":    {[]any{backend["name"], backend.at("port")["name"]}, []any{"notifier-ingest", port["name"]}},
		"service of the route":      {[]any{target["name"], target["port"]}, []any{"notifier-ingest", port["port"]}},
		"gateway":                   {route.at("spec").first("parentRefs"), object{"name": "public", "namespace": "gateways"}},
		"hosts of the route":        {route.at("spec")["hostnames"], []any{"events.example.com"}},
		"annotation of the route":   {route.at("metadata", "annotations")["owner"], "ops"},
		"API of the Gateway object": {route["apiVersion"], "gateway.networking.k8s.io/v1"},
	} {
		testkit.EqualDeeply(t, values[0], values[1], "%s", what)
	}
	without := testkit.Must(render(t, "notifier", ""))(t)
	for _, id := range []string{"Ingress notifier-ingest", "HTTPRoute notifier-ingest", "ServiceMonitor notifier", "PrometheusRule notifier", "ConfigMap notifier-dashboard"} {
		testkit.Check(t, without[id] == nil, "%s is rendered without being asked for", id)
	}
}

// TestChartPackage packages the chart as `helm package` does. The archive has the rules and the dashboard, which are links in the folder, and
// release.yml packages with the Helm of this test.
func TestChartPackage(t *testing.T) {
	t.Parallel()
	loaded := testkit.Must(loader.LoadDir(chart))(t)
	archive := testkit.Must(os.Open(testkit.Must(chartutil.Save(loaded, t.TempDir()))(t)))(t)
	defer func() { _ = archive.Close() }()
	reader := tar.NewReader(testkit.Must(gzip.NewReader(archive))(t))
	files := make(map[string]string)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testkit.NoError(t, err)
		files[header.Name] = string(testkit.Must(io.ReadAll(reader))(t))
	}
	for name, file := range map[string]string{"rules.yml": "prometheus/rules/notifier.yml", "dashboard.json": "grafana/dashboards/notifier.json"} {
		testkit.Equal(t, files["notifier/files/"+name], string(read(t, samples+file)), "file %s of the package %v", name, slices.Sorted(maps.Keys(files)))
	}
	workflow := workflows(t)["release.yml"]
	used := groups(workflow, `go install helm\.sh/helm/v4/cmd/helm@(\S+)`)
	testkit.EqualSlices(t, used, groups(string(read(t, "go.mod")), `helm\.sh/helm/v4 (\S+)`), "Helm of release.yml")
	for _, step := range []string{"package configs/helm", "push ", "oci://", "cosign sign", "attest-build-provenance"} {
		_, job, _ := strings.Cut(workflow, "\n  chart:\n")
		testkit.Contains(t, "job of the chart", job, step)
	}
}
