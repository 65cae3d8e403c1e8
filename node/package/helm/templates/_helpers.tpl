{{/* Labels that select the servers of a role; context: root, role. */}}
{{- define "nyala.selector" -}}
app.kubernetes.io/name: nyala
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "nyala.labels" -}}
{{ include "nyala.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "nyala.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Addresses of all masters, by the names that the headless service gives them. */}}
{{- define "nyala.masters" -}}
{{- $name := printf "%s-master" .Release.Name -}}
{{- range $at := until (int .Values.master.replicas) -}}
{{- if $at }},{{ end }}{{ $name }}-{{ $at }}.{{ $name }}:7051
{{- end -}}
{{- end }}

{{/* Text of a flag's value. Helm reads the numbers of a values file as floats, which would print as 3e+09. */}}
{{- define "nyala.flag" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{/* Service, disruption budget and StatefulSet of a role; context: root, role, command, values, ports, masters. */}}
{{- define "nyala.servers" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" $root.Release.Name .role -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "nyala.labels" . | nindent 4 }}
spec:
  clusterIP: None
  # Servers must find each other before they are ready.
  publishNotReadyAddresses: true
  selector: {{- include "nyala.selector" . | nindent 4 }}
  ports:
    - {name: rpc, port: {{ .rpc }}}
    - {name: web, port: {{ .web }}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- include "nyala.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "nyala.selector" . | nindent 6 }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "nyala.labels" . | nindent 4 }}
spec:
  serviceName: {{ $name }}
  replicas: {{ .values.replicas }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "nyala.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "nyala.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 300
      {{- with $root.Values.image.pullSecrets }}
      imagePullSecrets:
        {{- range . }}
        - name: {{ . }}
        {{- end }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      affinity:
        podAntiAffinity:
          {{- if eq $root.Values.antiAffinity "required" }}
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels: {{- include "nyala.selector" . | nindent 18 }}
          {{- else }}
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {{- include "nyala.selector" . | nindent 20 }}
          {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: nyala
          image: {{ include "nyala.image" $root | quote }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy | default "IfNotPresent" }}
          args:
            - {{ .command }}
            - --fs-wal-dir=/var/lib/nyala/wal/files
            - --fs-data-dirs=/var/lib/nyala/data/files
            - --rpc-bind-addresses=0.0.0.0:{{ .rpc }}
            - --rpc-advertised-addresses=$(POD_NAME).{{ $name }}:{{ .rpc }}
            - --webserver-interface=0.0.0.0
            - --webserver-advertised-addresses=$(POD_NAME).{{ $name }}:{{ .web }}
            - --{{ .masters }}={{ include "nyala.masters" $root }}
            {{- /* Not merge: for it false, 0 and "" are no values, so that the shared flags would win. */ -}}
            {{- $flags := dict -}}
            {{- range $flag, $value := $root.Values.flags }}{{ $_ := set $flags ($flag | replace "_" "-") $value }}{{ end -}}
            {{- range $flag, $value := .values.flags }}{{ $_ := set $flags ($flag | replace "_" "-") $value }}{{ end -}}
            {{- range $flag, $value := $flags }}
            - {{ printf "--%s=%s" $flag (include "nyala.flag" $value) | quote }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
          ports:
            - {name: rpc, containerPort: {{ .rpc }}}
            - {name: web, containerPort: {{ .web }}}
          livenessProbe:
            httpGet: {path: /livez, port: web}
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: web}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          resources: {{- toYaml .values.resources | nindent 12 }}
          volumeMounts:
            - {name: wal, mountPath: /var/lib/nyala/wal}
            - {name: data, mountPath: /var/lib/nyala/data}
  volumeClaimTemplates:
    {{- range $volume := list "wal" "data" }}
    - metadata: {name: {{ $volume }}}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with $.values.storage.class }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ get $.values.storage $volume }}}}
    {{- end }}
{{- end }}
