"""Field numbers of the Kubernetes messages that kubectl sends in protobuf: `create`, `drain`, `auth`.

One line a message: its fields by number, counting from 1; `=N` sets the number, `-` leaves one out. After `:`
comes the type (text when there is none): `i` integer, `b` boolean, `t` time, `u` time with microseconds,
`q` quantity, `x` integer or text, `y` bytes, `m` text by text, `Q` quantities by text, `Y` bytes by text, or
another message; in brackets when repeated. `*` marks fields that are only sent when set: their zeros mean
something. A name may begin with the version that it belongs to. `@` marks a message whose fields stand in
the outer object in JSON.

Source: the wire numbering that Kubernetes' API promises to keep (`protobuf` tags of its API types).
"""

MESSAGES = """
ObjectMeta name generateName namespace selfLink uid resourceVersion generation:i creationTimestamp:t \
  deletionTimestamp:t deletionGracePeriodSeconds:i* labels:m annotations:m \
  ownerReferences:[OwnerReference] finalizers:[]
OwnerReference kind - name uid apiVersion controller:b* blockOwnerDeletion:b*
LabelSelector matchLabels:m matchExpressions:[Requirement]
Requirement key operator values:[]
ObjectReference kind namespace name uid apiVersion resourceVersion fieldPath
LocalObjectReference name
DeleteOptions gracePeriodSeconds:i* preconditions:Preconditions orphanDependents:b* propagationPolicy* \
  dryRun:[]
Preconditions uid* resourceVersion*

Namespace metadata:ObjectMeta spec:NamespaceSpec status:NamespaceStatus
NamespaceSpec finalizers:[]
NamespaceStatus phase
ConfigMap metadata:ObjectMeta data:m binaryData:Y immutable:b*
Secret metadata:ObjectMeta data:Y type stringData:m immutable:b*
ServiceAccount metadata:ObjectMeta secrets:[ObjectReference] imagePullSecrets:[LocalObjectReference] \
  automountServiceAccountToken:b*
Service metadata:ObjectMeta spec:ServiceSpec status:ServiceStatus
ServiceSpec ports:[ServicePort] selector:m clusterIP type externalIPs:[] - sessionAffinity loadBalancerIP \
  loadBalancerSourceRanges:[] externalName externalTrafficPolicy healthCheckNodePort:i \
  publishNotReadyAddresses:b sessionAffinityConfig:SessionAffinityConfig ipFamilyPolicy=17* clusterIPs:[] \
  ipFamilies:[] allocateLoadBalancerNodePorts:b* loadBalancerClass* internalTrafficPolicy* \
  trafficDistribution*
SessionAffinityConfig clientIP:ClientIPConfig
ClientIPConfig timeoutSeconds:i*
ServicePort name protocol port:i targetPort:x nodePort:i appProtocol*
ServiceStatus loadBalancer:LoadBalancerStatus
LoadBalancerStatus ingress:[LoadBalancerIngress]
LoadBalancerIngress ip hostname
ResourceQuota metadata:ObjectMeta spec:ResourceQuotaSpec status:ResourceQuotaStatus
ResourceQuotaSpec hard:Q scopes:[] scopeSelector:ScopeSelector
ResourceQuotaStatus hard:Q used:Q
ScopeSelector matchExpressions:[ScopedRequirement]
ScopedRequirement scopeName operator values:[]
Event metadata:ObjectMeta involvedObject:ObjectReference reason message source:EventSource \
  firstTimestamp:t lastTimestamp:t count:i type eventTime:u series:EventSeries action \
  related:ObjectReference reportingComponent reportingInstance
EventSource component host
EventSeries count:i lastObservedTime:u
Binding metadata:ObjectMeta target:ObjectReference

Pod metadata:ObjectMeta spec:PodSpec status:PodStatus
PodStatus phase - message reason hostIP podIP startTime:t qosClass=9 nominatedNodeName=11 resize=14 \
  observedGeneration=17:i
PodTemplateSpec metadata:ObjectMeta spec:PodSpec
PodSpec volumes:[Volume] containers:[Container] restartPolicy terminationGracePeriodSeconds:i* \
  activeDeadlineSeconds:i* dnsPolicy nodeSelector:m serviceAccountName serviceAccount nodeName \
  hostNetwork:b hostPID:b hostIPC:b securityContext:PodSecurityContext \
  imagePullSecrets:[LocalObjectReference] hostname subdomain affinity:Affinity schedulerName \
  initContainers:[Container] automountServiceAccountToken:b* tolerations:[Toleration] - priorityClassName \
  priority:i* - shareProcessNamespace:b* - runtimeClassName* enableServiceLinks:b* preemptionPolicy* \
  overhead:Q topologySpreadConstraints:[TopologySpreadConstraint] - setHostnameAsFQDN:b* - hostUsers:b*
Container name image command:[] args:[] workingDir ports:[ContainerPort] env:[EnvVar] \
  resources:ResourceRequirements volumeMounts:[VolumeMount] livenessProbe:Probe readinessProbe:Probe \
  lifecycle:Lifecycle terminationMessagePath imagePullPolicy securityContext:SecurityContext stdin:b \
  stdinOnce:b tty:b envFrom:[EnvFromSource] terminationMessagePolicy volumeDevices:[VolumeDevice] \
  startupProbe:Probe - restartPolicy*
ContainerPort name hostPort:i containerPort:i protocol hostIP
EnvVar name value valueFrom:EnvVarSource
EnvVarSource fieldRef:ObjectFieldSelector resourceFieldRef:ResourceFieldSelector \
  configMapKeyRef:KeySelector secretKeyRef:KeySelector
ObjectFieldSelector apiVersion fieldPath
ResourceFieldSelector containerName resource divisor:q
KeySelector @:LocalObjectReference key optional:b*
EnvFromSource prefix configMapRef:EnvSource secretRef:EnvSource
EnvSource @:LocalObjectReference optional:b*
ResourceRequirements limits:Q requests:Q claims:[ResourceClaim]
ResourceClaim name request
VolumeMount name readOnly:b mountPath subPath mountPropagation* subPathExpr recursiveReadOnly*
VolumeDevice name devicePath
Probe @:ProbeHandler initialDelaySeconds:i timeoutSeconds:i periodSeconds:i successThreshold:i \
  failureThreshold:i terminationGracePeriodSeconds:i*
ProbeHandler exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction grpc:GRPCAction
Lifecycle postStart:LifecycleHandler preStop:LifecycleHandler
LifecycleHandler exec:ExecAction httpGet:HTTPGetAction tcpSocket:TCPSocketAction sleep:SleepAction
ExecAction command:[]
HTTPGetAction path port:x host scheme httpHeaders:[HTTPHeader]
HTTPHeader name value
TCPSocketAction port:x host
GRPCAction port:i service*
SleepAction seconds:i
SecurityContext capabilities:Capabilities privileged:b* seLinuxOptions:SELinuxOptions runAsUser:i* \
  runAsNonRoot:b* readOnlyRootFilesystem:b* allowPrivilegeEscalation:b* runAsGroup:i* procMount* - \
  seccompProfile:SeccompProfile
Capabilities add:[] drop:[]
SELinuxOptions user role type level
SeccompProfile type localhostProfile*
PodSecurityContext seLinuxOptions:SELinuxOptions runAsUser:i* runAsNonRoot:b* supplementalGroups:[i] \
  fsGroup:i* runAsGroup:i* sysctls:[Sysctl] - fsGroupChangePolicy* seccompProfile:SeccompProfile
Sysctl name value
Volume name @:VolumeSource
VolumeSource hostPath:HostPath emptyDir:EmptyDir secret=6:SecretVolume \
  persistentVolumeClaim=10:ClaimVolume configMap=19:ConfigMapVolume
HostPath path type*
EmptyDir medium sizeLimit:q
SecretVolume secretName items:[KeyToPath] defaultMode:i* optional:b*
ConfigMapVolume @:LocalObjectReference items:[KeyToPath] defaultMode:i* optional:b*
ClaimVolume claimName readOnly:b
KeyToPath key path mode:i*
Toleration key operator value effect tolerationSeconds:i*
Affinity nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAffinity
NodeAffinity requiredDuringSchedulingIgnoredDuringExecution:NodeSelector \
  preferredDuringSchedulingIgnoredDuringExecution:[PreferredTerm]
NodeSelector nodeSelectorTerms:[NodeSelectorTerm]
NodeSelectorTerm matchExpressions:[Requirement] matchFields:[Requirement]
PreferredTerm weight:i preference:NodeSelectorTerm
PodAffinity requiredDuringSchedulingIgnoredDuringExecution:[PodAffinityTerm] \
  preferredDuringSchedulingIgnoredDuringExecution:[WeightedTerm]
PodAffinityTerm labelSelector:LabelSelector namespaces:[] topologyKey namespaceSelector:LabelSelector \
  matchLabelKeys:[] mismatchLabelKeys:[]
WeightedTerm weight:i podAffinityTerm:PodAffinityTerm
TopologySpreadConstraint maxSkew:i topologyKey whenUnsatisfiable labelSelector:LabelSelector minDomains:i* \
  nodeAffinityPolicy* nodeTaintsPolicy* matchLabelKeys:[]

Deployment metadata:ObjectMeta spec:DeploymentSpec status:DeploymentStatus
DeploymentSpec replicas:i* selector:LabelSelector template:PodTemplateSpec strategy:DeploymentStrategy \
  minReadySeconds:i revisionHistoryLimit:i* paused:b - progressDeadlineSeconds:i*
DeploymentStrategy type rollingUpdate:RollingUpdate
RollingUpdate maxUnavailable:x maxSurge:x
DeploymentStatus observedGeneration:i replicas:i updatedReplicas:i availableReplicas:i \
  unavailableReplicas:i - readyReplicas:i
Job metadata:ObjectMeta spec:JobSpec status:JobStatus
JobSpec parallelism:i* completions:i* activeDeadlineSeconds:i* selector:LabelSelector manualSelector:b* \
  template:PodTemplateSpec backoffLimit:i* ttlSecondsAfterFinished:i* completionMode* suspend:b* - \
  backoffLimitPerIndex:i* maxFailedIndexes:i* podReplacementPolicy* managedBy*
JobStatus - startTime:t completionTime:t active:i succeeded:i failed:i completedIndexes - ready:i* \
  failedIndexes*
CronJob metadata:ObjectMeta spec:CronJobSpec status:CronJobStatus
CronJobSpec schedule startingDeadlineSeconds:i* concurrencyPolicy suspend:b* jobTemplate:JobTemplateSpec \
  successfulJobsHistoryLimit:i* failedJobsHistoryLimit:i* timeZone*
CronJobStatus active:[ObjectReference] lastScheduleTime=4:t lastSuccessfulTime:t
JobTemplateSpec metadata:ObjectMeta spec:JobSpec
HorizontalPodAutoscaler metadata:ObjectMeta spec:AutoscalerSpec status:AutoscalerStatus
AutoscalerSpec scaleTargetRef:ScaleTarget minReplicas:i* maxReplicas:i metrics:[MetricSpec]
AutoscalerStatus observedGeneration:i* lastScaleTime:t currentReplicas:i desiredReplicas:i
autoscaling/v1/HorizontalPodAutoscaler metadata:ObjectMeta spec:OldAutoscalerSpec status:OldAutoscalerStatus
OldAutoscalerSpec scaleTargetRef:ScaleTarget minReplicas:i* maxReplicas:i targetCPUUtilizationPercentage:i*
OldAutoscalerStatus observedGeneration:i* lastScaleTime:t currentReplicas:i desiredReplicas:i \
  currentCPUUtilizationPercentage:i*
ScaleTarget kind name apiVersion
MetricSpec type resource=4:ResourceMetric
ResourceMetric name target:MetricTarget
MetricTarget type value:q averageValue:q averageUtilization:i*

PodDisruptionBudget metadata:ObjectMeta spec:BudgetSpec status:BudgetStatus
BudgetSpec minAvailable:x selector:LabelSelector maxUnavailable:x unhealthyPodEvictionPolicy*
BudgetStatus observedGeneration:i - disruptionsAllowed:i currentHealthy:i desiredHealthy:i expectedPods:i
Eviction metadata:ObjectMeta deleteOptions:DeleteOptions
PriorityClass metadata:ObjectMeta value:i* globalDefault:b description preemptionPolicy*
Role metadata:ObjectMeta rules:[PolicyRule]
ClusterRole metadata:ObjectMeta rules:[PolicyRule] aggregationRule:AggregationRule
AggregationRule clusterRoleSelectors:[LabelSelector]
PolicyRule verbs:[] apiGroups:[] resources:[] resourceNames:[] nonResourceURLs:[]
RoleBinding metadata:ObjectMeta subjects:[Subject] roleRef:RoleRef
ClusterRoleBinding metadata:ObjectMeta subjects:[Subject] roleRef:RoleRef
Subject kind apiGroup name namespace
RoleRef apiGroup kind name
Lease metadata:ObjectMeta spec:LeaseSpec
LeaseSpec holderIdentity* leaseDurationSeconds:i* acquireTime:u renewTime:u leaseTransitions:i*
Ingress metadata:ObjectMeta spec:IngressSpec status:IngressStatus
IngressSpec defaultBackend:IngressBackend tls:[IngressTLS] rules:[IngressRule] ingressClassName*
IngressStatus loadBalancer:LoadBalancerStatus
IngressBackend service=4:IngressService
IngressService name port:IngressPort
IngressPort name number:i
IngressTLS hosts:[] secretName
IngressRule host @:IngressRuleValue
IngressRuleValue http:IngressPaths
IngressPaths paths:[IngressPath]
IngressPath path backend:IngressBackend pathType*

SelfSubjectAccessReview metadata:ObjectMeta spec:AccessSpec status:AccessStatus
SubjectAccessReview metadata:ObjectMeta spec:AccessSpec status:AccessStatus
LocalSubjectAccessReview metadata:ObjectMeta spec:AccessSpec status:AccessStatus
AccessSpec resourceAttributes:ResourceAttributes nonResourceAttributes:NonResourceAttributes user \
  groups:[] uid=6
AccessStatus allowed:b reason evaluationError denied:b
ResourceAttributes namespace verb group version resource subresource name
NonResourceAttributes path verb
SelfSubjectRulesReview metadata:ObjectMeta spec:RulesSpec status:RulesStatus
RulesSpec namespace
RulesStatus incomplete=3:b evaluationError
SelfSubjectReview metadata:ObjectMeta status:SelfStatus
SelfStatus userInfo:UserInfo
UserInfo username uid groups:[]
TokenReview metadata:ObjectMeta spec:TokenSpec status:TokenStatus
TokenSpec token audiences:[]
TokenStatus authenticated:b user:UserInfo error audiences:[]
TokenRequest metadata:ObjectMeta spec:TokenRequestSpec status:TokenRequestStatus
TokenRequestSpec audiences:[] - boundObjectRef:BoundObject expirationSeconds:i*
BoundObject kind apiVersion name uid
TokenRequestStatus token expirationTimestamp:t
"""
