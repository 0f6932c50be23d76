{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* The agent's settings file: .Values.config, and the options that depend on the pod. */ -}}
{{- define "ebpflb.config" -}}
{{- $config := dict
    "cgroup-root" "/run/ebpflb/cgroup"
    "healthz-bind-address" (include "ebpflb.bindAddress" .Values.healthz)
    "metrics-bind-address" (include "ebpflb.metricsAddress" .)
    "metrics-backends" .Values.metrics.backends
    "metrics-latency" .Values.metrics.latency
    "metrics-services" .Values.metrics.services
    "query-socket" "/run/ebpflb/agent.sock"
-}}
{{- if include "ebpflb.dsrKeySecret" . -}}
{{- $_ := set $config "dsr-key-file" "/etc/ebpflb/dsr/keys" -}}
{{- end -}}
{{- if .Values.relay.enabled -}}
{{- $_ := set $config "observe-bind-address" (printf ":%d" (int .Values.relay.agentPort)) -}}
{{- $_ := set $config "observe-tls-directory" "/etc/ebpflb/observe" -}}
{{- end -}}
{{- if or .Values.serviceSelector .Values.namespaceSelector -}}
{{- $_ := set $config "service-selector" .Values.serviceSelector -}}
{{- $_ := set $config "namespace-selector" .Values.namespaceSelector -}}
{{- end -}}
{{- if or .Values.serviceSelector .Values.namespaceSelector (index .Values.config "service-proxy-name") -}}
{{- if .Values.kubeProxy.takeover -}}
{{- fail "kubeProxy.takeover removes the rules with which kube-proxy serves what serviceSelector, namespaceSelector and config.service-proxy-name leave out: set only one of them" -}}
{{- end -}}
{{- if or (eq (int .Values.metrics.port) 10249) (eq (int .Values.healthz.port) 10256) -}}
{{- fail "with serviceSelector, namespaceSelector or config.service-proxy-name, kube-proxy runs alongside and uses the ports 10249 and 10256: set metrics.port and healthz.port to others, such as 20249 and 20256" -}}
{{- end -}}
{{- end -}}
{{- merge $config .Values.config | toYaml -}}
{{- end -}}

{{- /* Whether an option of .Values.config that is on by default has not been switched off: (list ROOT NAME). */ -}}
{{- define "ebpflb.isOn" -}}
{{- ternary "yes" "" (ne (toString (index (index . 0).Values.config (index . 1))) "false") -}}
{{- end -}}

{{- define "ebpflb.ownDsrKeySecret" -}}
{{- printf "%s-dsr" (include "ebpflb.fullname" .) -}}
{{- end -}}

{{- /* The Secret with the keys of tunnels; empty without direct server return. */ -}}
{{- define "ebpflb.dsrKeySecret" -}}
{{- if has (toString .Values.config.dsr) (list "annotated" "all") -}}
{{- .Values.dsrKeySecret | default (include "ebpflb.ownDsrKeySecret" .) -}}
{{- end -}}
{{- end -}}
