"""Feature gates: which of them a component knows (default, stage and effect of each), and what its flag turned on.

Source: behaviour/api 12.
"""

import difflib
import enum
import types
from collections.abc import Mapping
from typing import Self

import msgspec

from koordinator.api import scalars
from koordinator.api.errors import KoordinatorError


class FeatureStage(enum.Enum):
    """The maturity of a feature."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "GA"


class FeatureGate(msgspec.Struct, frozen=True):
    """A feature that can be switched."""

    default: bool
    stage: FeatureStage
    effect: str


def _table(**gates: tuple[bool, FeatureStage, str]) -> Mapping[str, FeatureGate]:
    return {name: FeatureGate(*gate) for name, gate in gates.items()}


ON, OFF = True, False
A, B, GA = FeatureStage.ALPHA, FeatureStage.BETA, FeatureStage.GA

SHARED: Mapping[str, FeatureGate] = _table(
    PriorityTransformer=(OFF, A, "set the priority number of pods that have none from their class"),
    PreemptionPolicyTransformer=(OFF, A, "override the preemption policy of pods by their label"),
    ReplaceResourcesTransformer=(OFF, A, "apply the annotation replace-resources to pods"),
)
"""Gates that both the manager's and the scheduler's registry hold."""

_MANAGER_ONLY = _table(
    PodMutatingWebhook=(ON, B, "serve /mutate-pod"),
    PodValidatingWebhook=(ON, B, "serve /validate-pod and /validate-pod-binding"),
    ElasticMutatingWebhook=(ON, B, "quota mutation"),
    ElasticValidatingWebhook=(ON, B, "quota validation"),
    NodeMutatingWebhook=(OFF, A, "serve /mutate-node-status (amplification needs it)"),
    NodeValidatingWebhook=(OFF, A, "serve /validate-node"),
    ConfigMapValidatingWebhook=(OFF, A, "serve /validate-configmap"),
    ReservationMutatingWebhook=(OFF, A, "serve /mutate-reservation"),
    WebhookFramework=(ON, B, "the whole webhook server"),
    ColocationProfileSkipMutatingResources=(OFF, A, "profiles do not rewrite resources"),
    ColocationProfileSkipValidatingPriority=(OFF, A, "the sub-priority label may change"),
    ColocationProfileController=(OFF, A, "reconcile profiles onto existing pods"),
    MultiQuotaTree=(OFF, A, "inject the node affinity of quota trees"),
    ElasticQuotaIgnorePodOverhead=(OFF, A, "quotas count pods without their overhead"),
    ElasticQuotaGuaranteeUsage=(OFF, A, "used resources become guaranteed"),
    ElasticQuotaEnableUpdateResourceKey=(OFF, A, "allow changing the resource keys of quotas in order"),
    ElasticQuotaEvaluationTransformPod=(OFF, A, "transform pods before quota evaluation"),
    DisableDefaultQuota=(OFF, A, "pods without a quota are not accounted"),
    SupportParentQuotaSubmitPod=(OFF, A, "pods may use a parent quota"),
    EnableQuotaAdmission=(OFF, A, "check the quota when a pod is created"),
    EnableQuotaAdmissionOnUpdate=(OFF, A, "check it also when the quota label changes"),
    EnableSyncGPUSharedResource=(OFF, A, "sync gpu.shared of nodes from Device objects"),
    ValidatePodDeviceResource=(OFF, A, "check GPU requests"),
    EnablePodEnhancedValidator=(OFF, A, "apply the rules of the enhanced pod validator"),
    DisableExtendedResourceSpec=(OFF, A, "do not write extended-resource-spec"),
    DisableDeviceResourceSpec=(OFF, A, "do not rewrite GPU requests"),
    BindingAdmissionWebhook=(OFF, A, "restrict who may bind pods"),
    WorkloadProfiles=(OFF, A, "merge what node agents learn of workloads, and give it back"),
    TidalPool=(OFF, A, "lend whole nodes to batch work by TidalPools"),
    DisablePVCReservation=(OFF, B, "no volume claims in reservation templates (descheduler)"),
)

_SCHEDULER_ONLY = _table(
    CompatibleCSIStorageCapacity=(OFF, A, "old clusters: read CSIStorageCapacity of v1beta1"),
    DisableCSIStorageCapacityInformer=(OFF, A, "old clusters: do not watch CSIStorageCapacity"),
    CompatiblePodDisruptionBudget=(OFF, A, "old clusters: read PodDisruptionBudget of v1beta1"),
    DisablePodDisruptionBudgetInformer=(OFF, A, "old clusters: do not watch PodDisruptionBudget"),
    DisableDynamicResourceAllocationInformer=(OFF, A, "old clusters: do not watch resource.k8s.io"),
    CSIStorageCapacity=(ON, GA, "storage capacity is considered"),
    GenericEphemeralVolume=(ON, GA, "generic ephemeral volumes are considered"),
    PodDisruptionBudget=(ON, GA, "disruption budgets are considered"),
    ResizePod=(OFF, A, "resize a pod when it is assumed"),
    MultiQuotaTree=(OFF, A, "separate quota trees"),
    ElasticQuotaIgnorePodOverhead=(OFF, A, "quotas count pods without their overhead"),
    ElasticQuotaGuaranteeUsage=(OFF, A, "used resources become guaranteed"),
    DisableDefaultQuota=(OFF, A, "pods without a quota are not accounted"),
    SupportParentQuotaSubmitPod=(OFF, A, "accepted, has no effect in the scheduler"),
    ElasticQuotaIgnoreTerminatingPod=(OFF, A, "terminating pods do not count after their grace period"),
    ElasticQuotaImmediateIgnoreTerminatingPod=(OFF, A, "terminating pods do not count at once"),
    LazyReservationRestore=(OFF, A, "restore reserved resources lazily"),
    OmitNodeLabelsForReservation=(OFF, A, "match affinity against reservation labels only"),
    SkipReservationFitsNode=(OFF, A, "skip the duplicate fit check"),
    CleanExpiredReservationAllocated=(OFF, A, "drop stale reservation annotations of pods"),
    DevicePluginAdaption=(OFF, A, "write what vendors' device plugins expect"),
    DynamicSchedulerCheck=(ON, A, "check the scheduler name again at events"),
    CrossSchedulerNomination=(OFF, A, "count nominated pods of other schedulers"),
    SkipFilterWithNominatedPods=(OFF, A, "one filter pass instead of two"),
    SyncBarrier=(OFF, A, "wait for the cache after a change of leader"),
    GangPendingPodsConditionPatch=(ON, B, "set PodScheduled=False early on gang members"),
    EnableInlineBatchSchedule=(OFF, A, "schedule whole jobs at once"),
    EnableBatchScheduleNodeSnapshot=(ON, B, "per-node snapshots when scheduling whole jobs"),
    DRAAdminAccess=(ON, B, "upstream's: claims may ask for access to devices that others use"),
    DRAConsumableCapacity=(OFF, A, "upstream's: several claims share a device by its capacity"),
    DRADeviceBindingConditions=(OFF, A, "upstream's: pods wait until their devices are ready"),
    DRADeviceTaintRules=(OFF, A, "upstream's: rules taint devices; needs DRADeviceTaints"),
    DRADeviceTaints=(OFF, A, "upstream's: taints keep claims from devices"),
    DRAPartitionableDevices=(OFF, A, "upstream's: devices that share counters, each for nodes of its own"),
    DRAPrioritizedList=(ON, B, "upstream's: claims may list alternatives"),
)

MANAGER: Mapping[str, FeatureGate] = {**SHARED, **_MANAGER_ONLY}
SCHEDULER: Mapping[str, FeatureGate] = {**SHARED, **_SCHEDULER_ONLY}

KOORDLET: Mapping[str, FeatureGate] = _table(
    BECPUSuppress=(ON, B, "suppress the CPU of best-effort pods"),
    CPUBurst=(ON, B, "let pods burst above their CPU limit"),
    RdtResctrl=(ON, B, "resctrl groups by QoS"),
    NodeTopologyReport=(ON, B, "report NodeResourceTopology"),
    AuditEvents=(OFF, A, "audit log"),
    AuditEventsHTTPHandler=(OFF, A, "serve /events"),
    BECPUManager=(OFF, A, "cpuset manager for best-effort pods (not together with BECPUSuppress)"),
    BECPUEvict=(OFF, A, "evict best-effort pods by CPU satisfaction"),
    BEMemoryEvict=(OFF, A, "evict best-effort pods by node memory"),
    CPUEvict=(OFF, A, "evict by CPU usage of the node"),
    MemoryEvict=(OFF, A, "evict by memory usage of the node"),
    CPUAllocatableEvict=(OFF, A, "evict by CPU requests over allocatable"),
    MemoryAllocatableEvict=(OFF, A, "evict by memory requests over allocatable"),
    SystemConfig=(OFF, A, "kernel parameters"),
    CgroupReconcile=(OFF, A, "memory QoS files"),
    BlkIOReconcile=(OFF, A, "block I/O"),
    Accelerators=(OFF, A, "collect and report accelerators"),
    RDMADevices=(OFF, A, "collect and report RDMA devices"),
    CPICollector=(OFF, A, "collect cycles per instruction"),
    Libpfm4=(OFF, A, "collect performance counters through libpfm4"),
    PSICollector=(OFF, A, "collect pressure stall information"),
    ResctrlCollector=(OFF, A, "collect resctrl figures"),
    ColdPageCollector=(OFF, A, "collect cold memory"),
    HugePageReport=(OFF, A, "report huge pages in zones"),
    PodResourcesProxy=(OFF, A, "serve the pod-resources socket"),
    HamiCoreVGPUMonitor=(OFF, A, "vGPU metrics"),
    PerCPUMetric=(OFF, A, "metrics per CPU"),
    NodeMetricPromMetrics=(OFF, A, "metrics of the NodeMetric report"),
    GroupIdentity=(ON, B, "runtime hook: group identity"),
    CPUSetAllocator=(ON, B, "runtime hook: cpusets"),
    BatchResource=(ON, B, "runtime hook: batch resources"),
    GPUEnvInject=(OFF, A, "runtime hook: GPU environment"),
    RDMADeviceInject=(OFF, A, "runtime hook: RDMA devices"),
    CPUNormalization=(OFF, A, "runtime hook: CPU normalisation"),
    CoreSched=(OFF, A, "runtime hook: core scheduling"),
    TerwayQoS=(OFF, A, "runtime hook: network QoS by Terway"),
    TCNetworkQoS=(OFF, A, "runtime hook: network QoS by tc"),
    Resctrl=(OFF, A, "runtime hook: resctrl per pod"),
    OOMScoreAdj=(OFF, A, "runtime hook: OOM score"),
)

NODE_SLO_SWITCHED = frozenset(
    (
        "BECPUSuppress",
        "BECPUEvict",
        "BEMemoryEvict",
        "CPUEvict",
        "MemoryEvict",
        "CPUAllocatableEvict",
        "MemoryAllocatableEvict",
    )
)
"""Features of the node agent that the NodeSLO of a node can switch off."""


class Component(enum.StrEnum):
    """A component that reads a feature-gates flag."""

    MANAGER = "manager"
    SCHEDULER = "scheduler"
    DESCHEDULER = "descheduler"
    KOORDLET = "koordlet"


REGISTRIES: Mapping[Component, Mapping[str, FeatureGate]] = {
    Component.MANAGER: MANAGER,
    Component.SCHEDULER: SCHEDULER,
    Component.DESCHEDULER: MANAGER,  # the descheduler shares the manager's registry
    Component.KOORDLET: KOORDLET,
}

ALL_ALPHA = "AllAlpha"
ALL_BETA = "AllBeta"
_STAGE_SWITCHES = {ALL_ALPHA: FeatureStage.ALPHA, ALL_BETA: FeatureStage.BETA}


class FeatureGateError(KoordinatorError, ValueError):
    """The flag cannot be understood; the component must not start."""

    def __init__(self, entry: str, reason: str) -> None:
        super().__init__(entry, reason)
        self.entry, self.reason = entry, reason

    def __str__(self) -> str:
        return f"feature gates: {self.entry!r}: {self.reason}"


class FeatureGates(msgspec.Struct, frozen=True):
    """The gates of one component, each on or off, and how mature each is."""

    states: Mapping[str, bool]
    stages: Mapping[str, FeatureStage] = {}

    @classmethod
    def of(
        cls,
        component: Component,
        flag: str = "",
        added: Mapping[str, FeatureGate] = types.MappingProxyType({}),
    ) -> Self:
        """Return the defaults of the component's gates, changed by the flag's text (`A=true,B=false`).

        `AllAlpha` and `AllBeta` set the gates of that stage that the flag does not name; `added` are gates that
        policies of the component declare themselves.

        Raises: FeatureGateError.
        """
        registry = {**REGISTRIES[component], **added}
        named = _parse(flag, registry)
        states = {name: gate.default for name, gate in registry.items()}
        for switch, stage in _STAGE_SWITCHES.items():
            if switch in named:
                of_stage = (name for name, gate in registry.items() if gate.stage is stage)
                states.update(dict.fromkeys(of_stage, named[switch]))
        states.update((name, state) for name, state in named.items() if name in registry)
        return cls(states, {name: gate.stage for name, gate in registry.items()})

    def is_on(self, gate: str) -> bool:
        """Return whether the gate is on. Raises: KeyError when the component has no such gate."""
        return self.states[gate]


class NodeSwitch(enum.Enum):
    """The switch in a node's NodeSLO for a feature of the node agent."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"
    """There is no NodeSLO or strategy, or no switch for this feature: report it, and treat the feature as off."""


