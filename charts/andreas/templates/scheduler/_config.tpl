{{/* The KubeSchedulerConfiguration. */}}
{{- define "andreas.schedulerConfig" -}}
{{- $config := .Values.scheduler.config -}}
{{- /* Beside kube-scheduler in its pod. The calls are not encrypted: the extender listens on loopback only. */}}
{{- $url := printf "http://127.0.0.1:%d" (int .Values.extender.port) -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: {{ $config.kubeconfig | quote }}
  qps: 500
  burst: 1000
leaderElection:
  leaderElect: {{ $config.leaderElect }}
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: {{ .Values.scheduler.lease }}
# Otherwise the scheduler shows the extender only some of the nodes.
percentageOfNodesToScore: 100
profiles:
  - schedulerName: andreas
    plugins:
      postFilter:
        # It kills training pods, even on the wrong node: who stops for whom is planned.
        disabled:
          - name: DefaultPreemption
extenders:
  # Two entries with two time-outs: a filter must answer at once, a Binding may take its time. One short time-out for both
  # would report a Binding that did happen as a failure.
  - urlPrefix: {{ $url | quote }}
    filterVerb: filter
    prioritizeVerb: prioritize
    weight: 1
    httpTimeout: 500ms
    # kube-scheduler accepts a resource in one entry only. Bind is asked for every pod of this scheduler and binds those that
    # are not ours plainly.
    managedResources:
      - name: nvidia.com/gpu
        ignoredByScheduler: false
    nodeCacheCapable: true
    ignorable: false
  - urlPrefix: {{ $url | quote }}
    bindVerb: bind
    httpTimeout: 5s
    nodeCacheCapable: true
    ignorable: false
{{- end -}}
