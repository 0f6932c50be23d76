{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- /* Parts that the agent's pod, the cleanup pods and the pod that waits for those share. */ -}}

{{- /* In the node's network, on every node, with the highest priority. */ -}}
{{- define "ebpflb.placement" -}}
hostNetwork: true
dnsPolicy: Default
enableServiceLinks: false
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .Values.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - key: kubernetes.io/arch
              operator: In
              values: [amd64, arm64]
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The AppArmor profile: a pod annotation before Kubernetes 1.30, a container field since then. */ -}}
{{- define "ebpflb.appArmorAnnotation" -}}
{{- if semverCompare "<1.30.0-0" .root.Capabilities.KubeVersion.Version -}}
container.apparmor.security.beta.kubernetes.io/{{ .container }}: {{ .root.Values.securityContext.appArmorProfile | kebabcase | replace "runtime-default" "runtime/default" }}
{{- end -}}
{{- end -}}

{{- /* For the containers that change the node's kernel state. */ -}}
{{- define "ebpflb.securityContext" -}}
{{- $given := .Values.securityContext -}}
runAsUser: 0
readOnlyRootFilesystem: true
{{- if $given.privileged }}
privileged: true
{{- else }}
capabilities:
  drop: [ALL]
  add:
    {{- toYaml $given.capabilities | nindent 4 }}
    {{- if .Values.hostPID }}
    - SYS_PTRACE
    {{- end }}
seccompProfile:
  type: {{ $given.seccompProfile }}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}
appArmorProfile:
  type: {{ $given.appArmorProfile }}
{{- end }}
{{- end }}
{{- with $given.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
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
    runAsUser: 0
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      # For iptables, for iptables-legacy, and to find the process kube-proxy.
      add: [NET_ADMIN, NET_RAW, SYS_PTRACE]
    seccompProfile:
      type: {{ .Values.securityContext.seccompProfile }}
  volumeMounts:
    - name: xtables-lock
      mountPath: /run/xtables.lock
{{- end -}}

{{- define "ebpflb.bpffsVolume" -}}
- name: bpffs
  hostPath:
    path: {{ .Values.bpf.hostRoot }}
    type: Directory
{{- end -}}

{{- /* A container that waits for a DaemonSet: (list ROOT "gone" or "clean" NAME). */ -}}
{{- define "ebpflb.await" -}}
{{- $root := index . 0 -}}
image: {{ include "ebpflb.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [python3, -c]
args:
  - |
    {{- $root.Files.Get "files/await_cleanup.py" | nindent 4 }}
  - {{ index . 1 }}
  - {{ $root.Release.Namespace }}
  - {{ index . 2 }}
  - {{ $root.Values.uninstall.timeoutSeconds | quote }}
{{- with include "ebpflb.apiVariables" $root }}
env:
  {{- . | nindent 2 }}
{{- end }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  {{- include "ebpflb.noRights" $root | nindent 2 }}
{{- end -}}
