{{- /* Rules of network policies that let pods reach the servers of the settings. A host of the cluster ("redis.data.svc…") is any pod of
its namespace, a name without a dot any pod of the own namespace, and an address itself. Any other name is no peer that a network
policy knows, so its port is open to every destination. Ports are those of the URL. */ -}}

{{- /* The rule for one server. Takes a list: host, port. */ -}}
{{- define "notifier.egress.server" -}}
{{- $host := index . 0 -}}
{{- $inCluster := "^(.*\\.)?([^.]+)\\.svc(\\..*)?$" -}}
- ports:
    - protocol: TCP
      port: {{ index . 1 }}
{{- if regexMatch $inCluster $host }}
  to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: {{ regexReplaceAll $inCluster $host "${2}" }}
{{- else if regexMatch "^[0-9]+(\\.[0-9]+){3}$" $host }}
  to:
    - ipBlock:
        cidr: {{ $host }}/32
{{- else if contains ":" $host }}
  to:
    - ipBlock:
        cidr: {{ $host }}/128
{{- else if not (contains "." $host) }}
  to:
    - podSelector: {}
{{- end }}
{{- end -}}

{{- /* The rule for the server of a URL. Takes a list: URL, port of a URL without one. */ -}}
{{- define "notifier.egress.url" -}}
{{- $url := index . 0 | trim -}}
{{- if not (contains "://" $url) -}}{{- $url = print "any://" $url -}}{{- end -}}
{{- $parsed := urlParse $url -}}
{{- $port := regexReplaceAll "^.*:([0-9]+)$" $parsed.host "${1}" -}}
{{- if not (regexMatch ":[0-9]+$" $parsed.host) -}}
{{- $port = get (dict "http" "80" "ws" "80" "https" "443" "wss" "443") $parsed.scheme | default (index . 1) -}}
{{- end -}}
{{- include "notifier.egress.server" (list $parsed.hostname $port) -}}
{{- end -}}

{{- /* The rules for NATS. Takes a list: root, settings. */ -}}
{{- define "notifier.egress.nats" -}}
{{- $url := get (index . 1) "NOTIFIER_NATS_URL" -}}
{{- if not (or $url (index . 0).Values.networkPolicy.egress) -}}
{{- fail "networkPolicy: NOTIFIER_NATS_URL is not in the settings: put it there, or list rules in networkPolicy.egress" -}}
{{- end -}}
{{- $rules := list -}}
{{- range compact (splitList "," $url) -}}{{- $rules = append $rules (include "notifier.egress.url" (list . "4222")) -}}{{- end -}}
{{- join "\n" (uniq $rules) -}}
{{- end -}}

{{- /* The rules for Redis: one server, the nodes of a cluster, or sentinels and the servers beside them. */ -}}
{{- define "notifier.egress.redis" -}}
{{- $url := get .Values.settings "NOTIFIER_REDIS_URL" -}}
{{- if not (or $url .Values.networkPolicy.egress) -}}
{{- fail "networkPolicy: NOTIFIER_REDIS_URL is not in the settings: put it there, or list rules in networkPolicy.egress" -}}
{{- end -}}
{{- if $url -}}
{{- $parsed := urlParse $url -}}
{{- $isSentinel := regexMatch "(^|&)master_name=" $parsed.query -}}
{{- $default := ternary "26379" "6379" $isSentinel -}}
{{- $servers := list (print "redis://" $parsed.host) -}}
{{- range regexFindAll "(^|&)addr=[^&]+" $parsed.query -1 -}}
{{- $servers = append $servers (regexReplaceAll "^&?addr=" . "redis://" | replace "%3A" ":" | replace "%3a" ":") -}}
{{- end -}}
{{- $rules := list -}}
{{- range $servers -}}
{{- $rules = append $rules (include "notifier.egress.url" (list . $default)) -}}
{{- if $isSentinel -}}
{{- $rules = append $rules (include "notifier.egress.server" (list (urlParse .).hostname "6379")) -}}
{{- end -}}
{{- end -}}
{{- join "\n" (uniq $rules) -}}
{{- end -}}
{{- end -}}

{{- /* The rules for what env names: a collector of traces, and a proxy. */ -}}
{{- define "notifier.egress.env" -}}
{{- $rules := list -}}
{{- range .Values.env -}}
{{- if and .value (regexMatch "^(OTEL_EXPORTER_OTLP_(TRACES_)?ENDPOINT|HTTPS?_PROXY|https?_proxy)$" .name) -}}
{{- $rules = append $rules (include "notifier.egress.url" (list .value "80")) -}}
{{- end -}}
{{- end -}}
{{- join "\n" (uniq $rules) -}}
{{- end -}}

{{- /* The rule for Slack: none for the console and behind a proxy, one server for another URL of the API, else the internet. */ -}}
{{- define "notifier.egress.slack" -}}
{{- $isProxied := false -}}
{{- range .Values.env -}}{{- if has .name (list "HTTPS_PROXY" "https_proxy") -}}{{- $isProxied = true -}}{{- end -}}{{- end -}}
{{- if or $isProxied (eq (get .Values.settings "NOTIFIER_SINK") "console") -}}
{{- else if get .Values.settings "NOTIFIER_SLACK_API_URL" -}}
{{- include "notifier.egress.url" (list .Values.settings.NOTIFIER_SLACK_API_URL "443") -}}
{{- else -}}
- to:
    - ipBlock:
        cidr: 0.0.0.0/0
        except:
          - 10.0.0.0/8
          - 100.64.0.0/10
          - 169.254.0.0/16
          - 172.16.0.0/12
          - 192.168.0.0/16
  ports:
    - protocol: TCP
      port: 443
{{- end -}}
{{- end -}}

{{- /* The rule for DNS, which every pod has. */ -}}
{{- define "notifier.egress.dns" -}}
- to:
    - namespaceSelector:
        matchLabels:
          kubernetes.io/metadata.name: kube-system
      podSelector:
        matchLabels:
          k8s-app: kube-dns
  ports:
    - protocol: UDP
      port: 53
    - protocol: TCP
      port: 53
{{- end -}}
