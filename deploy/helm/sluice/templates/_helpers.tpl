{{/* What every object is called. Names of objects are unique, so a selector by this one finds no pods of others. */}}
{{- define "sluice.name" -}}
{{ .Values.fullnameOverride | default .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . | quote }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Without a tag or a digest, the chart's version: the image with the programs of iptables where those may be needed. */}}
{{- define "sluice.image" -}}
{{- $default := printf "%s%s" .Chart.AppVersion (ternary "-iptables" "" (eq (include "sluice.iptables" .) "true")) }}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $default }}{{ end }}
{{- end }}
{{- end }}

{{- define "sluice.windowsImage" -}}
{{- with .Values.windows.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default (printf "%s-windows" $.Chart.AppVersion) }}{{ end }}
{{- end }}
{{- end }}

{{/* The configuration of Windows nodes: that of Linux nodes where it says nothing else, without what is Linux's. */}}
{{- define "sluice.windowsConfig" -}}
{{- $own := dict "mode" "kernelspace" "winkernel" .Values.windows.winkernel }}
{{- $_ := required "windows.winkernel.networkName: say which HNS network the pods are on, like Calico" .Values.windows.winkernel.networkName }}
{{- mergeOverwrite (omit (deepCopy .Values.config) "mode" "oomScoreAdj" "conntrack" "iptables" "nftables" "ipvs") $own | toYaml }}
{{- end }}

{{- define "sluice.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
    server: {{ required "apiServer: say how nodes reach the API server, like https://10.0.0.10:6443" .Values.apiServer | toJson }}
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
- name: default
  context:
    cluster: default
    user: default
current-context: default
{{- end }}

{{/* What a running pod does not follow: the daemon reads the kubeconfig once, and --init-only runs before it. */}}
{{- define "sluice.checksums" -}}
checksum/kubeconfig: {{ include "sluice.kubeconfig" . | sha256sum }}
{{- with .Values.config }}
{{- $read := set (pick . "mode" "conntrack" "nodePortAddresses" "featureGates") "localhostNodePorts" (dig "iptables" "localhostNodePorts" true .) }}
checksum/init: {{ $read | toJson | sha256sum }}
{{- end }}
{{- end }}

{{/* Not empty if the mode is iptables or may turn out to be. */}}
{{- define "sluice.iptables" -}}
{{ if not (has .Values.config.mode (list "nftables" "ebpf")) }}true{{ end }}
{{- end }}

{{/* Not empty if the mode is ebpf. */}}
{{- define "sluice.ebpf" -}}
{{ if eq .Values.config.mode "ebpf" }}true{{ end }}
{{- end }}

{{/* The port and the address, without brackets, of an address like 0.0.0.0:10256 or [::]:10256. */}}
{{- define "sluice.port" -}}
{{ last (splitList ":" .) }}
{{- end }}

{{- define "sluice.host" -}}
{{ trimSuffix (printf ":%s" (include "sluice.port" .)) . | trimPrefix "[" | trimSuffix "]" }}
{{- end }}

{{/* Where the kubelet asks: at the node's address unless the daemon listens on another one. */}}
{{- define "sluice.probe" -}}
{{- $host := include "sluice.host" .Values.config.healthzBindAddress -}}
httpGet:
  {{- if not (has $host (list "0.0.0.0" "::")) }}
  host: {{ $host | quote }}
  {{- end }}
  path: /livez
  port: healthz
{{- end }}

{{/* The same for people on a node. */}}
{{- define "sluice.healthAddress" -}}
{{- $host := include "sluice.host" .Values.config.healthzBindAddress -}}
{{ if eq $host "0.0.0.0" }}127.0.0.1{{ else if eq $host "::" }}[::1]{{ else if contains ":" $host }}[{{ $host }}]{{ else }}{{ $host }}{{ end }}:{{ include "sluice.port" .Values.config.healthzBindAddress }}
{{- end }}

{{/* The port of an address if others can reach it. */}}
{{- define "sluice.openPort" -}}
{{- $host := include "sluice.host" . }}
{{- if not (or (has . (list "" "none")) (hasPrefix "127." $host) (eq "::1" $host)) }}{{ include "sluice.port" . }}{{ end }}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{ include "sluice.openPort" (.Values.config.metricsBindAddress | default "") }}
{{- end }}

{{- define "sluice.statusPort" -}}
{{ include "sluice.openPort" .Values.status.bindAddress }}
{{- end }}

{{/* What both containers mount. */}}
{{- define "sluice.mounts" -}}
- name: config
  mountPath: /var/lib/kube-proxy
  readOnly: true
{{- if include "sluice.iptables" . }}
- name: xtables-lock
  mountPath: /run/xtables.lock
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
