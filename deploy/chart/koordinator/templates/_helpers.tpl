{{/* Labels of every object that is not of a user. */}}
{{- define "koordinator.labels" -}}
app.kubernetes.io/part-of: koordinator
{{- end }}

{{/* The image of a component: dict "root" $ "own" .Values.manager */}}
{{- define "koordinator.image" -}}
{{- $common := .root.Values.image -}}
image: {{ printf "%s%s:%s" (ternary "" (printf "%s/" $common.registry) (empty $common.registry)) .own.image.repository (default $common.tag .own.image.tag) | quote }}
imagePullPolicy: {{ $common.pullPolicy }}
{{- end }}

{{/* requests and limits, as far as there are any: .Values.manager.resources */}}
{{- define "koordinator.resources" -}}
{{- $found := dict -}}
{{- range $name := list "requests" "limits" -}}
{{- with index $ $name -}}{{- $_ := set $found $name . -}}{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}

{{/* What every pod has: dict "root" $ "own" .Values.manager */}}
{{- define "koordinator.pod" -}}
{{- with .own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What the pods of Deployments have besides: dict "root" $ "own" .Values.manager "name" "koord-manager" */}}
{{- define "koordinator.deploymentPod" -}}
serviceAccountName: {{ .name }}
priorityClassName: system-cluster-critical
terminationGracePeriodSeconds: 10
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              koord-app: {{ .name }}
{{- with .own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "koordinator.pod" . }}
{{- end }}

{{/* The old instances stay until the new ones are ready. */}}
{{- define "koordinator.strategy" -}}
type: RollingUpdate
rollingUpdate:
  maxSurge: 100%
  maxUnavailable: 0
{{- end }}

{{- define "koordinator.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* A Service for metrics: dict "root" $ "name" "koordlet" "port" 9316 */}}
{{- define "koordinator.metricsService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-metrics
  namespace: {{ .root.Values.installation.namespace }}
  labels:
    {{- include "koordinator.labels" . | nindent 4 }}
    koord-app: {{ .name }}
spec:
  {{- if .headless }}
  clusterIP: None
  {{- end }}
  selector:
    koord-app: {{ .name }}
  ports:
    - name: metrics
      port: {{ .port }}
      targetPort: metrics
      protocol: TCP
{{- end }}

{{/* A disruption budget: dict "root" $ "name" "koord-manager" "budget" .Values.manager.podDisruptionBudget */}}
{{- define "koordinator.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Values.installation.namespace }}
  labels:
    {{- include "koordinator.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .budget.maxUnavailable }}
  selector:
    matchLabels:
      koord-app: {{ .name }}
{{- end }}

{{/* Account and roles of a component, whose rules are in files/rbac: dict "root" $ "name" "koord-manager" */}}
{{- define "koordinator.rbac" -}}
{{- $namespace := .root.Values.installation.namespace -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "koordinator.labels" . | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
  labels:
    {{- include "koordinator.labels" . | nindent 4 }}
rules:
  {{- .root.Files.Get (printf "files/rbac/%s-cluster.yaml" .name) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "koordinator.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ $namespace }}
{{- with .root.Files.Get (printf "files/rbac/%s-namespace.yaml" .name) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $.name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "koordinator.labels" $ | nindent 4 }}
rules:
  {{- . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $.name }}
  namespace: {{ $namespace }}
  labels:
    {{- include "koordinator.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $.name }}
    namespace: {{ $namespace }}
{{- end }}
{{- end }}
