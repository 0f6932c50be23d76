{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Parts that the agent's pod, the cleanup pods and the pod that waits for those share. */ -}}

{{- define "ebpflb.pullSecrets" -}}
{{- with concat (.Values.global.imagePullSecrets | default list) .Values.imagePullSecrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- /* Which nodes. What cleans up runs where agents run, and so does `helm test`. */ -}}
{{- define "ebpflb.nodes" -}}
{{- with include "ebpflb.pullSecrets" . }}
{{ . }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "ebpflb.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
{{- if .Values.startupTaint.enabled -}}
{{- $tolerations = append ($tolerations | default list) (dict "key" .Values.startupTaint.key "operator" "Exists") -}}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* For a pod that may run on any node, but not on one that is down: such nodes have taints with the
effect NoExecute. */ -}}
{{- define "ebpflb.anyNodeTolerations" -}}
tolerations:
  - operator: Exists
    effect: NoSchedule
{{- end -}}

{{- /* In the node's network, with the highest priority. */ -}}
{{- define "ebpflb.placement" -}}
hostNetwork: true
dnsPolicy: {{ .Values.dnsPolicy }}
{{- with .Values.dnsConfig }}
dnsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
enableServiceLinks: false
priorityClassName: {{ .Values.priorityClassName }}
{{ include "ebpflb.nodes" . }}
{{- end -}}

{{- /* The AppArmor profile: a pod annotation before Kubernetes 1.30, a container field since then. */ -}}
{{- define "ebpflb.appArmorAnnotation" -}}
{{- if semverCompare "<1.30.0-0" .root.Capabilities.KubeVersion.Version -}}
container.apparmor.security.beta.kubernetes.io/{{ .container }}: {{ .root.Values.securityContext.appArmorProfile | kebabcase | replace "runtime-default" "runtime/default" }}
{{- end -}}
{{- end -}}

{{- /* For the containers that change the node's kernel state: (list ROOT CAPABILITIES). */ -}}
{{- define "ebpflb.securityContext" -}}
{{- $root := index . 0 -}}
{{- $given := $root.Values.securityContext -}}
runAsUser: 0
readOnlyRootFilesystem: true
{{- if $given.privileged }}
privileged: true
{{- else }}
capabilities:
  drop: [ALL]
  add:
    {{- toYaml (index . 1) | nindent 4 }}
