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

{{- /* The settings of `notifier provision`, as YAML: those of the workers that name what it creates, and provision.settings. */ -}}
{{- define "notifier.provision.settings" -}}
{{- $settings := dict -}}
{{- range $variable, $value := .Values.settings -}}
{{- if regexMatch "^NOTIFIER_(NATS|STREAM|ROOM|DLQ|JOURNAL|LIMITS_BUCKET|DELAY|EVENT|LOG|SLACK_TIMEOUT|REDIS_TIMEOUT)" $variable -}}
{{- $_ := set $settings $variable $value -}}
{{- end -}}
{{- end -}}
{{- toYaml (omit (mergeOverwrite $settings .Values.provision.settings) "NOTIFIER_NATS_PROVISION") -}}
{{- end -}}
