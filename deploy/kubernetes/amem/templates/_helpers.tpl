{{- define "amem.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "amem.fullname" -}}
{{ .Values.fullnameOverride | default .Release.Name }}
{{- end }}

{{- /* The holder's folder, which no job mounts. Beside runtimeDir, as amemd's default is. */ -}}
{{- define "amem.holderDir" -}}
{{ clean .Values.runtimeDir }}-holder
{{- end }}

{{- define "amem.name" -}}
{{ .Values.nameOverride | default "amem" }}
{{- end }}

{{- define "amem.labels" -}}
{{ include "amem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What amemd of the image prints with --speaks; check.py compares them. */ -}}
{{- define "amem.speaks" -}}
{{ .Files.Get "files/speaks" | trim }}
{{- end }}

{{- define "amem.selector" -}}
app.kubernetes.io/name: {{ include "amem.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What each object's metadata has: list of the context, and of what comes after the name. */ -}}
{{- define "amem.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "amem.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels: {{- include "amem.labels" $root | nindent 2 }}
{{- end }}

{{- define "amem.annotations" }}
{{- with .Values.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{- define "amem.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "amem.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "amem.pull" -}}
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- /* The nodes of both DaemonSets. */ -}}
{{- define "amem.nodes" -}}
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

{{- /* What amemd's container and its init container have alike, so that each reads the node's folders. */ -}}
{{- define "amem.root" -}}
runAsUser: 0  # ranks of all users believe root's broker
runAsGroup: 0
{{- with .Values.seLinuxOptions }}
seLinuxOptions: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "amem.powerless" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* A table of amemd.toml: its name, its keys. */ -}}
{{- define "amem.table" }}

[{{ index . 0 }}]
{{- range $key, $value := index . 1 }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}

{{- /* Values that the schema alone cannot refuse. */ -}}
{{- define "amem.check" -}}
{{- $v := .Values }}
{{- if and (ne $v.isolation "uid") (not $v.hostPID) }}
{{- fail (printf "amem: isolation: %s requires hostPID: true, because amemd looks at the processes of other pods" $v.isolation) }}
{{- end }}
{{- if and (not $v.metrics.port) (or $v.metrics.podMonitor.enabled $v.metrics.alerts.enabled $v.metrics.dashboard.enabled) }}
{{- fail "amem: metrics.podMonitor, metrics.alerts and metrics.dashboard require metrics.port, for example 9464" }}
{{- end }}
{{- if and $v.control.port (not $v.control.secret) }}
{{- fail "amem: control.port requires control.secret, a Secret with ca.crt, tls.crt and tls.key (docs/kubernetes.md, Several nodes)" }}
{{- end }}
{{- if and $v.control.secret (not $v.control.port) }}
{{- fail "amem: control.secret requires control.port, for example 7070" }}
{{- end }}
{{- if and $v.control.port (eq (int $v.control.port) (int $v.metrics.port)) }}
{{- fail "amem: control.port and metrics.port are the same" }}
{{- end }}
{{- if and $v.networkPolicy.enabled $v.metrics.port (not $v.networkPolicy.metricsFrom) }}
{{- fail "amem: networkPolicy.metricsFrom is empty, so Prometheus could not reach metrics.port" }}
{{- end }}
{{- if and $v.jobs.inject (not $v.jobs.shimDir) }}
{{- fail "amem: jobs.inject requires jobs.shimDir" }}
{{- end }}
{{- if kindIs "bool" $v.allowIncompatibleUpgrade | and $v.allowIncompatibleUpgrade }}
{{- fail "amem: allowIncompatibleUpgrade: true was for every upgrade; it is now for one pair of versions, such as \"0.1.0->0.2.0\". Reset it to \"\", and the hook says which pair an upgrade requires (docs/kubernetes.md, Upgrades)" }}
{{- end }}
{{- $holder := include "amem.holderDir" . }}
{{- if and $v.jobs.shimDir (hasPrefix (print (clean $v.jobs.shimDir | trimSuffix "/") "/") (print $holder "/")) }}
{{- fail (printf "amem: jobs.shimDir: %s contains %s, the holder's folder, which no job may reach; choose another jobs.shimDir or runtimeDir" $v.jobs.shimDir $holder) }}
{{- end }}
{{- if and $v.jobs.cdiDir (not $v.jobs.shimDir) }}
{{- fail "amem: jobs.cdiDir requires jobs.shimDir" }}
{{- end }}
{{- range $what, $oldest := dict "jobs.inject: true" (ternary "1.36.0-0" "" $v.jobs.inject) "gpus: claim" (ternary "1.34.0-0" "" (eq $v.gpus "claim")) }}
{{- if and $oldest (semverCompare (print "<" $oldest) $.Capabilities.KubeVersion.Version) }}
{{- fail (printf "amem: %s requires Kubernetes %s; this cluster has %s" $what (trimSuffix ".0-0" $oldest) $.Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
{{- /* A Secret that is there has its keys. Without a cluster (helm template) lookup finds nothing; the hook looks again. */ -}}
{{- with $v.control.secret }}
{{- $secret := lookup "v1" "Secret" $.Release.Namespace . }}
{{- range $key := list "ca.crt" "tls.crt" "tls.key" }}
{{- if and $secret (not (hasKey ($secret.data | default dict) $key)) }}
{{- fail (printf "amem: the Secret %s has no %s; it requires ca.crt, tls.crt and tls.key (docs/kubernetes.md, Several nodes)" $v.control.secret $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
