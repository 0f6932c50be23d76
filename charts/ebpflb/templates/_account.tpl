{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* An account for pods of a hook: (dict "root" ROOT "name" NAME "annotations" TEXT "rules" TEXT). */ -}}
{{- define "ebpflb.account" -}}
{{- $metadata := dict
    "name" .name
    "namespace" .root.Release.Namespace
    "labels" (include "ebpflb.labels" .root | fromYaml)
    "annotations" (fromYaml .annotations)
-}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- toYaml $metadata | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- toYaml $metadata | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- toYaml $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
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
