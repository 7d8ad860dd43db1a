{{/* What all containers of the agent have: image, the driver. */}}
{{- define "andreas.agentCommon" -}}
image: {{ include "andreas.image" (list . .Values.agent.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{/* Every GPU of the node, and of the driver's libraries only NVML. A runtime that is hardened reads the mount of andreas.agentDevices in
     place of the variable. */}}
{{- define "andreas.agentEnv" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The mount by which NVIDIA's runtime chooses GPUs where the variable counts in privileged containers alone
     (accept-nvidia-visible-devices-as-volume-mounts): the name of the file says which. Others see an empty file. */}}
{{- define "andreas.agentDevices" -}}
- {name: visible-devices, mountPath: /var/run/nvidia-container-devices/all}
{{- end -}}

{{/* A setter; two of them run, and the lock on the record says which one works. */}}
{{- define "andreas.agentSetter" -}}
{{ include "andreas.agentCommon" . }}
command: [andreas-node-setter]
args:
  - --socket=/run/andreas/setter.sock
  - --state=/var/lib/andreas
  - --ttl={{ .Values.agent.setterTtl }}
  - --nvml-library={{ .Values.agent.nvmlLibrary }}
  - --floor-watts={{ .Values.agent.floorWatts }}
  - --floor-clock={{ .Values.agent.floorClock }}
  {{- range $type, $clocks := .Values.agent.lockedClocks }}
  - {{ printf "--locked-clocks=%s=%s" $type $clocks | quote }}
  {{- end }}
  - --log={{ .Values.agent.log }}
  - --log-format=json
env: {{- include "andreas.agentEnv" . | nindent 2 }}
resources: {{- toYaml .Values.agent.resources.setter | nindent 2 }}
securityContext: {{- include "andreas.agentSecurity" (list . "setter") | nindent 2 }}
volumeMounts:
  - {name: socket, mountPath: /run/andreas}
  - {name: state, mountPath: /var/lib/andreas}
  {{- include "andreas.agentDevices" . | nindent 2 }}
  {{- with .Values.agent.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
Security context of a container: (list . "setter"). The API server refuses privileged containers with
allowPrivilegeEscalation: false, and dropped capabilities would not be dropped.
*/}}
{{- define "andreas.agentSecurity" -}}
{{- $agent := (index . 0).Values.agent -}}
{{- $given := index $agent.securityContext (index . 1) -}}
{{- if $agent.privileged -}}
{{- $given = merge (dict "privileged" true) (omit $given "allowPrivilegeEscalation" "capabilities") -}}
{{- end -}}
{{- toYaml $given -}}
{{- end -}}
