"""The node agent's report about CPUs on a NodeResourceTopology."""

import msgspec

from koordinator.api import labels
from koordinator.api.annotations.codec import Annotation, Int32, Payload


class CPUInfo(Payload, frozen=True, kw_only=True):
    """The place of a logical CPU."""

    id: Int32
    core: Int32
    socket: Int32
    node: Int32


class CPUTopology(Payload, frozen=True, kw_only=True):
    """All CPUs of a node."""

    detail: list[CPUInfo] = []


class CPUBasicInfo(Payload, frozen=True, kw_only=True):
    """The model and the features of a node's CPUs."""

    cpu_model: str = ""
    hyper_thread_enabled: bool = False
    turbo_enabled: bool = False
    cat_l3_cbm_mask: str = msgspec.field(name="catL3CbmMask", default="")
    vendor_id: str = msgspec.field(name="vendorID", default="")


class CPUSharedPool(Payload, frozen=True, kw_only=True):
    """CPUs of one NUMA node that unbound pods share; `cpuset` is a CPU list."""

    socket: Int32
    node: Int32
    cpuset: str = ""


class PodCPUAlloc(Payload, frozen=True, kw_only=True):
    """CPUs that the kubelet bound for a pod."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


class KubeletCPUManagerPolicy(Payload, frozen=True, kw_only=True):
    """`policy` is static or none; `options` as in the kubelet's configuration."""

    policy: str = ""
    options: dict[str, str] = {}
    reserved_cpus: str = msgspec.field(name="reservedCPUs", default="")

    @property
    def is_full_pcpus_only(self) -> bool:
        """Return whether the kubelet binds whole physical cores only."""
        return self.policy == "static" and self.options.get("full-pcpus-only") == "true"


CPU_TOPOLOGY = Annotation(labels.NODE_CPU_TOPOLOGY, CPUTopology)
CPU_BASIC_INFO = Annotation(labels.NODE_CPU_BASIC_INFO, CPUBasicInfo)
CPU_SHARED_POOLS = Annotation(labels.NODE_CPU_SHARED_POOLS, list[CPUSharedPool])
BE_CPU_SHARED_POOLS = Annotation(labels.NODE_BE_CPU_SHARED_POOLS, list[CPUSharedPool])
POD_CPU_ALLOCS = Annotation(labels.NODE_POD_CPU_ALLOCS, list[PodCPUAlloc])
KUBELET_CPU_MANAGER_POLICY = Annotation(labels.KUBELET_CPU_MANAGER_POLICY, KubeletCPUManagerPolicy)
