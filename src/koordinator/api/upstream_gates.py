"""Feature gates of kube-scheduler v1.35 that users may have in their flags, and what is built in here.

They cannot be switched: a behaviour is there or not. Source: spec 03, B1, B2 and B9 (what v1.35 does by default).
"""

from collections.abc import Mapping

SCHEDULER: Mapping[str, bool] = {
    "CSIMigrationPortworx": True,
    "DRAAdminAccess": True,
    "DRAConsumableCapacity": False,
    "DRADeviceBindingConditions": False,
    "DRADeviceTaints": True,
    "DRAExtendedResource": False,
    "DRAPartitionableDevices": False,
    "DRAPrioritizedList": True,
    "DRAResourceClaimDeviceStatus": False,
    "DRASchedulerFilterTimeout": True,
    "DynamicResourceAllocation": True,
    "GangScheduling": False,
    "GenericWorkload": False,
    "InPlacePodVerticalScaling": True,
    "InPlacePodVerticalScalingExclusiveCPUs": False,
    "MatchLabelKeysInPodAffinity": True,
    "MatchLabelKeysInPodTopologySpread": True,
    "MatchLabelKeysInPodTopologySpreadSelectorMerge": True,
    "MutableCSINodeAllocatableCount": True,
    "NodeDeclaredFeatures": False,
    "NodeInclusionPolicyInPodTopologySpread": True,
    "NominatedNodeNameForExpectation": False,
    "OpportunisticBatching": True,
    "PodLevelResources": True,
    "PodSchedulingReadiness": True,
    "SchedulerAsyncAPICalls": True,
    "SchedulerAsyncPreemption": True,
    "SchedulerPopFromBackoffQ": True,
    "SchedulerQueueingHints": True,
    "SidecarContainers": True,
    "StorageCapacityScoring": False,
    "TaintTolerationComparisonOperators": False,
    "VolumeAttributesClass": True,
    "VolumeLimitScaling": False,
    "AnyVolumeDataSource": True,
    "ComponentSLIs": False,
    "ContextualLogging": True,
    "LoggingAlphaOptions": False,
    "LoggingBetaOptions": True,
    "WatchListClient": False,
    "InOrderInformers": True,
}
"""Name → whether the behaviour is built in."""
