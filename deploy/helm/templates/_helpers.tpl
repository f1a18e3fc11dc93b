{{/* The agent's configuration, with what the chart's switches add. */}}
{{- define "pinniped-concierge.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if .Values.clusterSigner.enabled }}
{{- $_ := set $config "clusterSigner" "enabled" }}
{{- end }}
{{- if .Values.monitoring.enabled }}
{{- $_ := mergeOverwrite $config (dict "metrics" (dict "address" ":8446")) }}
{{- end }}
{{- toYaml $config }}
{{- end }}
