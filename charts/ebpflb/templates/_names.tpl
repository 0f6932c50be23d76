{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Names and labels that several objects share. */ -}}

{{- define "ebpflb.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ebpflb.fullname" -}}
{{- $name := include "ebpflb.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $full | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "ebpflb.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "ebpflb.fullname" .) -}}
{{- end -}}

{{- define "ebpflb.image" -}}
{{- $version := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) -}}
{{- $digest := .Values.image.digest -}}
{{- .Values.image.repository -}}{{- ternary (printf "@%s" $digest) $version (ne $digest "") -}}
{{- end -}}

{{- define "ebpflb.releaseLabels" -}}
app.kubernetes.io/name: {{ include "ebpflb.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Selects the agent's pods. It cannot change during the life of a release. */ -}}
{{- define "ebpflb.selector" -}}
{{ include "ebpflb.releaseLabels" . }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "ebpflb.labels" -}}
{{ include "ebpflb.releaseLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The same with others, which take precedence: (list ROOT LABELS). */ -}}
{{- define "ebpflb.labelsWith" -}}
{{- merge (dict) (index . 1) (include "ebpflb.labels" (index . 0) | fromYaml) | toYaml -}}
{{- end -}}

{{- /* Labels of pods: (list ROOT COMPONENT). Those that select them take precedence. */ -}}
{{- define "ebpflb.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := include "ebpflb.releaseLabels" $root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/component" (index . 1) -}}
{{- merge $own $root.Values.podLabels $root.Values.commonLabels | toYaml -}}
{{- end -}}

{{- /* "IP:PORT" as the agent expects it, from an address that may be empty or IPv6. */ -}}
{{- define "ebpflb.bindAddress" -}}
{{- $host := .bindAddress -}}
{{- ternary (printf "[%s]" $host) $host (contains ":" $host) -}}:{{ .port | int }}
{{- end -}}

{{- define "ebpflb.metricsAddress" -}}
{{- if and .Values.metrics.enabled (not .Values.metrics.rbacProxy.image) -}}
{{- include "ebpflb.bindAddress" .Values.metrics -}}
{{- else -}}
127.0.0.1:{{ .Values.metrics.port | int }}
{{- end -}}
{{- end -}}

{{- /* Annotations of a hook: (list EVENT WEIGHT). Helm deletes it when it has succeeded, also when a
later hook fails. */ -}}
{{- define "ebpflb.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- /* The same, but Helm does not delete it. */ -}}
{{- define "ebpflb.lastingHook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation
{{- end -}}