seccompProfile:
  type: {{ $given.seccompProfile }}
{{- if semverCompare ">=1.30.0-0" $root.Capabilities.KubeVersion.Version }}
appArmorProfile:
  type: {{ $given.appArmorProfile }}
{{- end }}
{{- end }}
{{- with $given.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The agent's, which `ebpflb cleanup` needs as well. */ -}}
{{- define "ebpflb.agentSecurityContext" -}}
{{- $others := ternary (list "SYS_PTRACE") list .Values.hostPID -}}
{{- include "ebpflb.securityContext" (list . (concat .Values.securityContext.capabilities $others)) -}}
{{- end -}}

{{- /* For the containers that need no privileges. */ -}}
{{- define "ebpflb.noRights" -}}
runAsUser: 65534
runAsNonRoot: true
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* The addresses of the API that work without any Service. */ -}}
{{- define "ebpflb.apiVariables" -}}
{{- $hosts := .Values.k8sServiceHost -}}
{{- if not (kindIs "slice" $hosts) -}}
{{- $hosts = compact (list $hosts) -}}
{{- end -}}
{{- $port := .Values.k8sServicePort | int -}}
{{- with $hosts -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ first . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $port | quote }}
{{- with rest . }}
{{- $urls := list -}}
{{- range . -}}
{{- $urls = append $urls (printf (ternary "https://[%s]:%d" "https://%s:%d" (contains ":" .)) . $port) -}}
{{- end }}
- name: EBPFLB_API_SERVERS
  value: {{ join "," $urls | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* Stops a pod that would otherwise pin to a file system that is lost with the container. */ -}}
{{- define "ebpflb.bpffsContainer" -}}
- name: bpffs
  image: {{ include "ebpflb.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c]
  args:
    - |
      [ "$(stat -f -c %T /sys/fs/bpf)" = bpf_fs ] && exit
      {{- if .Values.bpf.autoMount }}
      exec mount -t bpf -o nosuid,nodev,noexec,mode=700 bpf /sys/fs/bpf
      {{- else }}
      echo "no bpffs at {{ .Values.bpf.hostRoot }} of this node: mount it there (mount -t bpf bpf {{ .Values.bpf.hostRoot }}), or set bpf.autoMount" >&2
      exit 1
      {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  securityContext:
    {{- if .Values.bpf.autoMount }}
    privileged: true
    runAsUser: 0
    readOnlyRootFilesystem: true
    {{- else }}
    {{- include "ebpflb.noRights" . | nindent 4 }}
    {{- end }}
  volumeMounts:
    - name: bpffs
      mountPath: /sys/fs/bpf
      {{- if .Values.bpf.autoMount }}
      mountPropagation: Bidirectional
      {{- end }}
  resources:
    {{- toYaml .Values.otherResources | nindent 4 }}
{{- end -}}

{{- /* Removes kube-proxy's rules once the agent is in sync and kube-proxy has stopped, then sleeps. */ -}}
{{- define "ebpflb.takeoverContainer" -}}
- name: takeover
  image: {{ include "ebpflb.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c]
  args: ["until ebpflb takeover --wait 3600; do sleep 10; done; exec sleep infinity"]
  env:
    - name: EBPFLB_METRICS_BIND_ADDRESS
      value: {{ include "ebpflb.metricsAddress" . | quote }}
  securityContext:
    {{- /* For iptables, for iptables-legacy, and to find the process kube-proxy. */}}
    {{- include "ebpflb.securityContext" (list . (list "NET_ADMIN" "NET_RAW" "SYS_PTRACE")) | nindent 4 }}
  resources:
    {{- toYaml .Values.otherResources | nindent 4 }}
  volumeMounts:
    - name: xtables-lock
      mountPath: /run/xtables.lock
{{- end -}}

{{- /* Serves the agent's metrics over TLS to those who may get /metrics in the API. */ -}}
{{- define "ebpflb.rbacProxyContainer" -}}
{{- $metrics := .Values.metrics -}}
{{- $served := dict "bindAddress" ($metrics.bindAddress | default "::") "port" $metrics.rbacProxy.port -}}
- name: rbac-proxy
  image: {{ include "ebpflb.fromRegistry" (list . $metrics.rbacProxy.image) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - --secure-listen-address={{ include "ebpflb.bindAddress" $served }}
    - --upstream=http://{{ include "ebpflb.metricsAddress" . }}/
    - --allow-paths=/metrics,/metrics/slis
  ports:
    - name: metrics
      containerPort: {{ $metrics.rbacProxy.port }}
  {{- with include "ebpflb.apiVariables" . }}
  env:
    {{- . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "ebpflb.noRights" . | nindent 4 }}
  resources:
    {{- toYaml .Values.otherResources | nindent 4 }}
{{- end -}}

{{- /* Removes the startup taint of its node once the agent serves it, then sleeps. */ -}}
{{- define "ebpflb.startupTaintContainer" -}}
{{- $health := dict "bindAddress" (.Values.healthz.bindAddress | default "127.0.0.1") "port" .Values.healthz.port -}}
- name: startup-taint
  image: {{ include "ebpflb.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [sh, -c, 'python3 -c "$0" "$@" && exec sleep infinity']
  args:
    - |
      {{- .Files.Get "files/cluster_steps.py" | nindent 6 }}
    - served
    - inf
    - $(EBPFLB_NODE_NAME)
    - {{ .Values.startupTaint.key }}
    - http://{{ include "ebpflb.bindAddress" $health }}/readyz
  env:
    - name: EBPFLB_NODE_NAME
      valueFrom:
        fieldRef:
          fieldPath: spec.nodeName
    {{- with include "ebpflb.apiVariables" . }}
    {{- . | nindent 4 }}
    {{- end }}
  securityContext:
    {{- include "ebpflb.noRights" . | nindent 4 }}
  resources:
    {{- toYaml .Values.otherResources | nindent 4 }}
{{- end -}}

{{- define "ebpflb.bpffsVolume" -}}
- name: bpffs
  hostPath:
    path: {{ .Values.bpf.hostRoot }}
    type: Directory
{{- end -}}

{{- /* A container that waits for a DaemonSet: (list ROOT STEP NAME SECONDS OTHERS...), a step of
cluster_steps.py. */ -}}
{{- define "ebpflb.await" -}}
{{- $root := index . 0 -}}
image: {{ include "ebpflb.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [python3, -c]
args:
  - |
    {{- $root.Files.Get "files/cluster_steps.py" | nindent 4 }}
  - {{ index . 1 }}
  - {{ index . 3 | quote }}
  - {{ include "ebpflb.namespace" $root }}
  - {{ index . 2 }}
  {{- range slice . 4 }}
  - {{ . }}
  {{- end }}
{{- with include "ebpflb.apiVariables" $root }}
env:
  {{- . | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "ebpflb.noRights" $root | nindent 2 }}
resources:
  {{- toYaml $root.Values.otherResources | nindent 2 }}
{{- end -}}
