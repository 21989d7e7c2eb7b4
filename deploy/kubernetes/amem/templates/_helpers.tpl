{{- define "amem.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "amem.labels" -}}
app.kubernetes.io/name: amem
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* What amemd of the image prints with --speaks; check.py compares them. */ -}}
{{- define "amem.speaks" -}}
{{ .Files.Get "files/speaks" | trim }}
{{- end }}

{{- define "amem.selector" -}}
app.kubernetes.io/name: amem
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What both DaemonSets' pods have: the nodes that they are for, and that a full node does not drop them. */ -}}
{{- define "amem.nodes" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
