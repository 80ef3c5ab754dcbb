"""Fields that are there though they are zero or empty: Go's types point at their text, number or boolean, or always
write them.

All other optional texts, numbers, booleans, lists and maps are left out when they are zero or empty (`omitempty`), so
that objects, their defaults and what counts as a change are as in the API server, whatever a client spelled out.
Source: the types of k8s.io/api 0.35.
"""

_BY_STRUCT = """
AllocatedDeviceStatus: shareID
AppArmorProfile: localhostProfile
AzureDiskVolumeSource: cachingMode fsType kind readOnly
AzureFilePersistentVolumeSource: secretNamespace
CSIDriverSpec: attachRequired fsGroupPolicy nodeAllocatableUpdatePeriodSeconds podInfoOnMount
  requiresRepublish seLinuxMount serviceAccountTokenInSecrets storageCapacity
CSINodeDriver: topologyKeys
CSIVolumeSource: fsType readOnly
CapacityRequestPolicy: default
CapacityRequestPolicyRange: max step
CertificateSigningRequestSpec: expirationSeconds
ClientIPConfig: timeoutSeconds
ClusterRole: rules
ClusterTrustBundleProjection: name optional signerName
ConfigMap: immutable
ConfigMapEnvSource: optional
ConfigMapKeySelector: optional
ConfigMapProjection: optional
ConfigMapVolumeSource: defaultMode optional
Container: restartPolicy
ContainerImage: names
ContainerStatus: started stopSignal
CronJobSpec: failedJobsHistoryLimit startingDeadlineSeconds successfulJobsHistoryLimit suspend timeZone
CustomResourceDefinitionVersion: deprecationWarning
CustomResourceSubresourceScale: labelSelectorPath
DaemonSetSpec: revisionHistoryLimit
DaemonSetStatus: collisionCount
DeploymentSpec: progressDeadlineSeconds replicas revisionHistoryLimit
DeploymentStatus: collisionCount terminatingReplicas
Device: allNodes allowMultipleAllocations bindsToNode nodeName
DeviceAttribute: bool int string version
DeviceClassSpec: extendedResourceName
DeviceConstraint: distinctAttribute matchAttribute
DeviceRequestAllocationResult: adminAccess shareID
DeviceTaintSelector: device driver pool
DeviceToleration: tolerationSeconds
DownwardAPIVolumeFile: mode
DownwardAPIVolumeSource: defaultMode
Endpoint: hostname nodeName zone
EndpointAddress: nodeName
EndpointConditions: ready serving terminating
EndpointPort: appProtocol name protocol
EndpointSlice: endpoints ports
Event: reportingComponent reportingInstance
ExactDeviceRequest: adminAccess
FCVolumeSource: lun
FileKeySelector: optional
FlowSchemaSpec: matchingPrecedence
GRPCAction: service
GlusterfsPersistentVolumeSource: endpointsNamespace
HPAScalingRules: selectPolicy stabilizationWindowSeconds tolerance
HorizontalPodAutoscalerSpec: minReplicas targetCPUUtilizationPercentage
HorizontalPodAutoscalerStatus: currentCPUUtilizationPercentage currentMetrics observedGeneration
HostPathVolumeSource: type
ISCSIPersistentVolumeSource: initiatorName
ISCSIVolumeSource: initiatorName
IngressClassParametersReference: apiGroup namespace scope
IngressPortStatus: error
IngressSpec: ingressClassName
JSONSchemaProps: $ref maxItems maxLength maxProperties maximum minItems minLength minProperties minimum
  multipleOf x-kubernetes-list-type x-kubernetes-map-type x-kubernetes-preserve-unknown-fields
JobSpec: activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy
  manualSelector maxFailedIndexes parallelism podReplacementPolicy suspend ttlSecondsAfterFinished
JobStatus: failedIndexes ready terminating
KeyToPath: mode
LeaseSpec: holderIdentity leaseDurationSeconds leaseTransitions preferredHolder strategy
Lifecycle: stopSignal
LimitedPriorityLevelConfiguration: nominalConcurrencyShares
LoadBalancerIngress: ipMode
LocalVolumeSource: fsType
MatchResources: matchPolicy
MetricTarget: averageUtilization
MetricValueStatus: averageUtilization
MutatingWebhook: failurePolicy matchPolicy reinvocationPolicy timeoutSeconds
NetworkPolicyPort: endPort protocol
NodeFeatures: supplementalGroupsPolicy
NodeRuntimeHandlerFeatures: recursiveReadOnlyMounts userNamespaces
NodeSwapStatus: capacity
ObjectMeta: deletionGracePeriodSeconds
OwnerReference: blockOwnerDeletion controller
ParamRef: parameterNotFoundAction
PersistentVolumeClaimSpec: storageClassName volumeAttributesClassName volumeMode
PersistentVolumeClaimStatus: currentVolumeAttributesClassName
PersistentVolumeSpec: volumeAttributesClassName volumeMode
PodCertificateProjection: maxExpirationSeconds
PodDNSConfigOption: value
PodDisruptionBudgetSpec: unhealthyPodEvictionPolicy
PodDisruptionBudgetStatus: currentHealthy desiredHealthy disruptionsAllowed expectedPods
PodFailurePolicyOnExitCodesRequirement: containerName
PodResourceClaim: resourceClaimName resourceClaimTemplateName
PodResourceClaimStatus: resourceClaimName
PodSecurityContext: fsGroup fsGroupChangePolicy runAsGroup runAsNonRoot runAsUser seLinuxChangePolicy
  supplementalGroupsPolicy
PodSpec: activeDeadlineSeconds automountServiceAccountToken enableServiceLinks hostUsers hostnameOverride
  preemptionPolicy priority runtimeClassName setHostnameAsFQDN shareProcessNamespace
  terminationGracePeriodSeconds
PortStatus: error
PriorityClass: preemptionPolicy value
Probe: terminationGracePeriodSeconds
ProjectedVolumeSource: defaultMode sources
QueuingConfiguration: handSize queueLengthLimit queues
ReplicaSetSpec: replicas
ReplicaSetStatus: terminatingReplicas
ReplicationControllerSpec: replicas
ResourcePolicyRule: namespaces
ResourceSliceSpec: allNodes nodeName perDeviceNodeSelection
Role: rules
RoleRef: apiGroup
RollingUpdateStatefulSetStrategy: partition
SeccompProfile: localhostProfile
Secret: immutable
SecretEnvSource: optional
SecretKeySelector: optional
SecretProjection: optional
SecretVolumeSource: defaultMode optional
SecurityContext: allowPrivilegeEscalation privileged procMount readOnlyRootFilesystem runAsGroup
  runAsNonRoot runAsUser
ServiceAccount: automountServiceAccountToken
ServiceAccountTokenProjection: expirationSeconds
ServicePort: appProtocol
ServiceReference: path port
ServiceSpec: allocateLoadBalancerNodePorts internalTrafficPolicy ipFamilyPolicy loadBalancerClass
  trafficDistribution
StatefulSetOrdinals: start
StatefulSetSpec: replicas revisionHistoryLimit serviceName
StatefulSetStatus: availableReplicas collisionCount observedGeneration
StorageClass: allowVolumeExpansion reclaimPolicy volumeBindingMode
SuccessPolicyRule: succeededCount succeededIndexes
TokenRequest: expirationSeconds
TokenRequestSpec: audiences
Toleration: tolerationSeconds
TopologySpreadConstraint: minDomains nodeAffinityPolicy nodeTaintsPolicy
TypedLocalObjectReference: apiGroup
TypedObjectReference: apiGroup namespace
ValidatingAdmissionPolicySpec: failurePolicy
ValidatingWebhook: failurePolicy matchPolicy timeoutSeconds
Validation: reason
ValidationRule: optionalOldSelf reason
VolumeAttachmentSource: persistentVolumeName
VolumeError: errorCode
VolumeMount: mountPropagation recursiveReadOnly
VolumeMountStatus: recursiveReadOnly
VolumeNodeResources: count
WebhookClientConfig: url
WindowsSecurityContextOptions: gmsaCredentialSpec gmsaCredentialSpecName hostProcess runAsUserName
"""

POINTERS: dict[str, frozenset[str]] = {}
"""Go struct → its fields that keep a zero value."""
for _line in _BY_STRUCT.replace("\n  ", " ").strip().splitlines():
    _struct, _, _names = _line.partition(": ")
    POINTERS[_struct] = frozenset(_names.split())
