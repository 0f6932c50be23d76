{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The agent's settings file: .Values.config, and the options that depend on the pod. */ -}}
{{- define "ebpflb.config" -}}
{{- $config := dict
    "cgroup-root" "/run/ebpflb/cgroup"
    "healthz-bind-address" (include "ebpflb.bindAddress" .Values.healthz)
    "metrics-bind-address" (include "ebpflb.metricsAddress" .)
    "metrics-backends" .Values.metrics.backends
    "metrics-services" .Values.metrics.services
    "query-socket" "/run/ebpflb/agent.sock"
-}}
{{- merge $config .Values.config | toYaml -}}
{{- end -}}
