{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* What the objects of the relay share. */ -}}

{{- define "ebpflb.relayName" -}}
{{- printf "%s-relay" (include "ebpflb.fullname" .) -}}
{{- end -}}

{{- /* As ebpflb.metadata, with a label that tells the objects of the relay from the others. */ -}}
{{- define "ebpflb.relayMetadata" -}}
{{- include "ebpflb.metadata" (merge (dict "labels" (dict "app.kubernetes.io/component" "relay")) .) -}}
{{- end -}}

{{- /* Selects the relay's pods. It cannot change during the life of a release. */ -}}
{{- define "ebpflb.relaySelector" -}}
{{ include "ebpflb.releaseLabels" . }}
app.kubernetes.io/component: relay
{{- end -}}

{{- /* The certificates, by the names of their Secrets. Agents answer nobody but relay.observe.ebpflb.io, and the
relay asks nobody but agent.observe.ebpflb.io: an agent has no name that another client could use. */ -}}
{{- define "ebpflb.relayCertificates" -}}
{{- $relay := include "ebpflb.relayName" . -}}
{{- $service := printf "%s.%s" $relay (include "ebpflb.namespace" .) -}}
{{ $relay }}:
  commonName: {{ $relay }}
  dnsNames: [{{ $relay }}, {{ $service }}, {{ $service }}.svc]
  usage: server auth
{{ $relay }}-agents:
  commonName: relay.observe.ebpflb.io
  dnsNames: []
  usage: client auth
{{ include "ebpflb.fullname" . }}-observe:
  commonName: agent.observe.ebpflb.io
  dnsNames: [agent.observe.ebpflb.io]
  usage: server auth
{{- end -}}

{{- /* The Secrets that cert-manager makes and leaves behind, as a list. */ -}}
{{- define "ebpflb.foreignSecrets" -}}
{{- if and .Values.relay.enabled .Values.relay.certificates.certManager -}}
{{- $names := include "ebpflb.relayCertificates" . | fromYaml | keys | sortAlpha -}}
{{- append $names (printf "%s-ca" (include "ebpflb.relayName" .)) | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- /* What makes the relay a part of the API: (dict "root" ROOT), and either "caBundle" TEXT or "annotations". */ -}}
{{- define "ebpflb.relayApi" -}}
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  {{- $named := dict "root" .root "name" "v1alpha1.observe.ebpflb.io" "isOfCluster" true }}
  {{- include "ebpflb.relayMetadata" (merge $named (pick . "annotations")) | nindent 2 }}
spec:
  group: observe.ebpflb.io
  version: v1alpha1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service:
    name: {{ include "ebpflb.relayName" .root }}
    namespace: {{ include "ebpflb.namespace" .root }}
    port: 443
  {{- with .caBundle }}
  caBundle: {{ . }}
  {{- end }}
{{- end -}}
