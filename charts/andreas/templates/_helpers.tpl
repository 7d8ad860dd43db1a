{{/* Name of the release's objects: the release's name where it says andreas already. */}}
{{- define "andreas.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "andreas" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-andreas" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "andreas.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: andreas
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: andreas
{{- end -}}

{{/* Labels that select the pods of a component: (list . "operator"). */}}
{{- define "andreas.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: andreas
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Name of a component's ServiceAccount: (list . "operator"). */}}
{{- define "andreas.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $given := (index $root.Values $component).serviceAccount.name -}}
{{- $given | default (printf "%s-%s" (include "andreas.fullname" $root) $component) -}}
{{- end -}}

{{/* User name of the operator, as admission sees it. */}}
{{- define "andreas.operatorUser" -}}
{{- .Values.policies.users.operator | default (printf "system:serviceaccount:%s:%s" .Release.Namespace (include "andreas.serviceAccount" (list . "operator"))) -}}
{{- end -}}

{{/* Namespace of the node agents. */}}
{{- define "andreas.agentNamespace" -}}
{{- .Values.agent.namespace | default (printf "%s-node" (.Release.Namespace | trimSuffix "-system")) -}}
{{- end -}}

{{/* Name of the node agents' objects. */}}
{{- define "andreas.agentName" -}}
{{- printf "%s-node-agent" (include "andreas.fullname" .) -}}
{{- end -}}

{{/* Name of the node agents' ServiceAccount. */}}
{{- define "andreas.agentAccount" -}}
{{- .Values.agent.serviceAccount.name | default (include "andreas.agentName" .) -}}
{{- end -}}

{{/* User name of the node agents, as admission sees it. */}}
{{- define "andreas.agentUser" -}}
{{- .Values.policies.users.agent | default (printf "system:serviceaccount:%s:%s" (include "andreas.agentNamespace" .) (include "andreas.agentAccount" .)) -}}
{{- end -}}

{{/* A text as a CEL string. */}}
{{- define "andreas.cel" -}}
{{- . | squote -}}
{{- end -}}

{{/* An image: (list . .Values.operator.image), or (list . image namespace). */}}
{{- define "andreas.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $namespace := gt (len .) 2 | ternary (last .) $root.Values.image.namespace -}}
{{- $namespace = contains "/" $image.repository | ternary "" $namespace -}}
{{- $registry := $image.registry | default $root.Values.image.registry -}}
{{- $name := list $registry $namespace $image.repository | compact | join "/" -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $name $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Whether a policy is installed: (list . "deadline"). */}}
{{- define "andreas.policy" -}}
{{- $policies := (index . 0).Values.policies -}}
{{- if and $policies.enabled (not (has (index . 1) $policies.disabled)) -}}true{{- end -}}
{{- end -}}

{{/* Annotations of an object of `helm test`, with its place in their order. */}}
{{- define "andreas.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
