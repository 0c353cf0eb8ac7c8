{{/* What every object is called: a node takes one service proxy, so there is one release in a cluster. */}}
{{- define "sluice.name" -}}
sluice
{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . }}
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The port that the daemon answers health checks on, out of its configuration. */}}
{{- define "sluice.healthzPort" -}}
{{ last (splitList ":" .Values.config.healthzBindAddress) }}
{{- end }}
