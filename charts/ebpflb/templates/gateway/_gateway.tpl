{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* What the objects of the controller of Gateways and ServiceImports share. */ -}}

{{- /* Not empty if it runs. */ -}}
{{- define "ebpflb.gatewayRuns" -}}
{{- if or .Values.gateway.enabled .Values.multicluster.enabled }}yes{{ end -}}
{{- end -}}

{{- define "ebpflb.gatewayName" -}}
{{- printf "%s-gateway" (include "ebpflb.fullname" .) -}}
{{- end -}}

{{- /* As ebpflb.metadata, with a label that tells its objects from the others. */ -}}
{{- define "ebpflb.gatewayMetadata" -}}
{{- include "ebpflb.metadata" (merge (dict "labels" (dict "app.kubernetes.io/component" "gateway")) .) -}}
{{- end -}}

{{- /* Selects its pods. It cannot change during the life of a release. */ -}}
{{- define "ebpflb.gatewaySelector" -}}
{{ include "ebpflb.releaseLabels" . }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- /* Gives its account its own role: (dict "root" ROOT "kind" KIND), and "isOfCluster" as in ebpflb.metadata. */ -}}
{{- define "ebpflb.gatewayBinding" -}}
{{- $name := include "ebpflb.gatewayName" .root -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "ebpflb.gatewayMetadata" (dict "root" .root "name" $name "isOfCluster" .isOfCluster) | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ include "ebpflb.namespace" .root }}
{{- end -}}
