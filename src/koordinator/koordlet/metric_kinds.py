"""Kinds of time series and the properties that tell series of one kind apart. Source: behaviour/koordlet-observe 6.1.

Units: CPU in cores (`node_be`: milli-cores), memory in bytes, GPU cores and pressure in percent, ratios 0 to 1.
"""

NODE_CPU = "node_cpu_usage"
NODE_CPU_STOLEN = "node_cpu_stolen"
"""Cores that a hypervisor gave to others while somebody here wanted to run."""
NODE_MEMORY = "node_memory_usage"
NODE_MEMORY_PAGE_CACHE = "node_memory_usage_with_page_cache"
NODE_MEMORY_HOT_PAGE = "node_memory_with_hot_page_usage"
NODE_GPU_CORE = "node_gpu_core_usage"
NODE_GPU_MEMORY = "node_gpu_memory_usage"
NODE_NUMA_CPU = "node_numa_cpu_usage"
NODE_NUMA_MEMORY = "node_numa_memory_usage"
SYS_NUMA_CPU = "sys_numa_cpu_usage"
SYS_NUMA_MEMORY = "sys_numa_memory_usage"
SYS_CPU = "sys_cpu_usage"
SYS_MEMORY = "sys_memory_usage"
NODE_BE = "node_be"
POD_CPU = "pod_cpu_usage"
POD_MEMORY = "pod_memory_usage"
POD_MEMORY_PAGE_CACHE = "pod_memory_usage_with_page_cache"
POD_MEMORY_HOT_PAGE = "pod_memory_with_hot_page_usage"
POD_THROTTLED = "pod_cpu_throttled"
POD_GPU_CORE = "pod_gpu_core_usage"
POD_GPU_MEMORY = "pod_gpu_memory_usage"
CONTAINER_CPU = "container_cpu_usage"
CONTAINER_THROTTLED = "container_cpu_throttled"
HOST_APP_CPU = "host_application_cpu_usage"
HOST_APP_MEMORY = "host_application_memory_usage"
HOST_APP_MEMORY_PAGE_CACHE = "host_application_memory_usage_with_page_cache"
HOST_APP_MEMORY_HOT_PAGE = "host_application_memory_with_hot_page_usage"
FOREIGN_CPU = "foreign_container_cpu_usage"
FOREIGN_MEMORY = "foreign_container_memory_usage"

POD_UID = "pod_uid"
CONTAINER_ID = "container_id"
HOST_APP_NAME = "host_app_name"
NUMA_NODE = "numa_node_id"
GPU_MINOR = "gpu_minor"
GPU_UUID = "gpu_device_uuid"
BE_RESOURCE, BE_ALLOCATION = "be_resource", "be_allocation"
BE_USAGE, BE_REQUEST, BE_REAL_LIMIT = "usage", "request", "real-limit"
"""Values of `be_allocation`."""
BE_CPU_USED = {BE_RESOURCE: "cpu", BE_ALLOCATION: BE_USAGE}
"""Properties of the series of CPU that best-effort pods use together."""

_GPU = (GPU_MINOR, GPU_UUID)

PROPERTIES: dict[str, frozenset[str]] = {
    kind: frozenset(names)
    for kinds, names in (
        ((NODE_CPU, NODE_MEMORY, NODE_MEMORY_PAGE_CACHE, NODE_MEMORY_HOT_PAGE), ()),
        ((NODE_CPU_STOLEN, SYS_CPU, SYS_MEMORY), ()),
        ((NODE_GPU_CORE, NODE_GPU_MEMORY), _GPU),
        ((NODE_NUMA_CPU, NODE_NUMA_MEMORY, SYS_NUMA_CPU, SYS_NUMA_MEMORY), (NUMA_NODE,)),
        ((NODE_BE,), (BE_RESOURCE, BE_ALLOCATION)),
        ((POD_CPU, POD_MEMORY, POD_MEMORY_PAGE_CACHE, POD_MEMORY_HOT_PAGE), (POD_UID,)),
        ((POD_THROTTLED,), (POD_UID,)),
        ((POD_GPU_CORE, POD_GPU_MEMORY), (POD_UID, *_GPU)),
        ((CONTAINER_CPU, CONTAINER_THROTTLED), (CONTAINER_ID,)),
        ((FOREIGN_CPU, FOREIGN_MEMORY), (CONTAINER_ID,)),
        ((HOST_APP_CPU, HOST_APP_MEMORY, HOST_APP_MEMORY_PAGE_CACHE), (HOST_APP_NAME,)),
        ((HOST_APP_MEMORY_HOT_PAGE,), (HOST_APP_NAME,)),
    )
    for kind in kinds
}
"""Properties that a sample of each kind must have; a query may name fewer."""

_GROUP_NAMES = frozenset((POD_UID, CONTAINER_ID, HOST_APP_NAME))
GROUP_KINDS = frozenset(kind for kind, names in PROPERTIES.items() if names & _GROUP_NAMES)
"""Kinds with a series for each pod, container or host application."""
REPORTED_KINDS = frozenset(
    (
        *(POD_CPU, POD_MEMORY, POD_MEMORY_PAGE_CACHE, POD_MEMORY_HOT_PAGE),
        *(HOST_APP_CPU, HOST_APP_MEMORY, HOST_APP_MEMORY_PAGE_CACHE, HOST_APP_MEMORY_HOT_PAGE),
        *(POD_GPU_CORE, POD_GPU_MEMORY),
    )
)
"""Kinds of pods and host applications that are reported, over windows that the cluster chooses."""
NODE_KINDS = frozenset(PROPERTIES) - GROUP_KINDS
"""Kinds of the node, its NUMA nodes and cards."""
