{{/* How Prometheus finds the programs: PodMonitor, ServiceMonitor, annotations, or nothing. */}}
{{- define "andreas.discovery" -}}
{{- $pods := .Values.monitoring.podMonitor.enabled -}}
{{- $services := .Values.monitoring.serviceMonitor.enabled -}}
{{- if and $pods $services -}}
{{- fail "monitoring.podMonitor and monitoring.serviceMonitor would scrape everything twice: enable one of them" -}}
{{- end -}}
{{- ternary "PodMonitor" (ternary "ServiceMonitor" (ternary "annotations" "" (and .Values.monitoring.annotations (not .Values.monitoring.authentication))) $services) $pods -}}
{{- end -}}

{{/* Annotations of the pods, for a Prometheus that looks for prometheus.io/scrape; and the user's: (list . .Values.operator.podAnnotations). */}}
{{- define "andreas.podAnnotations" -}}
{{- $root := index . 0 -}}
{{- $scraped := dict -}}
{{- if eq (include "andreas.discovery" $root) "annotations" -}}
{{- $scraped = dict "prometheus.io/scrape" "true" "prometheus.io/port" "9090" "prometheus.io/path" "/metrics" -}}
{{- end -}}
{{- with merge (deepCopy (index . 1)) $scraped -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* The components that are installed, as a list in YAML: component, name of the program, namespace. */}}
{{- define "andreas.scraped" -}}
{{- if .Values.operator.enabled }}
- {component: operator, program: andreas-operator, namespace: {{ .Release.Namespace }}}
{{- end }}
{{- if .Values.scheduler.enabled }}
- {component: scheduler, program: andreas-extender, namespace: {{ .Release.Namespace }}}
{{- end }}
{{- if .Values.agent.enabled }}
- {component: agent, program: andreas-node-agent, namespace: {{ include "andreas.agentNamespace" . }}}
{{- end }}
{{- if .Values.nodePower.enabled }}
- {component: node-power, program: andreas-node-power, namespace: {{ include "andreas.powerNamespace" . }}}
{{- end }}
{{- end -}}

{{/* Labels that dashboards count on, whatever the names of release and Services. */}}
{{- define "andreas.relabelings" -}}
- {targetLabel: job, replacement: {{ . }}}
- {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- end -}}
