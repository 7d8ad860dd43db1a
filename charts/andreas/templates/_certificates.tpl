{{/* Secret in which the operator keeps the certificates of its progress endpoint. It is the operator's own, not a part of the release. */}}
{{- define "andreas.operatorSecret" -}}
{{- $name := printf "%s-operator-tls" (include "andreas.fullname" .) -}}
{{- if eq $name .Values.operator.tls.existingSecret -}}
{{- fail (printf "operator.tls.existingSecret: the operator keeps its own certificates in %s; give yours another name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "andreas.byCertManager" -}}
{{- if eq .Values.certificates.issuer "certManager" -}}true{{- end -}}
{{- end -}}

{{/* Secret that gives the operator's certificate; nothing where the operator makes it. */}}
{{- define "andreas.operatorGiven" -}}
{{- if .Values.operator.tls.existingSecret -}}
{{- .Values.operator.tls.existingSecret -}}
{{- else if include "andreas.byCertManager" . -}}
{{- printf "%s-operator-certificate" (include "andreas.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* The parts of a Certificate of cert-manager that are the same for all: (list . <component> <Secret>). */}}
{{- define "andreas.certificate" -}}
{{- $root := index . 0 -}}
{{- $issuer := $root.Values.certificates.certManager -}}
secretName: {{ index . 2 }}
secretTemplate:
  labels: {{- include "andreas.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ index . 1 }}
duration: {{ $issuer.duration }}
renewBefore: {{ $issuer.renewBefore }}
privateKey: {algorithm: ECDSA, size: 256, rotationPolicy: Always}
issuerRef:
  group: {{ $issuer.issuerRef.group }}
  kind: {{ $issuer.issuerRef.kind }}
  name: {{ required "certificates.certManager.issuerRef.name: which issuer of cert-manager shall sign" $issuer.issuerRef.name }}
{{- end -}}
