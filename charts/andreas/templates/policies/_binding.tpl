{{/* The binding of a policy: (list . "deadline"). */}}
{{- define "andreas.policyBinding" -}}
{{- $root := index . 0 -}}
{{- $name := printf "%s-%s" (include "andreas.fullname" $root) (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels: {{- include "andreas.labels" $root | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: {{- toYaml $root.Values.policies.validationActions | nindent 4 }}
{{- end -}}
