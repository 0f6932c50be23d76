{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* An account for pods of a hook: (dict "root" ROOT "name" NAME "annotations" TEXT "rules" TEXT). */ -}}
{{- define "ebpflb.account" -}}
{{- $metadata := include "ebpflb.metadata" (dict "root" .root "name" .name "annotations" (fromYaml .annotations)) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- $metadata | nindent 2 }}
{{- if .root.Values.rbac.create }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- $metadata | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
  {{- include "ebpflb.openshiftRules" .root | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ include "ebpflb.namespace" .root }}
{{- end }}
{{- end -}}

{{- /* OpenShift admits pods by what their account may use. All of ours need what only this one allows: the
node's network with a user of their choice. */ -}}
{{- define "ebpflb.openshiftRules" -}}
{{- if .Values.openshift.enabled -}}
- apiGroups: [security.openshift.io]
  resources: [securitycontextconstraints]
  resourceNames: [privileged]
  verbs: [use]
{{- end -}}
{{- end -}}

{{- /* To see that DaemonSets are ready, and which of their pods are not. */ -}}
{{- define "ebpflb.awaitRules" -}}
- apiGroups: [apps]
  resources: [daemonsets]
  resourceNames: {{ toJson . }}
  verbs: [get]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}
