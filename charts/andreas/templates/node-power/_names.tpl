{{/* Name of node-power's objects. */}}
{{- define "andreas.powerName" -}}
{{- printf "%s-node-power" (include "andreas.fullname" .) -}}
{{- end -}}

{{/* Namespace of node-power and of the Secrets with credentials of power switches. */}}
{{- define "andreas.powerNamespace" -}}
{{- .Values.nodePower.namespace | default (printf "%s-power" (.Release.Namespace | trimSuffix "-system")) -}}
{{- end -}}

{{/* User name of node-power, as admission sees it. */}}
{{- define "andreas.powerUser" -}}
{{- printf "system:serviceaccount:%s:%s" (include "andreas.powerNamespace" .) (include "andreas.powerName" .) -}}
{{- end -}}
