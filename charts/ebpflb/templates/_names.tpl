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
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: name the account of the agents in serviceAccount.name" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "ebpflb.fullname" .) -}}
{{- end -}}

{{- define "ebpflb.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is not set: a chart from a checkout has no image of its own; build one with `make image`, push it or load it into the nodes, and set the name that it has there, such as registry.example/ebpflb" -}}
{{- end -}}
{{- $version := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) -}}
{{- $digest := .Values.image.digest -}}
{{- include "ebpflb.fromRegistry" (list . .Values.image.repository) -}}
{{- ternary (printf "@%s" $digest) $version (ne $digest "") -}}
{{- end -}}

{{- /* An image with global.imageRegistry, if given, in place of its own registry: (list ROOT IMAGE). Its first
part is a registry if it has a dot or a port, or is localhost. */ -}}
{{- define "ebpflb.fromRegistry" -}}
{{- $registry := (index . 0).Values.global.imageRegistry -}}
{{- $image := index . 1 -}}
{{- if $registry -}}
{{- $image = printf "%s/%s" ($registry | trimSuffix "/") (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $image "") -}}
{{- end -}}
{{- $image -}}
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

{{- define "ebpflb.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- /* The metadata of every object: (dict "root" ROOT "name" NAME). It may have labels and annotations of its
own, which take precedence, and another namespace; "isOfCluster" true: none. */ -}}
{{- define "ebpflb.metadata" -}}
name: {{ .name }}
{{- if not .isOfCluster }}
namespace: {{ .namespace | default (include "ebpflb.namespace" .root) }}
{{- end }}
labels:
  {{- merge (dict) (.labels | default dict) (include "ebpflb.labels" .root | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
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

{{- /* Annotations of a hook that runs when the chart is removed: (list ROOT WEIGHT LASTS). Helm does not delete
it if LASTS is true. Argo CD creates all of them at once, without an order, and deletes all if all succeeded. */ -}}
{{- define "ebpflb.removalHook" -}}
{{- if eq (index . 0).Values.uninstall.mode "argocd" -}}
argocd.argoproj.io/hook: PostDelete
argocd.argoproj.io/hook-delete-policy: HookSucceeded
{{- else if index . 2 -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation
{{- else -}}
{{- include "ebpflb.hook" (list "post-delete" (index . 1)) -}}
{{- end -}}
{{- end -}}
