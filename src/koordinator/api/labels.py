"""Every label and annotation key of the protocol, grouped by the object that carries it.

The comment of a group says whether its keys are labels or annotations; the values are explained in behaviour/api 6, and
in the readers: `qos`, `priority`, `gang_labels`, `quota_labels`, `node_labels`, `pod_labels` for plain texts,
`annotations` for JSON.

`read` and `parsed` read plain texts out of labels and annotations, with errors that name object and key.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from koordinator.api import scalars
from koordinator.api.errors import ProtocolError
from koordinator.api.scalars import ScalarError

# --- Pod labels: QoS, priority, eviction (6.1) ---
QOS_CLASS = "koordinator.sh/qosClass"
PRIORITY = "koordinator.sh/priority"
PRIORITY_CLASS = "koordinator.sh/priority-class"
EVICTION_ENABLED = "koordinator.sh/eviction-enabled"
CORE_SCHED_GROUP_ID = "koordinator.sh/core-sched-group-id"
CORE_SCHED_POLICY = "koordinator.sh/core-sched-policy"
GPU_ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"  # on nodes too
HAMI_VGPU_NODE = "hami.io/vgpu-node"
EVICT_POLICY = "koordinator.sh/evict-policy"  # on PodMigrationJobs too
BINDING_ADMISSION_BYPASS = "koordinator.sh/binding-admission-bypass"
POD_MUTATING_UPDATE = "pod.koordinator.sh/mutating-update"
POD_SKIP_ENHANCED_VALIDATION = "pod.koordinator.sh/skip-enhanced-validation"
POD_IS_PRE_ALLOCATABLE = "pod.koordinator.sh/is-pre-allocatable"

# --- Pod labels: scheduling (6.1) ---
SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"
POD_OPERATING_MODE = "scheduling.koordinator.sh/operating-mode"
RESERVATION_IGNORED = "scheduling.koordinator.sh/reservation-ignored"
PREEMPTION_POLICY = "scheduling.koordinator.sh/preemption-policy"
DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"
QUESTIONED_OBJECT_KEY = "scheduling.koordinator.sh/questioned-object-key"
TOPOLOGY_KEY_TO_EXPLAIN = "scheduling.koordinator.sh/topology-key-to-explain"
RUNTIME_PROXY_SKIP_HOOK_SERVER = "runtimeproxy.koordinator.sh/skip-hookserver"

# --- Pod annotations: scheduling (6.2) ---
RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
DEVICE_ALLOCATE_HINT = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
GPU_MINORS = "scheduling.koordinator.sh/gpu-minors"
BIND_TIMESTAMP = "scheduling.koordinator.sh/bind-timestamp"
RESERVATION_AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
RESERVATION_ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
EXACT_MATCH_RESERVATION = "scheduling.koordinator.sh/exact-match-reservation"
RESERVATION_OWNERS = "scheduling.koordinator.sh/reservation-owners"
RESERVATION_CURRENT_OWNER = "scheduling.koordinator.sh/reservation-current-owner"
LOAD_ESTIMATED_SCALING_FACTORS = "scheduling.koordinator.sh/load-estimated-scaling-factors"
LOAD_ESTIMATED_SECONDS_AFTER_POD_SCHEDULED = (
    "scheduling.koordinator.sh/load-estimated-seconds-after-pod-scheduled"
)
LOAD_ESTIMATED_SECONDS_AFTER_INITIALIZED = (
    "scheduling.koordinator.sh/load-estimated-seconds-after-initialized"
)
SCHEDULING_HINT = "internal.scheduling.koordinator.sh/scheduling-hint"
DEPRECATED_SCHEDULING_HINT = "scheduling.koordinator.sh/scheduling-hint"
BIND_GANG_GROUP_ID = "internal.scheduling.koordinator.sh/bind-gang-group-id"
BIND_GANG_MEMBER_COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"
DEPRECATED_BIND_GANG_GROUP_ID = "scheduling.koordinator.sh/bind-gang-group-id"
DEPRECATED_BIND_GANG_MEMBER_COUNT = "scheduling.koordinator.sh/bind-gang-member-count"
ORIGINAL_SCHEDULER_NAME = "internal.scheduling.koordinator.sh/original-scheduler-name"
EVICTION_COST = "scheduling.koordinator.sh/eviction-cost"
SOFT_EVICTION = "scheduling.koordinator.sh/soft-eviction"
NETWORK_TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"
REPLACE_RESOURCES = "pod.koordinator.sh/replace-resources"
PRE_ALLOCATABLE_PRIORITY = "pod.koordinator.sh/pre-allocatable-priority"
DESCHEDULER_EVICT = "descheduler.alpha.kubernetes.io/evict"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
POD_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

# --- Pod annotations: read by the node agent (6.2) ---
EVICTION_POLICY = "koordinator.sh/eviction-policy"
EVICTION_PRIORITY = "koordinator.sh/eviction-priority"
CPU_BURST = "koordinator.sh/cpuBurst"
CPU_QOS = "koordinator.sh/cpuQOS"
MEMORY_QOS = "koordinator.sh/memoryQOS"
BLKIO_QOS = "koordinator.sh/blkioQOS"
NETWORK_QOS = "koordinator.sh/networkQOS"
OOM_SCORE_ADJ = "koordinator.sh/oom-score-adj"
OOM_SCORE_ADJ_SPEC = "koordinator.sh/oom-score-adj-spec"
RESCTRL = "node.koordinator.sh/resctrl"
LATENCY_OBJECTIVE = "koordinator.sh/latency-objective"
EXTENDED_RESOURCE_SPEC = "node.koordinator.sh/extended-resource-spec"

# --- Pod annotations: vendors' device plugins (6.12) ---
PREDICATE_TIME = "predicate-time"
HUAWEI_NPU_CORE = "huawei.com/npu-core"
HUAWEI_ASCEND_310P = "huawei.com/Ascend310P"
CAMBRICON_DSMLU_ASSIGNED = "CAMBRICON_DSMLU_ASSIGHED"  # the vendor's spelling
CAMBRICON_DSMLU_PROFILE = "CAMBRICON_DSMLU_PROFILE"
METAX_GPU_DEVICES_ALLOCATED = "metax-tech.com/gpu-devices-allocated"

# --- The scheduler's reserve pods, never on the wire (6.2) ---
RESERVE_POD = "scheduling.koordinator.sh/reserve-pod"
RESERVATION_NAME = "scheduling.koordinator.sh/reservation-name"
RESERVATION_NODE = "scheduling.koordinator.sh/reservation-node"
IS_PRE_ALLOCATION = "scheduling.koordinator.sh/is-pre-allocation"

EXPECTED_DURATION = "koordinator.sh/expected-duration"  # ours

# --- Node labels (6.3) ---
NODE_CPU_BIND_POLICY = "node.koordinator.sh/cpu-bind-policy"
NODE_NUMA_ALLOCATE_STRATEGY = "node.koordinator.sh/numa-allocate-strategy"
NODE_NUMA_TOPOLOGY_POLICY = "node.koordinator.sh/numa-topology-policy"
NODE_CPU_RECLAIM_RATIO = "node.koordinator.sh/cpu-reclaim-ratio"
NODE_MEMORY_RECLAIM_RATIO = "node.koordinator.sh/memory-reclaim-ratio"
NODE_MID_STATIC_CPU_RESERVED_RATIO = "node.koordinator.sh/mid-static-cpu-reserved-ratio"
NODE_MID_STATIC_MEMORY_RESERVED_RATIO = "node.koordinator.sh/mid-static-memory-reserved-ratio"
NODE_CPU_NORMALIZATION_ENABLED = "node.koordinator.sh/cpu-normalization-enabled"
NODE_ENABLE_NUMA_RESERVATION = "node.koordinator.sh/enable-numa-reservation"  # on topologies too
NODE_BATCH_GPUS = "node.koordinator.sh/batch-gpus"  # ours
NODE_BATCH_DURATIONS = "node.koordinator.sh/batch-durations"  # ours
NODE_ISOLATION = "node.koordinator.sh/isolation"  # ours
NODE_IMAGES = "node.koordinator.sh/images"  # ours
NODE_ISOLATION_PREFIX = "isolation.koordinator.sh/"  # ours: labels, by kind
REQUIRES_ISOLATION = "koordinator.sh/requires-isolation"  # ours, of pods
GPU_MODEL = "node.koordinator.sh/gpu-model"  # these four on Devices too
GPU_VENDOR = "node.koordinator.sh/gpu-vendor"
GPU_DRIVER_VERSION = "node.koordinator.sh/gpu-driver-version"
GPU_PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"

# --- Node annotations (6.4) ---
NODE_RESERVATION = "node.koordinator.sh/reservation"
NODE_SYSTEM_QOS_RESOURCE = "node.koordinator.sh/system-qos-resource"
NODE_RESOURCE_AMPLIFICATION_RATIO = "node.koordinator.sh/resource-amplification-ratio"
NODE_RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"
NODE_CPU_NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"
NODE_COLOCATION_STRATEGY = "node.koordinator.sh/colocation-strategy"
NODE_NETWORK_BANDWIDTH = "node.koordinator.sh/network-bandwidth"
NODE_ORIGIN_EXTENDED_ALLOCATABLE = "node.koordinator.sh/originExtendedAllocatable"
NODE_THIRD_PARTY_ALLOCATIONS = "node.koordinator.sh/thirdPartyAllocations"
USAGE_THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"
HAMI_MUTEX_LOCK = "hami.io/mutex.lock"
CAMBRICON_DSMLU_LOCK = "cambricon.com/dsmlu.lock"

# --- NodeResourceTopology annotations (6.5) ---
NODE_CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"
NODE_CPU_BASIC_INFO = "node.koordinator.sh/cpu-basic-info"
NODE_CPU_SHARED_POOLS = "node.koordinator.sh/cpu-shared-pools"
NODE_BE_CPU_SHARED_POOLS = "node.koordinator.sh/be-cpu-shared-pools"
NODE_POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
KUBELET_CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"

# --- Device (6.6): a label and an annotation ---
SECONDARY_DEVICE_WELL_PLANNED = "node.koordinator.sh/secondary-device-well-planned"
GPU_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"

# --- Reservation (6.7): labels, then annotations ---
RESERVATION_ORDER = "scheduling.koordinator.sh/reservation-order"
PRE_ALLOCATION_REQUIRED = "scheduling.koordinator.sh/pre-allocation-required"
CREATED_BY = "app.kubernetes.io/created-by"
DESCHEDULER = "koord-descheduler"
"""Value of `CREATED_BY`."""
MANAGED_BY = "app.kubernetes.io/managed-by"
RESERVATION_RESTRICTED_OPTIONS = "scheduling.koordinator.sh/reservation-restricted-options"
RESERVATION_RESIZE_ALLOCATABLE = "scheduling.koordinator.sh/reservation-resize-allocatable"

# --- Gangs (6.8): labels of pods, then annotations of PodGroups and pods ---
POD_GROUP = "pod-group.scheduling.sigs.k8s.io"
DEPRECATED_POD_GROUP = "pod-group.scheduling.sigs.k8s.io/name"
DEPRECATED_POD_GROUP_MIN_AVAILABLE = "pod-group.scheduling.sigs.k8s.io/min-available"
GANG_NAME = "gang.scheduling.koordinator.sh/name"
GANG_MIN_AVAILABLE = "gang.scheduling.koordinator.sh/min-available"
GANG_TOTAL_NUMBER = "gang.scheduling.koordinator.sh/total-number"
GANG_MODE = "gang.scheduling.koordinator.sh/mode"
GANG_WAITING_TIME = "gang.scheduling.koordinator.sh/waiting-time"
GANG_GROUPS = "gang.scheduling.koordinator.sh/groups"
GANG_MATCH_POLICY = "gang.scheduling.koordinator.sh/match-policy"
GANG_MATCH_POLICY_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy"
GANG_NETWORK_TOPOLOGY_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
GANG_NETWORK_TOPOLOGY_INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
# --- Quotas (6.9): labels of pods and ElasticQuotas, then annotations ---
QUOTA_NAME = "quota.scheduling.koordinator.sh/name"
QUOTA_TREE_ID = "quota.scheduling.koordinator.sh/tree-id"
QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/preemptible"
QUOTA_PARENT = "quota.scheduling.koordinator.sh/parent"
QUOTA_IS_PARENT = "quota.scheduling.koordinator.sh/is-parent"
QUOTA_IS_ROOT = "quota.scheduling.koordinator.sh/is-root"
QUOTA_ALLOW_LENT_RESOURCE = "quota.scheduling.koordinator.sh/allow-lent-resource"
QUOTA_ALLOW_FORCE_UPDATE = "quota.scheduling.koordinator.sh/allow-force-update"
QUOTA_IGNORE_DEFAULT_TREE = "quota.scheduling.koordinator.sh/ignore-default-tree"
QUOTA_PROFILE = "quota.scheduling.koordinator.sh/profile"
QUOTA_SHARED_WEIGHT = "quota.scheduling.koordinator.sh/shared-weight"
QUOTA_NAMESPACES = "quota.scheduling.koordinator.sh/namespaces"
QUOTA_RUNTIME = "quota.scheduling.koordinator.sh/runtime"
QUOTA_REQUEST = "quota.scheduling.koordinator.sh/request"
QUOTA_CHILD_REQUEST = "quota.scheduling.koordinator.sh/child-request"
QUOTA_ALLOCATED = "quota.scheduling.koordinator.sh/allocated"
QUOTA_GUARANTEED = "quota.scheduling.koordinator.sh/guaranteed"
QUOTA_NON_PREEMPTIBLE_REQUEST = "quota.scheduling.koordinator.sh/non-preemptible-request"
QUOTA_NON_PREEMPTIBLE_USED = "quota.scheduling.koordinator.sh/non-preemptible-used"
QUOTA_ADMISSION = "quota.scheduling.koordinator.sh/admission"
QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/max-strict-check-resource-keys"
QUOTA_TOTAL_RESOURCE = "quota.scheduling.koordinator.sh/total-resource"
QUOTA_UNSCHEDULABLE_RESOURCE = "quota.scheduling.koordinator.sh/unschedulable-resource"
QUOTA_RESOURCE_KEYS = "quota.scheduling.koordinator.sh/resource-keys"

ROOT_QUOTA_NAME = "koordinator-root-quota"
SYSTEM_QUOTA_NAME = "koordinator-system-quota"
DEFAULT_QUOTA_NAME = "koordinator-default-quota"

# --- PodMigrationJob annotations (6.10) ---
EVICT_REASON = "koordinator.sh/evict-reason"
EVICT_TRIGGER = "koordinator.sh/evict-trigger"
JOB_CREATED_BY = "koordinator.sh/job-created-by"
JOB_SURGE = "koordinator.sh/surge"  # ours: the successor of the pod comes before the pod goes
JOB_SOURCE_NODE = "koordinator.sh/job-source-node"  # ours: where the pod ran, for plans to come
PASSED_ARBITRATION = "descheduler.koordinator.sh/passed-arbitration"

# --- ClusterColocationProfile (6.11): an annotation and a label ---
SKIP_UPDATE_RESOURCES = "config.koordinator.sh/skip-update-resources"
CONTROLLER_MANAGED = "config.koordinator.sh/controller-managed"

# --- Virtual nodes (behaviour/tidal 5): labels, then annotations ---
VIRTUAL_NODE_SOURCE = "tidal.scheduling.koordinator.sh/source"
VIRTUAL_NODE_BORROWER = "tidal.scheduling.koordinator.sh/borrower"
LARGEST_FREE = "tidal.scheduling.koordinator.sh/largest-free"
LENT_AS = "tidal.scheduling.koordinator.sh/lent-as"
LENT_ON = "tidal.scheduling.koordinator.sh/lent-on"
BORROWED_POD = "tidal.scheduling.koordinator.sh/pod"
BORROWED_POD_UID = "tidal.scheduling.koordinator.sh/pod-uid"

# --- Tidal pools (behaviour/tidal 3.1): labels, annotations and taints of nodes ---
TIDAL_POOL = "tidal.scheduling.koordinator.sh/pool"
TIDAL_PHASE = "tidal.scheduling.koordinator.sh/phase"
TIDAL_BATCH, TIDAL_TO_ONLINE = "batch", "to-online"  # values of the phase that others than the pool read
TIDAL_RESERVE = "tidal.scheduling.koordinator.sh/reserve"
TIDAL_SINCE = "tidal.scheduling.koordinator.sh/since"
TIDAL_REASON = "tidal.scheduling.koordinator.sh/reason"
TIDAL_BLOCKED_UNTIL = "tidal.scheduling.koordinator.sh/blocked-until"
TIDAL_BATCH_PHASE_TAINT = "tidal.scheduling.koordinator.sh/batch-phase"
TIDAL_ONLINE_PHASE_TAINT = "tidal.scheduling.koordinator.sh/online-phase"
TIDAL_RETURN_AT = "tidal.scheduling.koordinator.sh/return-at"  # of batch pods, and of their node
TIDAL_DELETION_COST = "tidal.scheduling.koordinator.sh/deletion-cost"  # on pods: that their cost is ours
TIDAL_KEPT_BY = (
    "tidal.scheduling.koordinator.sh/scale-down-disabled-by"  # who set the autoscaler's annotation: the pool
)
TIDAL_FINALIZER = "tidal.scheduling.koordinator.sh/cleanup"
TIDAL_KATALYST = "tidal.scheduling.koordinator.sh/katalyst-labels"  # on nodes: that we keep the labels below

# --- Katalyst's tide controller, from which pools adopt nodes (behaviour/tidal 2) ---
KATALYST_NODE_POOL = "tide.katalyst.kubewharf.io/node-pool"
KATALYST_NODE_TYPE = "tide.katalyst.kubewharf.io/node-type"
KATALYST_RESERVE = "tide.katalyst.kubewharf.io/reserve"
KATALYST_TIDE = "tide.katalyst.kubewharf.io/tide"
KATALYST_ONLINE_NOT_USED = "tide.katalyst.kubewharf.io/online-not-used"
KATALYST_OFFLINE_NOT_USED = "tide.katalyst.kubewharf.io/offline-not-used"
KATALYST_POD_TYPE = "tide.katalyst.kubewharf.io/pod-type"

# --- Other projects' annotations of nodes ---
SCALE_DOWN_DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

# --- Other objects (6.13) ---
NAMESPACE_CONTROL_PLANE = "control-plane"  # label of namespaces whose pods skip the pod webhooks
CONFIGMAP_TYPE = "koordinator.sh/configmap-type"
T = TypeVar("T")


def read(values: Mapping[str, str], key: str, parse: Callable[[str], T], default: T, obj: str = "") -> T:
    """Return the parsed text under `key`, `default` when there is none.

    Raises: ProtocolError when the text is malformed, also when it is empty.
    """
    text = values.get(key)
    return default if text is None else parsed(text, key, parse, obj)


def parsed(text: str, key: str, parse: Callable[[str], T], obj: str = "") -> T:
    """`text` of `key`, parsed. Raises: ProtocolError when it is malformed."""
    try:
        return parse(text)
    except ValueError as error:
        raise ProtocolError(obj, key, str(error)) from error


def parse_int32(text: str) -> int:
    """Return a 32-bit integer. Raises: ScalarError."""
    return scalars.parse_int(text, 32)


def parse_plain_int32(text: str) -> int:
    """Return a 32-bit integer without plus sign or leading zeros (a minus sign hides zeros from that rule).

    Raises: ScalarError.
    """
    if text[:1] == "+" or (text[:1] == "0" and text != "0"):
        raise ScalarError(text, "an integer without plus sign and leading zeros")
    return parse_int32(text)


def without_last_applied(annotations: dict[str, str]) -> dict[str, str]:
    """Return annotations without what kubectl keeps there of the whole object; the same map where there is none."""
    if LAST_APPLIED not in annotations:
        return annotations
    return {key: text for key, text in annotations.items() if key != LAST_APPLIED}
