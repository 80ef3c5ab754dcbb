"""Feature gates of kube-scheduler v1.35 that users may have in their flags, and what is built in here.

They cannot be switched: a behaviour is there or not. Source: behaviour/scheduler B1, B2 and B9 (what v1.35 does by
default).
"""

from collections.abc import Mapping

import msgspec

from koordinator.api import scalars
from koordinator.api.feature_gates import FeatureGateError


class UpstreamGate(msgspec.Struct, frozen=True):
    """A gate of upstream: `lack` says what there is instead where the behaviour is not built in. `is_refused`: without
    it pods would be placed otherwise than who asks for it expects."""

    is_built_in: bool
    lack: str = ""
    is_refused: bool = False


BUILT_IN = UpstreamGate(True)


def _refused(lack: str) -> UpstreamGate:
    return UpstreamGate(False, lack, is_refused=True)


_WORKLOADS = (
    "Workload objects (scheduling.k8s.io/v1alpha1) are not read; gangs are PodGroups or annotations of the plugin "
    "Coscheduling"
)

SCHEDULER: Mapping[str, UpstreamGate] = {
    "AnyVolumeDataSource": BUILT_IN,
    "CSIMigrationPortworx": UpstreamGate(
        False, "volumes of in-tree drivers do not count towards limits of CSI drivers"
    ),
    "ComponentSLIs": BUILT_IN,
    "ContextualLogging": BUILT_IN,
    "DRAExtendedResource": _refused(
        "extended resources are not backed by DeviceClasses; ask by ResourceClaim"
    ),
    "DRAResourceClaimDeviceStatus": UpstreamGate(
        False, "drivers write the status of devices, the scheduler none"
    ),
    "DRASchedulerFilterTimeout": BUILT_IN,
    "DynamicResourceAllocation": BUILT_IN,
    "GangScheduling": _refused(_WORKLOADS),
    "GenericWorkload": _refused(_WORKLOADS),
    "InOrderInformers": BUILT_IN,
    "InPlacePodLevelResourcesVerticalScaling": BUILT_IN,
    "InPlacePodVerticalScaling": BUILT_IN,
    "InPlacePodVerticalScalingExclusiveCPUs": UpstreamGate(
        False, "it is the kubelet's; the scheduler does not differ"
    ),
    "LoggingAlphaOptions": UpstreamGate(False, "logs are JSON lines or text"),
    "LoggingBetaOptions": BUILT_IN,
    "MatchLabelKeysInPodAffinity": BUILT_IN,
    "MatchLabelKeysInPodTopologySpread": BUILT_IN,
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": BUILT_IN,
    "MutableCSINodeAllocatableCount": BUILT_IN,
    "NodeDeclaredFeatures": _refused(
        "features that nodes declare are not compared with pods; label the nodes, and select them"
    ),
    "NodeInclusionPolicyInPodTopologySpread": BUILT_IN,
    "NominatedNodeNameForExpectation": BUILT_IN,
    "OpportunisticBatching": BUILT_IN,
    "PodLevelResources": BUILT_IN,
    "PodSchedulingReadiness": BUILT_IN,
    "SchedulerAsyncAPICalls": BUILT_IN,
    "SchedulerAsyncPreemption": BUILT_IN,
    "SchedulerPopFromBackoffQ": BUILT_IN,
    "SchedulerQueueingHints": BUILT_IN,
    "SidecarContainers": BUILT_IN,
    "StorageCapacityScoring": _refused(
        "volumes to be made do not score; those that exist do (`shape` of VolumeBinding)"
    ),
    "TaintTolerationComparisonOperators": BUILT_IN,
    "VolumeAttributesClass": BUILT_IN,
    "VolumeLimitScaling": _refused("limits of volumes count only where a node's driver reports them"),
    "WatchListClient": UpstreamGate(False, "objects are listed in pages before they are watched"),
}
"""By name."""


class GateFlag(msgspec.Struct, frozen=True):
    """An upstream gate in a flag."""

    name: str
    is_on: bool
    gate: UpstreamGate

    @property
    def is_as_asked(self) -> bool:
        return self.is_on is self.gate.is_built_in


def split(flag: str) -> tuple[str, list[GateFlag]]:
    """Return the flag without upstream's gates, and those.

    Raises: FeatureGateError when one is asked for that is not there, and matters for where pods go.
    """
    ours, asked = [], []
    for entry in filter(None, flag.split(",")):
        name, _, state = (part.strip() for part in entry.partition("="))
        gate = SCHEDULER.get(name)
        if gate is None:
            ours.append(entry)
            continue
        try:
            found = GateFlag(name, scalars.parse_bool(state), gate)
        except scalars.ScalarError as error:
            raise FeatureGateError(entry, str(error)) from error
        if found.is_on and gate.is_refused:
            raise FeatureGateError(entry, f"not there: {gate.lack}. Leave the gate out")
        asked.append(found)
    return ",".join(ours), asked
