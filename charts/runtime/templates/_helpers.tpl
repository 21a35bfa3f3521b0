{{- define "runtime.labels" -}}
app.kubernetes.io/name: runtime
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "runtime.selector" -}}
app.kubernetes.io/name: runtime
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The configuration: what the chart sets is stronger than .Values.config. */}}
{{- define "runtime.config" -}}
{{- $kubernetes := dict
      "namespace" .Values.sandboxes.namespace
      "runtime_class" .Values.sandboxes.runtimeClass
      "registry" (required "registry.repository is missing: the server pushes images there, and nodes pull them from there" .Values.registry.repository)
-}}
{{- with .Values.registry.pullSecret }}{{ $_ := set $kubernetes "pull_secret" . }}{{ end -}}
{{- if .Values.registry.pushSecret }}{{ $_ := set $kubernetes "registry_credentials" "/etc/runtime/registry/.dockerconfigjson" }}{{ end -}}
{{- $set := dict "node" (dict "driver" "kubernetes") "kubernetes" $kubernetes -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.config) $set) -}}
{{- end }}

{{/* The ports of the configuration, as lines NAME PORT. */}}
{{- define "runtime.ports" -}}
{{- $config := .Values.config -}}
{{- range $name, $address := dict
      "http" (dig "ingress" "http_address" "" $config)
      "https" (dig "ingress" "https_address" "" $config)
      "api" (dig "api" "address" "" $config)
      "rpc" (dig "rpc" "address" "" $config)
      "ssh" (dig "ssh" "address" "" $config)
      "runners" (dig "runners" "address" "" $config)
-}}
{{- with $address }}{{ $name }} {{ splitList ":" . | last }}
{{ end -}}
{{- end -}}
{{- end }}
