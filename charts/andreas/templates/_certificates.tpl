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

{{/* Secret that gives the extender's certificate; nothing where the extender makes it. */}}
{{- define "andreas.extenderGiven" -}}
{{- if .Values.extender.tls.existingSecret -}}
{{- .Values.extender.tls.existingSecret -}}
{{- else if and (include "andreas.byCertManager" .) .Values.certificates.certManager.scheduler -}}
{{- printf "%s-extender-certificate" (include "andreas.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Secret with kube-scheduler's client certificate in tls.crt and tls.key. */}}
{{- define "andreas.schedulerGiven" -}}
{{- if and .Values.scheduler.tls.existingSecret (not (include "andreas.extenderGiven" .)) -}}
{{- fail "scheduler.tls.existingSecret needs extender.tls.existingSecret, or cert-manager with certificates.certManager.scheduler=true: an extender that makes its own certificates makes kube-scheduler's too" -}}
{{- end -}}
{{- if .Values.scheduler.tls.existingSecret -}}
{{- .Values.scheduler.tls.existingSecret -}}
{{- else if and (not .Values.extender.tls.existingSecret) (include "andreas.extenderGiven" .) -}}
{{- printf "%s-scheduler-certificate" (include "andreas.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Flags of the extender for its certificates. */}}
{{- define "andreas.extenderCertificateArgs" -}}
- --client-name=andreas-scheduler
- --server-name={{ .Values.scheduler.config.serverName }}
- --certificates-folder=/var/run/andreas/certificates
- --scheduler-folder=/var/run/andreas/scheduler
{{- if include "andreas.extenderGiven" . }}
- --tls-cert=/etc/andreas/tls/tls.crt
- --tls-key=/etc/andreas/tls/tls.key
- --client-ca=/etc/andreas/tls/ca.crt
{{- end }}
{{- end -}}

{{/* Mounts of the extender for its certificates. */}}
{{- define "andreas.extenderCertificateMounts" -}}
- {name: certificates, mountPath: /var/run/andreas/certificates}
- {name: scheduler-certificates, mountPath: /var/run/andreas/scheduler}
{{- if include "andreas.extenderGiven" . }}
- {name: tls-server, mountPath: /etc/andreas/tls, readOnly: true}
{{- end }}
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
