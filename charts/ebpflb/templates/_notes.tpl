{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* What is to be known about the kube-proxy of the cluster: (dict "root" ROOT "daemonset" OBJECT "settings"
CONFIGMAP), {} for what does not exist. */ -}}
{{- define "ebpflb.kubeProxyNotes" -}}
{{- $values := .root.Values -}}
{{- with dig "status" "currentNumberScheduled" 0 .daemonset }}
   kube-proxy runs on {{ . }} of the nodes (DaemonSet kube-system/kube-proxy).
{{- if or (eq (int $values.metrics.port) 10249) (eq (int $values.healthz.port) 10256) }}
   There it has the ports 10249 and 10256, and agents that want them keep trying. To run beside it for a
   while, set metrics.port and healthz.port to others, such as 20249 and 20256.
{{- end }}
{{- if regexMatch "(?m)^mode: \"?ipvs\"?$" (dig "data" "config.conf" "" $.settings) }}
   Its mode is ipvs: connections through it end with its virtual servers, and a node keeps the Services'
   addresses until they are removed. Drain each node first, and set kubeProxy.takeover=true.
{{- end }}
{{- if hasKey (dig "metadata" "labels" dict $.daemonset) "eks.amazonaws.com/component" }}
   It is an add-on of EKS, which would put it back: remove the add-on in place of step 2.
{{- end }}
{{ end }}
{{- end -}}
