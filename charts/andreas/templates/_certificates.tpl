{{/*
A Secret's data from an earlier release, or made anew: (list . <name of the Secret> <list of server names> <client name or "">).
Certificates of the chart live ten years; delete the Secret and upgrade to make new ones. Each Secret has an authority of its own,
whose key is thrown away.
*/}}
{{- define "andreas.certificates" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $servers := index . 2 -}}
{{- $client := index . 3 -}}
{{- $kept := lookup "v1" "Secret" $root.Release.Namespace $name -}}
{{- if and $kept $kept.data -}}
{{- toYaml $kept.data -}}
{{- else -}}
{{- $ca := genCA (printf "%s-ca" $name) 3650 -}}
{{- $server := genSignedCert (first $servers) (list "127.0.0.1") $servers 3650 $ca -}}
ca.crt: {{ $ca.Cert | b64enc }}
tls.crt: {{ $server.Cert | b64enc }}
tls.key: {{ $server.Key | b64enc }}
{{- if $client }}
{{- $made := genSignedCert $client nil (list $client) 3650 $ca }}
client.crt: {{ $made.Cert | b64enc }}
client.key: {{ $made.Key | b64enc }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "andreas.operatorSecret" -}}
{{- .Values.operator.tls.existingSecret | default (printf "%s-operator-tls" (include "andreas.fullname" .)) -}}
{{- end -}}

{{- define "andreas.extenderSecret" -}}
{{- .Values.extender.tls.existingSecret | default (printf "%s-extender-tls" (include "andreas.fullname" .)) -}}
{{- end -}}
