{{- define "notifier.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* The labels that select the pods of a component. Takes a list: root, component. */ -}}
{{- define "notifier.selector" -}}
app.kubernetes.io/name: notifier
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* The labels of an object. Takes a list: root, component ("" for none). */ -}}
{{- define "notifier.labels" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: notifier
app.kubernetes.io/instance: {{ $.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: notifier
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ $.Chart.Name }}-{{ $.Chart.Version }}
{{- end -}}

{{- /* What values add to the spec of every pod. */ -}}
{{- define "notifier.placement" -}}
{{- range $name := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with index $.Values $name }}
{{ dict $name . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Refuses settings that move a server to another port than that of the container, its probes and its services. Takes a list: name of the
settings, settings. */ -}}
{{- define "notifier.ports" -}}
{{- range $variable := list "NOTIFIER_HTTP_ADDR" "NOTIFIER_INGEST_ADDR" -}}
{{- if get (index $ 1) $variable -}}
{{- fail (printf "%s: leave out %s: the ports, probes and services of the chart use its default" (index $ 0) $variable) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The settings of `notifier provision`, as YAML: those of the workers that name what it creates, and provision.settings. */ -}}
{{- define "notifier.provision.settings" -}}
{{- $settings := dict -}}
{{- range $variable, $value := .Values.settings -}}
{{- if regexMatch "^NOTIFIER_(NATS|STREAM|ROOM|DLQ|JOURNAL|LIMITS_BUCKET|DELAY|FLAP|PAIR_TTL|EVENT|LOG|SLACK_TIMEOUT|REDIS_TIMEOUT)" $variable -}}
{{- $_ := set $settings $variable $value -}}
{{- end -}}
{{- end -}}
{{- toYaml (omit (mergeOverwrite $settings .Values.provision.settings) "NOTIFIER_NATS_PROVISION") -}}
{{- end -}}

{{- /* Seconds from SIGTERM to SIGKILL: the sum of durations in settings, rounded up, and a margin. Takes a list: settings; how many times
each variable counts, and its default; seconds of the margin. */ -}}
{{- define "notifier.grace" -}}
{{- $settings := index . 0 -}}
{{- $units := dict "y" 31536000000 "w" 604800000 "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 -}}
{{- $milliseconds := 0 -}}
{{- range $variable, $counted := index . 1 -}}
{{- range regexFindAll "[0-9]+(ms|[ywdhms])" (get $settings $variable | default (index $counted 1)) -1 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $milliseconds = add $milliseconds (mul (index $counted 0) (int64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- end -}}
{{- add (div (add $milliseconds 999) 1000) (index . 2) -}}
{{- end -}}