def node_switch(gate: str, threshold_enable: bool | None) -> NodeSwitch:
    """Return the second switch of a koordlet feature, by the NodeSLO of its node.

    `threshold_enable` is `spec.resourceUsedThresholdWithBE.enable`, None when any part of it is absent.
    Whoever asks for a feature that has no such switch has the wrong one: nothing is known of it.
    """
    if gate not in NODE_SLO_SWITCHED or threshold_enable is None:
        return NodeSwitch.UNKNOWN
    return NodeSwitch.ON if threshold_enable else NodeSwitch.OFF


def _unknown(name: str, registry: Mapping[str, FeatureGate]) -> str:
    alike = difflib.get_close_matches(name, registry, n=1)
    hint = f"did you mean {alike[0]}?" if alike else f"there are {', '.join(sorted(registry))}"
    return f"no such gate; {hint}"


def _parse(flag: str, registry: Mapping[str, FeatureGate]) -> dict[str, bool]:
    """Name → state for each entry of the flag; the last one wins."""
    named: dict[str, bool] = {}
    for entry in filter(None, flag.split(",")):
        name, equals, state = (part.strip() for part in entry.partition("="))
        if not equals:
            raise FeatureGateError(entry, "expected NAME=true or NAME=false")
        if name not in registry and name not in _STAGE_SWITCHES:
            raise FeatureGateError(entry, _unknown(name, registry))
        try:
            named[name] = scalars.parse_bool(state)
        except scalars.ScalarError as error:
            raise FeatureGateError(entry, str(error)) from error
    return named
