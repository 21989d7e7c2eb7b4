{{- /* amemd.toml. */ -}}
{{- define "amem.settings" -}}
runtime_dir = {{ .Values.runtimeDir | toJson }}
holder = "external"  # its pod outlives amemd's
holder_socket = "{{ include "amem.holderDir" . }}/holder.sock"
{{- range $key, $value := .Values.settings }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}

[pool]
size = "{{ .Values.pool.sizeGiB }}GiB"

[isolation]
by = {{ .Values.isolation | toJson }}
{{- with .Values.metrics.port }}

[metrics]
listen = "0.0.0.0:{{ . }}"
{{- end }}
{{- with .Values.control.port }}

[control]
listen = "0.0.0.0:{{ . }}"
tls = "/etc/amem-tls"
{{- end }}
{{- range $table, $keys := .Values.settings }}
{{- if eq $table "stage" }}
{{- range $stage, $keys := $keys }}
{{- include "amem.table" (list (printf "stage.%s" (toJson $stage)) $keys) }}
{{- end }}
{{- else if kindIs "map" $keys }}
{{- include "amem.table" (list $table $keys) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The CDI device for a node's jobs. */ -}}
{{- define "amem.cdi" -}}
# docker run --device amem/job=node -e AMEM_GROUP=train …
cdiVersion: "0.3.0"
kind: amem/job
devices:
- name: node
  containerEdits:
    env:
    - LD_PRELOAD=/amem/libamem_shim.so
    - AMEM_RUNTIME_DIR={{ .Values.runtimeDir }}
    - AMEM_SCOPE={{ .Values.jobs.scope }}
    - AMEM_REQUIRED=1
    - NCCL_CUMEM_ENABLE=1
    mounts:
    - {hostPath: {{ .Values.runtimeDir }}, containerPath: {{ .Values.runtimeDir }}, options: [ro, rbind, nosuid, nodev]}
    - {hostPath: {{ clean .Values.jobs.shimDir }}/libamem_shim.so, containerPath: /amem/libamem_shim.so, options: [ro, rbind, nosuid, nodev]}
{{- end }}
